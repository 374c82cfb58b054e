"""Scaling and tagging a node group: what is asked of AWS, what is refused before anything is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.config.plan import Plan
from infra.config.pool_plan import SizePlan
from infra.operations import pool as pools
from infra.operations.pool import PoolError, Progress, ScaleResult
from tests.shipped import unpinned_plan_of

from .scripted import scripted

ROOT = Path(__file__).resolve().parents[3]
GROUP, ASG = "trainer-4f2a", "eks-trainer-4f2a"
NO_CAPACITY = "We currently do not have sufficient p6-b200.48xlarge capacity in the Availability Zone you requested."


@pytest.fixture(scope="module")
def plan() -> Plan:
    return unpinned_plan_of("p6-b200")


def described(
    name: str, pool: str, *, issues: tuple[str, ...] = (), groups: tuple[str, ...] = (ASG,)
) -> dict[str, Any]:
    return {
        "nodegroupName": name,
        "status": "DEGRADED" if issues else "ACTIVE",
        "labels": {"moerl.io/pool": pool},
        "scalingConfig": {"minSize": 0, "maxSize": 8, "desiredSize": 0},
        "resources": {"autoScalingGroups": [{"name": group} for group in groups]},
        "health": {"issues": [{"code": "AsgInstanceLaunchFailures", "message": text} for text in issues]},
    }


@dataclass
class Region:
    """One cluster's node groups and their instances; time passes only while something sleeps."""

    node_groups: dict[str, dict[str, Any]]
    in_service: list[int] = field(default_factory=lambda: [0])
    """By poll; the last value stays."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """(second, message) of each failed launch; seconds before 0 are failures of an earlier attempt."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.polls = 0
        self.eks, self.eks_calls = scripted(
            "eks",
            {
                "ListNodegroups": self._list,
                "DescribeNodegroup": lambda asked: {"nodegroup": self.node_groups[asked["nodegroupName"]]},
                "UpdateNodegroupConfig": lambda _: {},
            },
        )
        self.autoscaling, self.autoscaling_calls = scripted(
            "autoscaling",
            {
                "DescribeAutoScalingGroups": self._groups,
                "DescribeScalingActivities": self._activities,
                "CreateOrUpdateTags": lambda _: {},
            },
        )

    def _list(self, asked: dict[str, Any]) -> dict[str, Any]:
        names = list(self.node_groups)
        first = asked.get("nextToken") is None
        return (
            {"nodegroups": names[:1], "nextToken": "more"}
            if first and len(names) > 1
            else {"nodegroups": names[first:]}
        )

    def _groups(self, asked: dict[str, Any]) -> dict[str, Any]:
        count = self.in_service[min(self.polls, len(self.in_service) - 1)]
        self.polls += 1
        states = ["InService"] * count + ["Pending", "Terminating"]
        instances = [
            {
                "InstanceId": f"i-{number}",
                "AvailabilityZone": "us-west-2b",
                "LifecycleState": state,
                "HealthStatus": "Healthy",
                "ProtectedFromScaleIn": False,
            }
            for number, state in enumerate(states)
        ]
        group = {
            "AutoScalingGroupName": asked["AutoScalingGroupNames"][0],
            "MinSize": 0,
            "MaxSize": 8,
            "DesiredCapacity": 8,
            "DefaultCooldown": 300,
            "AvailabilityZones": ["us-west-2b"],
            "HealthCheckType": "EC2",
            "CreatedTime": "2026-11-29",
            "Instances": instances,
        }
        return {"AutoScalingGroups": [group]}

    def _activities(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Newest first, as AWS answers."""
        seen = [(second, text) for second, text in self.failures if second <= self.seconds]
        made = [
            {
                "ActivityId": f"at-{second}",
                "AutoScalingGroupName": asked["AutoScalingGroupName"],
                "Cause": "difference between desired and actual capacity",
                "StartTime": "2026-11-29",
                "StatusCode": "Failed",
                "StatusMessage": text,
            }
            for second, text in reversed(seen)
        ]
        return {"Activities": [*made, {**made[0], "ActivityId": "ok", "StatusCode": "Successful"}] if made else []}

    def scale(self, plan: Plan, pool: str, nodes: int, *, minutes: float = 20) -> tuple[ScaleResult, list[Progress]]:
        reports: list[Progress] = []

        def sleep(seconds: float) -> None:
            self.seconds += seconds

        result = pools.scale(
            plan,
            plan.pool(pool),
            nodes,
            eks=self.eks,
            autoscaling=self.autoscaling,
            timeout_seconds=minutes * 60,
            sleep=sleep,
            now=lambda: self.seconds,
            report=reports.append,
        )
        return result, reports


@pytest.fixture
def region() -> Callable[..., Region]:
    """`region(in_service=..., failures=...)`: the trainer's node group beside two others."""

    def make(**settings: Any) -> Region:
        groups = {"system-1": described("system-1", "system"), GROUP: described(GROUP, "trainer")}
        return Region({**groups, "rollout-1": described("rollout-1", "rollout")}, **settings)

    return make


def test_a_pool_is_scaled_by_one_update_and_waited_for(plan: Plan, region: Callable[..., Region]) -> None:
    live = region(in_service=[0, 3, 8])
    result, reports = live.scale(plan, "trainer", 8)
    assert (result.outcome, result.node_group, result.pool) == ("reached", GROUP, "trainer")
    assert [report.in_service for report in reports] == [0, 3, 8]
    assert {report.wanted for report in reports} == {8}
    assert [asked for operation, asked in live.eks_calls if operation == "UpdateNodegroupConfig"] == [
        {
            "clusterName": "p6-b200",
            "nodegroupName": GROUP,
            "scalingConfig": {"minSize": 0, "maxSize": 8, "desiredSize": 8},
        }
    ]
    assert live.seconds == 2 * pools.POLL_SECONDS


def test_scaling_down_waits_until_the_nodes_are_gone(plan: Plan, region: Callable[..., Region]) -> None:
    result, reports = region(in_service=[8, 2, 0]).scale(plan, "trainer", 0)
    assert result.outcome == "reached"
    assert len(reports) == 3


def test_a_wait_that_runs_out_says_why_and_does_not_go_on(plan: Plan, region: Callable[..., Region]) -> None:
    live = region(
        in_service=[5], failures=[(-60, "an older failure"), (20, NO_CAPACITY), (100, "Second. " + NO_CAPACITY)]
    )
    result, reports = live.scale(plan, "trainer", 8, minutes=2)
    assert result.outcome == "timed-out"
    assert result.last.in_service == 5
    assert result.last.problems == (f"at-20: {NO_CAPACITY}", f"at-100: Second. {NO_CAPACITY}")
    assert live.seconds == 120
    first_seen = next(report for report in reports if report.problems)
    assert first_seen == reports[2], "shown at the first look after it happened, not at the end"


def test_a_health_issue_of_the_node_group_is_shown_first(plan: Plan, region: Callable[..., Region]) -> None:
    live = region(in_service=[0], failures=[(10, NO_CAPACITY)])
    live.node_groups[GROUP] = described(GROUP, "trainer", issues=("no capacity in us-west-2b",))
    result, _ = live.scale(plan, "trainer", 8, minutes=1)
    assert result.last.problems == ("AsgInstanceLaunchFailures: no capacity in us-west-2b", f"at-10: {NO_CAPACITY}")


def test_a_fixed_pool_is_refused_before_anything_is_asked(region: Callable[..., Region]) -> None:
    live = region()
    with pytest.raises(PoolError, match=r"pool trainer is fixed at 16 nodes by its file; change `nodes` there"):
        live.scale(unpinned_plan_of("reference-p5en"), "trainer", 8)
    assert live.eks_calls == live.autoscaling_calls == []


@pytest.mark.parametrize("nodes", [-1, 1, 9])
def test_a_size_outside_the_files_range_is_refused(nodes: int, plan: Plan, region: Callable[..., Region]) -> None:
    live = region()
    trainer = replace(plan.pool("trainer"), size=SizePlan(min=2, max=8, desired=None))
    with pytest.raises(PoolError, match=f"{nodes} nodes: pool trainer goes from 2 to 8; change its file first"):
        live.scale(replace(plan, pools=(trainer,)), "trainer", nodes)
    assert live.eks_calls == []


def test_a_pool_whose_stack_is_not_deployed_is_refused(plan: Plan, region: Callable[..., Region]) -> None:
    live = region()
    del live.node_groups[GROUP]
    with pytest.raises(PoolError, match=r"cluster p6-b200 has no node group for pool trainer; deploy its stack"):
        live.scale(plan, "trainer", 1)
    assert not [operation for operation, _ in live.eks_calls if operation.startswith("Update")]


def test_two_groups_of_one_pool_are_refused_by_name(plan: Plan, region: Callable[..., Region]) -> None:
    live = region()
    live.node_groups["trainer-old"] = described("trainer-old", "trainer")
    with pytest.raises(PoolError, match=rf"2 node groups \({GROUP}, trainer-old\).*finish a replacement first"):
        live.scale(plan, "trainer", 1)
    assert not [operation for operation, _ in live.eks_calls if operation.startswith("Update")]


def test_tags_reach_the_group_with_the_files_own_alone_passed_on_to_instances(region: Callable[..., Region]) -> None:
    plan, live = unpinned_plan_of("reference-p5en"), region()
    name, tags = pools.tag(plan, plan.pool("rollout"), eks=live.eks, autoscaling=live.autoscaling)
    ((operation, asked),) = live.autoscaling_calls
    assert operation == "CreateOrUpdateTags"
    assert {(tag["ResourceId"], tag["ResourceType"]) for tag in asked["Tags"]} == {(ASG, "auto-scaling-group")}
    own = {"moerl:environment": "reference-p5en", "team": "rl"}
    passed_on = {tag["Key"]: tag["Value"] for tag in asked["Tags"] if tag["PropagateAtLaunch"]}
    kept = {tag["Key"]: tag["Value"] for tag in asked["Tags"] if not tag["PropagateAtLaunch"]}
    assert passed_on == own
    assert kept == plan.pool("rollout").scaler_tags
    template = "k8s.io/cluster-autoscaler/node-template"
    for key, value in {
        f"{template}/label/moerl.io/pool": "rollout",
        f"{template}/taint/moerl.io/role": "rollout:NoSchedule",
        f"{template}/taint/nvidia.com/gpu": "true:NoSchedule",
        f"{template}/resources/nvidia.com/gpu": "8",
        f"{template}/resources/vpc.amazonaws.com/efa": "16",
    }.items():
        assert kept[key] == value
    assert (name, tags) == (ASG, {**kept, **own})


@pytest.mark.parametrize("groups", [(), (ASG, "another")])
def test_a_node_group_without_exactly_one_scaling_group_gets_no_tags(
    groups: tuple[str, ...], plan: Plan, region: Callable[..., Region]
) -> None:
    live = region()
    live.node_groups[GROUP] = described(GROUP, "trainer", groups=groups)
    with pytest.raises(PoolError, match=f"has {len(groups)} Auto Scaling groups; expected one"):
        pools.tag(plan, plan.pool("trainer"), eks=live.eks, autoscaling=live.autoscaling)
    assert live.autoscaling_calls == []
