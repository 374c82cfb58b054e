"""Log groups that the CloudWatch agent and its Fluent Bit write to, made before these would make them.

A group that they make keeps everything for ever, and once it exists CloudFormation cannot create it: whatever installs the
agent depends on what this module returns. Fluent Bit's are three: containers, the node's kubelet and containerd with the CNI
and kube-proxy, and its kernel and system log (values.yaml of the add-on's chart).
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.plan import Plan

LOG_RETENTION = logs.RetentionDays.ONE_MONTH
PERFORMANCE_LOG_RETENTION = logs.RetentionDays.ONE_WEEK
"""Container Insights derives its metrics from these events as they arrive; the events are for debugging alone."""


def container_log_groups(scope: Construct, plan: Plan) -> tuple[logs.LogGroup, ...]:
    """Groups of containers, nodes and Container Insights events, for the stack that installs the agent."""
    below = plan.names.container_log_group.removesuffix("application")
    return tuple(
        logs.LogGroup(
            scope,
            identifier,
            log_group_name=f"{below}{kind}",
            retention=retention,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        for identifier, kind, retention in (
            ("ContainerLogs", "application", LOG_RETENTION),
            ("DataplaneLogs", "dataplane", LOG_RETENTION),
            ("HostLogs", "host", LOG_RETENTION),
            ("PerformanceLogs", "performance", PERFORMANCE_LOG_RETENTION),
        )
    )
