"""Imports every module that registers operations or CloudFormation types."""

from . import alarms, autoscaling, budgets, codebuild, dashboards, ec2, eks, fsx, iam, imagebuilder, s3, scheduler, sns

__all__ = [
    "alarms",
    "autoscaling",
    "budgets",
    "codebuild",
    "dashboards",
    "ec2",
    "eks",
    "fsx",
    "iam",
    "imagebuilder",
    "s3",
    "scheduler",
    "sns",
]
