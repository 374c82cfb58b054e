"""Scaling: what is scaled exists, the bounds are the pool's, and what is in flight counts."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config.plan import Plan
from k8s.charts import rollout, scaling, workers
from k8s.manifest import Object
from tests.k8s.flags.test_training import BASELINE, flags_of
from tests.shipped import IMAGE, SHIPPED, Changes, plan_of


def scaled(plan: Plan) -> dict[str, Object]:
    made = scaling.objects(plan)
    return {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "ScaledObject"}


def queue_length(spec: dict[str, Any]) -> int:
    (trigger,) = [each for each in spec["triggers"] if each["type"] == "aws-sqs-queue"]
    return int(trigger["metadata"]["queueLength"])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_scaled_object_has_a_target_without_a_replica_count(name: str) -> None:
    plan = plan_of(name)
    made = (*rollout.objects(plan, image=IMAGE), *workers.objects(plan, image=IMAGE))
    targets = {(item["apiVersion"], item["kind"], item["metadata"]["name"]): item for item in made}
    for spec in scaled(plan).values():
        reference = spec["scaleTargetRef"]
        assert "replicas" not in targets[reference["apiVersion"], reference["kind"], reference["name"]]["spec"]
    wanted = {key[2] for key in targets if key[1] in ("LeaderWorkerSet", "Deployment")}
    assert set(scaled(plan)) == wanted


@pytest.mark.parametrize("name", SHIPPED)
def test_bounds_and_queue_length_are_the_plans(name: str) -> None:
    plan = plan_of(name)
    for planned in plan.workload.rollouts:
        spec = scaled(plan)[rollout.fleet_name(planned)]
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (
            planned.engine.engines_min,
            planned.geometry.engines_max,
        )
        assert queue_length(spec) == planned.queue_length
        (trigger,) = spec["triggers"]
        assert trigger["metadata"]["scaleOnInFlight"] == "true"
        assert trigger["metadata"]["queueURL"] == plan.queue.task_url


STEADY: Changes = {
    "pools.steady": {
        "role": "rollout",
        "instance_types": ["p5en.48xlarge"],
        "nodes": 6,
        "capacity": {"type": "on_demand"},
    }
}
"""A second rollout pool, of another size than the first."""


def started(plan: Plan, tasks: int) -> dict[str, int]:
    """Engines of each fleet that so many tasks in the queue ask for, as KEDA counts them."""
    fleets = {name: spec for name, spec in scaled(plan).items() if name.startswith("engines-")}
    return {name: min(spec["maxReplicaCount"], -(-tasks // queue_length(spec))) for name, spec in fleets.items()}


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in SHIPPED), ("reference-p5en", BASELINE), ("starter-p5en", BASELINE)],
)
def test_the_trainers_window_starts_every_engine(name: str, changes: Changes) -> None:
    """The window that the flags of Miles and slime make: batch times staleness."""
    plan = plan_of(name, changes)
    window = int(flags_of(plan)["--rollout-batch-size"]) * plan.workload.batch.staleness_versions
    assert list(started(plan, window).values()) == [rollout.geometry.engines_max for rollout in plan.workload.rollouts]
    assert set(started(plan, 1).values()) == {1}


def test_pools_of_unlike_sizes_that_share_the_queue_fill_together() -> None:
    plan = plan_of("starter-p5en", STEADY)
    window = plan.workload.batch.window_groups
    assert window == 8 * plan.workload.rollouts[0].engine.tasks_max
    assert started(plan, window) == {"engines-rollout": 2, "engines-steady": 6}
    assert started(plan, window // 2 - 2) == {"engines-rollout": 1, "engines-steady": 3}


def test_keda_reads_the_queue_with_its_own_role() -> None:
    (reader,) = [item for item in scaling.objects(plan_of("p5")) if item["kind"] == "TriggerAuthentication"]
    assert reader["spec"] == {"podIdentity": {"provider": "aws", "identityOwner": "keda"}}
    for spec in scaled(plan_of("p5")).values():
        for trigger in spec["triggers"]:
            if trigger["type"] == "aws-sqs-queue":
                assert trigger["authenticationRef"]["name"] == reader["metadata"]["name"]


def test_something_besides_cpu_can_wake_a_fleet_of_none() -> None:
    for name in SHIPPED:
        for spec in scaled(plan_of(name)).values():
            assert any(trigger["type"] != "cpu" for trigger in spec["triggers"])


def test_scaling_in_is_slower_than_scaling_out() -> None:
    for spec in scaled(plan_of("reference-p5en")).values():
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        down, up = behavior["scaleDown"], behavior["scaleUp"]
        assert down["stabilizationWindowSeconds"] >= 300 > up["stabilizationWindowSeconds"]
        assert down["policies"][0]["value"] < up["policies"][0]["value"]
        assert spec["advanced"]["restoreToOriginalReplicaCount"] is False
