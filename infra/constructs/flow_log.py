"""VPC flow log to CloudWatch. EFA's own traffic bypasses the kernel and is not in it."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.plan import Plan

RETENTION = logs.RetentionDays.THREE_MONTHS


def flow_log(scope: Construct, plan: Plan, *, vpc_id: str) -> ec2.CfnFlowLog:
    """All traffic of the VPC into `plan.names.flow_log_group`.

    The group has a fixed name and goes with the VPC that it describes: kept, it would block the next deploy.
    """
    group = logs.LogGroup(
        scope,
        "FlowLogGroup",
        log_group_name=plan.names.flow_log_group,
        retention=RETENTION,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    role = iam.Role(
        scope,
        "FlowLogRole",
        description=f"{plan.name}: VPC flow log to CloudWatch",
        assumed_by=iam.ServicePrincipal(
            "vpc-flow-logs.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": plan.account},
                "ArnLike": {"aws:SourceArn": f"arn:{plan.partition}:ec2:{plan.region}:{plan.account}:vpc-flow-log/*"},
            },
        ),
        # Inline in the role, so that the policy is there when the flow log first assumes it.
        inline_policies={
            "write": iam.PolicyDocument(
                statements=[
                    iam.PolicyStatement(
                        actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                        resources=[group.log_group_arn],
                    )
                ]
            )
        },
    )
    return ec2.CfnFlowLog(
        scope,
        "FlowLog",
        resource_id=vpc_id,
        resource_type="VPC",
        traffic_type="ALL",
        log_destination_type="cloud-watch-logs",
        log_group_name=group.log_group_name,
        deliver_logs_permission_arn=role.role_arn,
        tags=[cdk.CfnTag(key="Name", value=f"{plan.name}-flow")],
    )
