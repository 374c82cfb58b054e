"""What EC2 and Auto Scaling say about the pools' nodes: events to one log group, and metrics counted from it.

Attribution. Auto Scaling events carry the group's name, which for a managed node group is `eks-`, the node group's name
and a UUID (EKS since 1.21), so they are counted per pool, exactly. Spot notices carry an instance id and an ARN: its
region field has held the zone (`arn:aws:ec2:us-west-2b:instance/i-...`) and, in newer documents, region and account.
They are therefore counted per zone, notices without a zone in every zone that has a Spot pool, and they include Spot
instances of the account that are not ours. Alarms use the exact counts; notices are for the dashboard.

Field names: Amazon EC2 Auto Scaling event reference; EC2 user guide, Spot interruption notices, rebalance
recommendations, Capacity Block monitoring.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.plan import Plan
from infra.config.pool_plan import PoolPlan

EVENT_LOG_RETENTION = logs.RetentionDays.THREE_MONTHS
LAUNCH_FAILED, TERMINATED = "EC2 Instance Launch Unsuccessful", "EC2 Instance Terminate Successful"
INTERRUPTION, REBALANCE = "EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"
BLOCK_ENDING = ("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning")
"""Two editions of the EC2 guide name the event differently."""
ASKED_FOR = "*user request*"
"""Part of the cause of every termination that someone called for: the cluster autoscaler, EKS, an operator. Reclaims,
rebalancing and failed health checks have other causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGroup:
    """A pool and the name of its node group, which may be a deploy-time reference."""

    pool: PoolPlan
    node_group: str

    @property
    def scaling_group_prefix(self) -> str:
        return f"eks-{self.node_group}-"


def nodes_lost(plan: Plan, pool: PoolPlan) -> cloudwatch.Metric:
    """Nodes of the pool that ended without anyone asking for it."""
    return _count(plan, f"NodesLost.{pool.name}", f"{pool.name}: nodes lost")


def launches_failed(plan: Plan, pool: PoolPlan) -> cloudwatch.Metric:
    """Launches that failed, for lack of capacity or quota or a wrong template."""
    return _count(plan, f"LaunchesFailed.{pool.name}", f"{pool.name}: failed launches")


def spot_notices(plan: Plan, zone: str) -> cloudwatch.Metric:
    """Interruption notices in the zone, two minutes before the loss."""
    pools = ", ".join(pool.name for pool in spot_pools(plan) if zone in pool.zones)
    return _count(plan, f"SpotNotices.{zone}", f"{zone}: Spot notices ({pools})")


def blocks_ending(plan: Plan) -> cloudwatch.Metric:
    """Capacity blocks of the plan that end within 40 minutes."""
    return _count(plan, "BlocksEnding", "capacity blocks ending")


def spot_pools(plan: Plan) -> tuple[PoolPlan, ...]:
    return tuple(pool for pool in plan.pools if pool.capacity.type == "spot")


def spot_zones(plan: Plan) -> tuple[str, ...]:
    """Zones that have a Spot pool, in the file's order."""
    return tuple(zone for zone in plan.network.zones if any(zone in pool.zones for pool in spot_pools(plan)))


def capacity_events(scope: Construct, plan: Plan, groups: Sequence[PoolGroup]) -> logs.LogGroup:
    """Log group, rules into it and metric filters over it, for the pools of `groups`."""
    log = logs.LogGroup(
        scope,
        "CapacityEvents",
        log_group_name=plan.names.event_log_group,
        retention=EVENT_LOG_RETENTION,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    writable = _let_events_write(scope, plan, log)
    scaling_groups = [{"prefix": group.scaling_group_prefix} for group in groups]
    patterns: dict[str, dict[str, object]] = {
        "NodesLostRule": {
            "source": ["aws.autoscaling"],
            "detail-type": [TERMINATED],
            "detail": {
                "AutoScalingGroupName": scaling_groups,
                "Cause": [{"anything-but": {"wildcard": ASKED_FOR}}],
            },
        },
        "LaunchesFailedRule": {
            "source": ["aws.autoscaling"],
            "detail-type": [LAUNCH_FAILED],
            "detail": {"AutoScalingGroupName": scaling_groups},
        },
    }
    for group in groups:
        ours = f'($.detail.AutoScalingGroupName = "{group.scaling_group_prefix}*")'
        _filter(scope, log, nodes_lost(plan, group.pool), f'{{ ($.detail-type = "{TERMINATED}") && {ours} }}')
        _filter(scope, log, launches_failed(plan, group.pool), f'{{ ($.detail-type = "{LAUNCH_FAILED}") && {ours} }}')
    if spot_pools(plan):
        patterns["SpotRule"] = {"source": ["aws.ec2"], "detail-type": [INTERRUPTION, REBALANCE]}
        for zone in spot_zones(plan):
            where = " || ".join(f'($.resources[0] = "arn:{plan.partition}:ec2:{at}:*")' for at in (zone, plan.region))
            _filter(scope, log, spot_notices(plan, zone), f'{{ ($.detail-type = "{INTERRUPTION}") && ({where}) }}')
    blocks = [pool.capacity.reservation_id for pool in plan.pools if pool.capacity.block]
    if blocks:
        patterns["BlocksRule"] = {
            "source": ["aws.ec2"],
            "detail-type": [{"prefix": "Capacity Block"}],
            "detail": {"capacity-reservation-id": blocks},
        }
        ending = " || ".join(f'($.detail-type = "{kind}")' for kind in BLOCK_ENDING)
        _filter(scope, log, blocks_ending(plan), f"{{ {ending} }}")
    for identifier, pattern in patterns.items():
        rule = events.CfnRule(
            scope,
            identifier,
            description=f"{plan.name}: capacity events to {plan.names.event_log_group}",
            event_pattern=pattern,
            targets=[events.CfnRule.TargetProperty(id="Log", arn=_log_group_arn(plan))],
        )
        rule.add_resource_dependency(writable)
    return log


def _let_events_write(scope: Construct, plan: Plan, log: logs.LogGroup) -> logs.CfnResourcePolicy:
    """EventBridge writes to a log group by the group's resource policy alone; it takes no role for this target.

    CDK's own target would set the policy from a Lambda function, for which this stack has no other use.
    """
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": ["delivery.logs.amazonaws.com", "events.amazonaws.com"]},
        "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
        "Resource": f"{_log_group_arn(plan)}:*",
    }
    policy = logs.CfnResourcePolicy(
        scope,
        "CapacityEventsPolicy",
        policy_name=f"{plan.name}-capacity-events",
        policy_document=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
    )
    policy.node.add_dependency(log)
    return policy


def _log_group_arn(plan: Plan) -> str:
    return f"arn:{plan.partition}:logs:{plan.region}:{plan.account}:log-group:{plan.names.event_log_group}"


def _count(plan: Plan, name: str, label: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=plan.names.metric_namespace,
        metric_name=name,
        label=label,
        statistic="Sum",
        period=cdk.Duration.minutes(5),
    )


def _filter(scope: Construct, log: logs.LogGroup, metric: cloudwatch.Metric, pattern: str) -> None:
    logs.MetricFilter(
        scope,
        f"Count{metric.metric_name}",
        log_group=log,
        metric_namespace=metric.namespace,
        metric_name=metric.metric_name,
        metric_value="1",
        filter_pattern=logs.FilterPattern.literal(pattern),
    )
