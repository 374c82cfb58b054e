"""Private ways to AWS services: the S3 gateway endpoint, and interface endpoints where a VPC needs them."""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.config.plan import Plan

SERVICES = (
    "ecr.api",
    "ecr.dkr",
    "sts",
    "ec2",
    "eks",
    "eks-auth",
    "autoscaling",
    "elasticloadbalancing",
    "sqs",
    "kms",
    "logs",
    "monitoring",
    "ssm",
    "ssmmessages",
    "ec2messages",
)
"""What nodes, controllers, agents and the apply build call; S3 goes by its gateway endpoint, which costs nothing."""


def interface_services(plan: Plan) -> tuple[str, ...]:
    """Services that get an interface endpoint: none where NAT and a public API endpoint serve instead."""
    if plan.network.egress == "nat" and plan.kubernetes.public_cidrs:
        return ()
    return (*SERVICES, "fsx") if plan.storage.scratch == "fsx" else SERVICES


def s3_endpoint(scope: Construct, plan: Plan, *, vpc_id: str, route_table_ids: Sequence[str]) -> ec2.CfnVPCEndpoint:
    """The S3 gateway endpoint on the given route tables: checkpoints must not pass, and pay, the NAT gateway."""
    return ec2.CfnVPCEndpoint(
        scope,
        "S3Endpoint",
        vpc_id=vpc_id,
        service_name=f"com.amazonaws.{plan.region}.s3",
        vpc_endpoint_type="Gateway",
        route_table_ids=list(route_table_ids),
        tags=[cdk.CfnTag(key="Name", value=f"{plan.name}-s3")],
    )


def interface_endpoints(
    scope: Construct, plan: Plan, *, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str
) -> tuple[ec2.CfnVPCEndpoint, ...]:
    """One interface endpoint for each service of `interface_services`, with private DNS."""
    return tuple(
        ec2.CfnVPCEndpoint(
            scope,
            f"{_identifier(service)}Endpoint",
            vpc_id=vpc_id,
            service_name=f"com.amazonaws.{plan.region}.{service}",
            vpc_endpoint_type="Interface",
            private_dns_enabled=True,
            subnet_ids=list(subnet_ids),
            security_group_ids=[security_group_id],
            tags=[cdk.CfnTag(key="Name", value=f"{plan.name}-{service}")],
        )
        for service in interface_services(plan)
    )


def _identifier(service: str) -> str:
    return "".join(word.capitalize() for word in service.replace(".", "-").split("-"))
