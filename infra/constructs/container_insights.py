"""Metrics that the CloudWatch agent publishes for a cluster (Container Insights with enhanced observability).

Namespace `ContainerInsights`, dimension `ClusterName`. Each node's agent sends one sample a minute under that dimension,
so over the cluster Sum adds the nodes up and Minimum finds the lowest one. The GPU counts come from the node's capacity
and its pods, not from DCGM, and only nodes with GPUs send them (awscontainerinsightreceiver, podstore.go); GPU load is
in the DCGM exporter's metrics, which stay in the cluster.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

from infra.config.plan import Plan

NAMESPACE = "ContainerInsights"


def node_count(plan: Plan) -> cloudwatch.Metric:
    return _metric(plan, "cluster_node_count", "Maximum", label="nodes")


def failed_nodes(plan: Plan) -> cloudwatch.Metric:
    """Nodes with any bad condition."""
    return _metric(plan, "cluster_failed_node_count", "Maximum", label="failed nodes")


def gpus_in_use_on_idlest_node(plan: Plan) -> cloudwatch.Metric:
    """GPUs that pods hold on the GPU node with the fewest; 0 while some GPU node has no GPU pod."""
    return _metric(plan, "node_gpu_usage_total", "Minimum", label="GPUs in use on the idlest node", minutes=1)


def gpus(plan: Plan) -> cloudwatch.Metric:
    """GPUs of all nodes."""
    return _metric(plan, "node_gpu_limit", "Sum", label="GPUs", minutes=1)


def gpus_in_use(plan: Plan) -> cloudwatch.Metric:
    """GPUs that pods hold, over all nodes."""
    return _metric(plan, "node_gpu_usage_total", "Sum", label="GPUs held by pods", minutes=1)


def _metric(plan: Plan, name: str, statistic: str, *, label: str, minutes: int = 5) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"ClusterName": plan.names.cluster},
        statistic=statistic,
        period=cdk.Duration.minutes(minutes),
        label=label,
    )
