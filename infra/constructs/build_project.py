"""What the CodeBuild projects of an environment share: trust, log group, image and names.

The statements stand in the role itself: CodeBuild tests them when the project is created, and a policy beside the role
may come too late.
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.acknowledge import acknowledge
from infra.constructs.pod_identity import allow

IMAGE = "aws/codebuild/amazonlinux-x86_64-standard:6.0"
"""Has the AWS CLI, bash, unzip, and Docker with buildx (aws-codebuild-docker-images, al/x86_64/standard/6.0, 2026); its
kubectl is not used, since nobody pins it."""
LOG_RETENTION = logs.RetentionDays.THREE_MONTHS


def build_role(
    scope: Construct,
    identifier: str,
    plan: Plan,
    *,
    project_name: str,
    purpose: str,
    statements: Sequence[iam.PolicyStatement],
) -> iam.Role:
    """A role for one project of this account and nothing else; it may write the project's log besides `statements`."""
    log_streams = f"{_log_group_arn(plan, project_name)}:*"
    project_arn = f"arn:{plan.partition}:codebuild:{plan.region}:{plan.account}:project/{project_name}"
    role = iam.Role(
        scope,
        identifier,
        assumed_by=iam.ServicePrincipal(
            "codebuild.amazonaws.com",
            conditions={"StringEquals": {"aws:SourceAccount": plan.account, "aws:SourceArn": project_arn}},
        ),
        description=f"{plan.name}: {purpose}",
        inline_policies={
            project_name.removeprefix(f"{plan.name}-"): iam.PolicyDocument(
                statements=[allow(["logs:CreateLogStream", "logs:PutLogEvents"], [log_streams]), *statements]
            )
        },
    )
    acknowledge(
        role,
        f"AwsSolutions-IAM5[Resource::{log_streams}]",
        "CodeBuild names a log stream for each build, all in the project's own group",
    )
    return role


def build_logs(scope: Construct, identifier: str, *, project_name: str) -> codebuild.CfnProject.LogsConfigProperty:
    """The project's log group, with an end to what it keeps, and the setting that sends builds there."""
    group = logs.LogGroup(
        scope,
        identifier,
        log_group_name=_log_group_name(project_name),
        retention=LOG_RETENTION,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    return codebuild.CfnProject.LogsConfigProperty(
        cloud_watch_logs=codebuild.CfnProject.CloudWatchLogsConfigProperty(
            status="ENABLED", group_name=group.log_group_name
        )
    )


def environment_variables(variables: dict[str, str]) -> list[codebuild.CfnProject.EnvironmentVariableProperty]:
    return [
        codebuild.CfnProject.EnvironmentVariableProperty(name=name, value=value) for name, value in variables.items()
    ]


def _log_group_name(project_name: str) -> str:
    return f"/aws/codebuild/{project_name}"


def _log_group_arn(plan: Plan, project_name: str) -> str:
    return f"arn:{plan.partition}:logs:{plan.region}:{plan.account}:log-group:{_log_group_name(project_name)}"
