"""`moerl pool`: what CloudFormation must not own about a node group, its desired size and its group's tags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from infra.config.plan import Plan
from infra.config.pool_plan import LABEL_DOMAIN, PoolPlan

POLL_SECONDS = 15


class PoolError(Exception):
    """A request that cannot work as asked; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A live managed node group."""

    name: str
    status: str
    minimum: int
    maximum: int
    desired: int
    auto_scaling_groups: tuple[str, ...]
    health_issues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at a pool that is being scaled."""

    wanted: int
    in_service: int
    problems: tuple[str, ...]
    """Health issues and failed launches, newest last; capacity errors show here first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    pool: str
    node_group: str
    outcome: Literal["reached", "timed-out"]
    last: Progress


def find_node_group(eks: Any, cluster: str, pool: str) -> NodeGroup:
    """The node group that carries the pool's label. PoolError when the cluster has none, or several."""
    pages = eks.get_paginator("list_nodegroups").paginate(clusterName=cluster)
    names = [name for page in pages for name in page["nodegroups"]]
    found = [
        group
        for group in (eks.describe_nodegroup(clusterName=cluster, nodegroupName=name)["nodegroup"] for name in names)
        if group.get("labels", {}).get(f"{LABEL_DOMAIN}/pool") == pool
    ]
    if len(found) != 1:
        what = (
            "no node group"
            if not found
            else f"{len(found)} node groups ({', '.join(g['nodegroupName'] for g in found)})"
        )
        raise PoolError(
            f"cluster {cluster} has {what} for pool {pool}; deploy its stack, or finish a replacement first"
        )
    return _node_group(found[0])


def scale(
    plan: Plan,
    pool: PoolPlan,
    nodes: int,
    *,
    eks: Any,
    autoscaling: Any,
    timeout_seconds: float,
    sleep: Callable[[float], None],
    now: Callable[[], float],
    report: Callable[[Progress], None],
) -> ScaleResult:
    """Sets the desired size and waits, within bounds, until that many nodes are in service.

    Raises PoolError for a size that the pool's plan does not allow.
    """
    if pool.size.desired is not None:
        raise PoolError(
            f"pool {pool.name} is fixed at {pool.size.desired} nodes by its file; change `nodes` there and deploy"
        )
    if not pool.size.min <= nodes <= pool.size.max:
        raise PoolError(
            f"{nodes} nodes: pool {pool.name} goes from {pool.size.min} to {pool.size.max}; change its file first"
        )
    group = find_node_group(eks, plan.names.cluster, pool.name)
    before = _failures(autoscaling, group)
    eks.update_nodegroup_config(
        clusterName=plan.names.cluster,
        nodegroupName=group.name,
        scalingConfig={"minSize": pool.size.min, "maxSize": pool.size.max, "desiredSize": nodes},
    )
    deadline = now() + timeout_seconds
    while True:
        group = _node_group(
            eks.describe_nodegroup(clusterName=plan.names.cluster, nodegroupName=group.name)["nodegroup"]
        )
        fresh = tuple(problem for problem in _failures(autoscaling, group) if problem not in before)
        last = Progress(
            wanted=nodes, in_service=_in_service(autoscaling, group), problems=(*group.health_issues, *fresh)
        )
        report(last)
        if last.in_service == nodes:
            return ScaleResult(pool=pool.name, node_group=group.name, outcome="reached", last=last)
        if now() >= deadline:
            return ScaleResult(pool=pool.name, node_group=group.name, outcome="timed-out", last=last)
        sleep(POLL_SECONDS)


def tag(plan: Plan, pool: PoolPlan, *, eks: Any, autoscaling: Any) -> tuple[str, dict[str, str]]:
    """Writes the scaler's node-template tags and the file's own tags to the pool's Auto Scaling group.

    The file's tags go on to instances launched from then on. Returns the group's name and every tag written.
    """
    group = find_node_group(eks, plan.names.cluster, pool.name)
    if len(group.auto_scaling_groups) != 1:
        raise PoolError(
            f"node group {group.name} has {len(group.auto_scaling_groups)} Auto Scaling groups; expected one"
        )
    name = group.auto_scaling_groups[0]
    tags = {**pool.scaler_tags, **plan.tags}
    autoscaling.create_or_update_tags(
        Tags=[
            {
                "ResourceId": name,
                "ResourceType": "auto-scaling-group",
                "Key": key,
                "Value": value,
                "PropagateAtLaunch": key in plan.tags,
            }
            for key, value in sorted(tags.items())
        ]
    )
    return name, tags


def _node_group(described: dict[str, Any]) -> NodeGroup:
    scaling = described["scalingConfig"]
    return NodeGroup(
        name=described["nodegroupName"],
        status=described["status"],
        minimum=scaling["minSize"],
        maximum=scaling["maxSize"],
        desired=scaling.get("desiredSize", 0),
        auto_scaling_groups=tuple(
            group["name"] for group in described.get("resources", {}).get("autoScalingGroups", [])
        ),
        health_issues=tuple(
            f"{issue.get('code', '?')}: {issue.get('message', '')}"
            for issue in described.get("health", {}).get("issues", [])
        ),
    )


def _in_service(autoscaling: Any, group: NodeGroup) -> int:
    names = list(group.auto_scaling_groups)
    if not names:
        return 0
    groups = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=names)["AutoScalingGroups"]
    return sum(
        1 for item in groups for instance in item.get("Instances", []) if instance["LifecycleState"] == "InService"
    )


def _failures(autoscaling: Any, group: NodeGroup) -> tuple[str, ...]:
    """Messages of failed launches, oldest first."""

    def messages() -> Iterator[str]:
        for name in group.auto_scaling_groups:
            activities = autoscaling.describe_scaling_activities(AutoScalingGroupName=name, MaxRecords=20)["Activities"]
            for activity in reversed(activities):
                if activity["StatusCode"] in {"Failed", "Cancelled"}:
                    yield f"{activity['ActivityId']}: {activity.get('StatusMessage', activity.get('Description', ''))}"

    return tuple(messages())
