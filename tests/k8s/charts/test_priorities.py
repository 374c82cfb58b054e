"""The order of priorities, and that no engine is ever pushed aside for a pod of the run."""

from __future__ import annotations

from k8s.charts import priorities
from k8s.names import ROLLOUT_PRIORITY, SYSTEM_PRIORITY, TRAINER_PRIORITY, WORKER_PRIORITY
from tests.shipped import plan_of

CLASSES = {item["metadata"]["name"]: item for item in priorities.objects(plan_of("reference-p5en"))}
HIGHEST_FIRST = (SYSTEM_PRIORITY, TRAINER_PRIORITY, WORKER_PRIORITY, ROLLOUT_PRIORITY)
USER_LIMIT = 1_000_000_000


def test_system_goes_before_trainer_before_worker_before_rollout() -> None:
    values = [CLASSES[name]["value"] for name in HIGHEST_FIRST]
    assert values == sorted(set(values), reverse=True)
    assert CLASSES.keys() == set(HIGHEST_FIRST)
    assert values[0] <= USER_LIMIT
    assert values[-1] > 0


def test_workers_and_rollouts_preempt_nobody() -> None:
    never = {name for name, item in CLASSES.items() if item["preemptionPolicy"] == "Never"}
    assert never == {WORKER_PRIORITY, ROLLOUT_PRIORITY}


def test_no_class_is_given_to_pods_that_name_none() -> None:
    assert not any(item["globalDefault"] for item in CLASSES.values())
