"""Alarms that ask somebody to do something. Every description says what happened and what to do.

Missing data is a decision of each alarm: queues and event counters publish nothing while nothing happens, so silence is
fine there; the cluster always has nodes, so silence of Container Insights is a fault of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.config.plan import Plan
from infra.config.pool_plan import PoolPlan
from infra.constructs.capacity_events import blocks_ending, launches_failed, nodes_lost
from infra.constructs.container_insights import failed_nodes, gpus_in_use_on_idlest_node
from infra.constructs.nat_traffic import nat_gib

TASK_WAIT_SECONDS = 30 * 60
RESULT_WAIT_SECONDS = 60 * 60
"""A trainer step of the reference system takes minutes; results that wait an hour are read by nobody."""
IDLE_GPU_MINUTES = 30
SPOT_LOSS_SHARE = 1 / 3
NO_SPOT_MINUTES = 60
NAT_HOURS = 3
"""A model's download from the hub and a new fleet's first images are over by then."""

QUIET = cloudwatch.TreatMissingData.NOT_BREACHING


def queue_alarms(
    scope: Construct, plan: Plan, topic: sns.ITopic, *, tasks: sqs.Queue, results: sqs.Queue, dead_letter: sqs.Queue
) -> None:
    five, quarter = cdk.Duration.minutes(5), 3
    _alarm(
        scope,
        topic,
        "TasksWaiting",
        tasks.metric_approximate_age_of_oldest_message(period=five, statistic="Maximum"),
        threshold=TASK_WAIT_SECONDS,
        periods=quarter,
        missing=QUIET,
        text=f"Tasks of {plan.name} have waited {TASK_WAIT_SECONDS // 60} minutes. Check that rollout engines run (kubectl"
        f" -n {plan.names.namespace} get pods), that KEDA scales them, and that Spot has capacity.",
    )
    _alarm(
        scope,
        topic,
        "ResultsUnread",
        results.metric_approximate_age_of_oldest_message(period=five, statistic="Maximum"),
        threshold=RESULT_WAIT_SECONDS,
        periods=quarter,
        missing=QUIET,
        text=f"Results of {plan.name} have waited {RESULT_WAIT_SECONDS // 60} minutes: the trainer reads none. Check its pods"
        " and log; stop the rollouts if the run is over, since they go on costing money.",
    )
    _alarm(
        scope,
        topic,
        "DeadLetters",
        dead_letter.metric_approximate_number_of_messages_visible(period=five, statistic="Maximum"),
        threshold=1,
        periods=1,
        missing=QUIET,
        text=f"Agents gave up on tasks of {plan.name}. Read the messages in {plan.names.dead_letter_queue}: each names its"
        " failures. Mend the cause, then redrive them to the task queue or purge them.",
    )


def pool_alarms(scope: Construct, plan: Plan, topic: sns.ITopic, pools: Sequence[PoolPlan]) -> None:
    """Failed launches and lost nodes of the GPU pools."""
    for pool in pools:
        if not pool.is_gpu:
            continue
        if pool.capacity.type == "spot":
            _spot_alarms(scope, plan, topic, pool)
        else:
            _fixed_alarms(scope, plan, topic, pool)
    if any(pool.capacity.block for pool in pools):
        _alarm(
            scope,
            topic,
            "BlockEnding",
            blocks_ending(plan),
            threshold=1,
            periods=1,
            missing=QUIET,
            text=f"A capacity block of {plan.name} ends in 40 minutes and EC2 ends its instances in 10. The pool should be at"
            " 0 nodes by now: check that the last checkpoint has its commit marker, then scale down what still runs.",
        )


def cluster_alarms(scope: Construct, plan: Plan, topic: sns.ITopic) -> None:
    _alarm(
        scope,
        topic,
        "NodesFailed",
        failed_nodes(plan),
        threshold=1,
        periods=3,
        missing=cloudwatch.TreatMissingData.BREACHING,
        text=f"A node of {plan.names.cluster} has had a bad condition for 15 minutes, or Container Insights has gone quiet."
        " Look at kubectl get nodes and at the amazon-cloudwatch namespace; while it is quiet, idle GPUs go unseen too.",
    )
    _alarm(
        scope,
        topic,
        "GpuNodeIdle",
        gpus_in_use_on_idlest_node(plan),
        threshold=0,
        comparison=cloudwatch.ComparisonOperator.LESS_THAN_OR_EQUAL_TO_THRESHOLD,
        periods=IDLE_GPU_MINUTES,
        # No GPU node, no data point: nothing is idle then.
        missing=QUIET,
        text=f"For {IDLE_GPU_MINUTES} minutes {plan.names.cluster} has had a GPU node without a GPU pod. Look for pods that"
        " are Pending and why; if there is no work, scale the pool down.",
    )


def nat_alarms(scope: Construct, plan: Plan, topic: sns.ITopic, gateways: Mapping[str, str]) -> None:
    """More through a NAT gateway than its zone's nodes have use for; `gateways` are their ids by zone."""
    for zone, gateway in gateways.items():
        gib = plan.network.nat_gib_per_hour[zone]
        _alarm(
            scope,
            topic,
            f"NatTraffic.{zone}",
            nat_gib(zone, gateway),
            threshold=gib,
            periods=NAT_HOURS,
            missing=QUIET,
            text=f"In each of {NAT_HOURS} hours {gib} GiB or more went through the NAT gateway of {plan.name} in {zone}, and"
            f" every GB is billed. Look in {plan.names.flow_log_group} for who sends them. S3 belongs on its gateway"
            " endpoint: check the route tables, and for buckets of another region. Images belong in this region's ECR.",
        )


