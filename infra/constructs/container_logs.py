"""Log groups that the CloudWatch agent writes to, made before the agent would make them.

A group that the agent makes keeps everything for ever, and once it exists CloudFormation cannot create it: whatever
installs the agent depends on what this module returns.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.plan import Plan

CONTAINER_LOG_RETENTION = logs.RetentionDays.ONE_MONTH
PERFORMANCE_LOG_RETENTION = logs.RetentionDays.ONE_WEEK
"""Container Insights derives its metrics from these events as they arrive; the events are for debugging alone."""


def container_log_groups(scope: Construct, plan: Plan) -> tuple[logs.LogGroup, ...]:
    """Groups of container output and of Container Insights events, for the stack that installs the agent."""
    performance = plan.names.container_log_group.removesuffix("/application") + "/performance"
    return tuple(
        logs.LogGroup(
            scope, identifier, log_group_name=name, retention=retention, removal_policy=cdk.RemovalPolicy.DESTROY
        )
        for identifier, name, retention in (
            ("ContainerLogs", plan.names.container_log_group, CONTAINER_LOG_RETENTION),
            ("PerformanceLogs", performance, PERFORMANCE_LOG_RETENTION),
        )
    )
