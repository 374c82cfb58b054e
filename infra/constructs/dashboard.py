"""One dashboard: is work flowing, are the nodes there, are the GPUs held, what goes out by NAT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.config.plan import Plan
from infra.config.pool_plan import PoolPlan
from infra.constructs import container_insights
from infra.constructs.capacity_events import launches_failed, nodes_lost, spot_notices, spot_zones
from infra.constructs.nat_traffic import nat_gib

WIDTH, HEIGHT = 8, 6


def dashboard(
    scope: Construct,
    plan: Plan,
    *,
    tasks: sqs.Queue,
    results: sqs.Queue,
    dead_letter: sqs.Queue,
    pools: Sequence[PoolPlan],
    nat_gateways: Mapping[str, str],
) -> cloudwatch.Dashboard:
    board = cloudwatch.Dashboard(
        scope,
        "Dashboard",
        dashboard_name=plan.name,
        period_override=cloudwatch.PeriodOverride.AUTO,
        default_interval=cdk.Duration.hours(12),
    )
    board.add_widgets(
        _graph("Tasks", [*_depth(tasks)]),
        _graph("Results", [*_depth(results)]),
        _graph(
            "Age of the oldest message, and dead letters",
            [_age(tasks, "tasks"), _age(results, "results")],
            [dead_letter.metric_approximate_number_of_messages_visible(label="dead letters")],
        ),
    )
    board.add_widgets(
        _graph("Nodes", [container_insights.node_count(plan), container_insights.failed_nodes(plan)]),
        _graph(
            "GPUs",
            [
                container_insights.gpus(plan),
                container_insights.gpus_in_use(plan),
                container_insights.gpus_in_use_on_idlest_node(plan),
            ],
        ),
        _graph("Failed launches", [launches_failed(plan, pool) for pool in pools]),
    )
    board.add_widgets(
        _graph("Nodes lost", [nodes_lost(plan, pool) for pool in pools]),
        *(
            [_graph("Spot notices", [spot_notices(plan, zone) for zone in spot_zones(plan)])]
            if spot_zones(plan)
            else []
        ),
        *(
            [_graph("NAT traffic (GiB an hour)", [nat_gib(zone, gateway) for zone, gateway in nat_gateways.items()])]
            if nat_gateways
            else []
        ),
    )
    return board


def _depth(queue: sqs.Queue) -> tuple[cloudwatch.Metric, ...]:
    return (
        queue.metric_approximate_number_of_messages_visible(label="waiting"),
        queue.metric_approximate_number_of_messages_not_visible(label="in flight"),
    )


def _age(queue: sqs.Queue, label: str) -> cloudwatch.Metric:
    return queue.metric_approximate_age_of_oldest_message(label=f"{label} (s)", statistic="Maximum")


def _graph(
    title: str, left: Sequence[cloudwatch.IMetric], right: Sequence[cloudwatch.IMetric] = ()
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(left), right=list(right) or None, width=WIDTH, height=HEIGHT)