def _spot_alarms(scope: Construct, plan: Plan, topic: sns.ITopic, pool: PoolPlan) -> None:
    share = ceil(pool.size.max * SPOT_LOSS_SHARE)
    _alarm(
        scope,
        topic,
        f"SpotLoss.{pool.name}",
        nodes_lost(plan, pool),
        threshold=share,
        periods=1,
        missing=QUIET,
        text=f"Spot pool {pool.name} of {plan.name} lost {share} or more of {pool.size.max} nodes within 5 minutes. Work goes"
        " back to the queue by itself; check that the task queue drains and that nodes come back.",
    )
    _alarm(
        scope,
        topic,
        f"NoSpot.{pool.name}",
        launches_failed(plan, pool).with_(period=cdk.Duration.minutes(15)),
        threshold=1,
        periods=NO_SPOT_MINUTES // 15,
        missing=QUIET,
        text=f"Launches in Spot pool {pool.name} of {plan.name} have failed for {NO_SPOT_MINUTES} minutes. Read the reason in"
        f" {plan.names.event_log_group}: no capacity (wait, add types, another zone), a quota, or a wrong template.",
    )


def _fixed_alarms(scope: Construct, plan: Plan, topic: sns.ITopic, pool: PoolPlan) -> None:
    _alarm(
        scope,
        topic,
        f"NodeLost.{pool.name}",
        nodes_lost(plan, pool),
        threshold=1,
        periods=1,
        missing=QUIET,
        text=f"Pool {pool.name} of {plan.name} lost a node that nobody gave up. A job on it has stopped: check that it resumes"
        " from the last checkpoint once the node is replaced.",
    )
    _alarm(
        scope,
        topic,
        f"LaunchFailed.{pool.name}",
        launches_failed(plan, pool),
        threshold=1,
        periods=1,
        missing=QUIET,
        text=f"A node of pool {pool.name} of {plan.name} could not be launched. Read the reason in"
        f" {plan.names.event_log_group}: capacity, reservation, quota, or a wrong template.",
    )


def _alarm(
    scope: Construct,
    topic: sns.ITopic,
    identifier: str,
    metric: cloudwatch.IMetric,
    *,
    threshold: float,
    periods: int,
    missing: cloudwatch.TreatMissingData,
    text: str,
    comparison: cloudwatch.ComparisonOperator = cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
) -> None:
    alarm = cloudwatch.Alarm(
        scope,
        identifier,
        metric=metric,
        threshold=threshold,
        comparison_operator=comparison,
        evaluation_periods=periods,
        treat_missing_data=missing,
        alarm_description=text,
    )
    alarm.add_alarm_action(actions.SnsAction(topic))
