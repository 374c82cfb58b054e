"""Scaling: what is scaled exists, the bounds are the pool's, and what is in flight counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra.config.plan import Plan
from k8s.charts import rollout, scaling, workers
from k8s.manifest import Object
from tests.shipped import IMAGE, SHIPPED, plan_of


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
        assert queue_length(spec) == planned.engine.tasks_max
        (trigger,) = spec["triggers"]
        assert trigger["metadata"]["scaleOnInFlight"] == "true"
        assert trigger["metadata"]["queueURL"] == plan.queue.task_url


def test_a_queue_length_of_the_largest_fleet_fills_it() -> None:
    """As many tasks as all engines take at once ask for all engines, and one task for one."""
    plan = plan_of("reference-p5en")
    (planned,) = plan.workload.rollouts
    each = queue_length(scaled(plan)["engines-rollout"])
    assert -(-planned.engine.tasks_max * planned.geometry.engines_max // each) == planned.geometry.engines_max


def test_pools_that_share_the_queue_share_its_length() -> None:
    plan = plan_of("reference-p5en")
    (planned,) = plan.workload.rollouts
    pool = replace(plan.pool("rollout"), name="steady")
    second = replace(planned, pool="steady")
    both = replace(plan, pools=(*plan.pools, pool), workload=replace(plan.workload, rollouts=(planned, second)))
    lengths = [queue_length(scaled(both)[name]) for name in ("engines-rollout", "engines-steady")]
    assert lengths == [2 * planned.engine.tasks_max] * 2


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
