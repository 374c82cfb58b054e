"""Numbers come from plan.json as the render writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s.charts import run_config
from k8s.flags.sglang import engine_command
from k8s.flags.sglang_rules import parse
from moerl_runtime import plan as plans
from moerl_runtime.agent import settings
from moerl_runtime.faults import InputFault
from tests.shipped import SHIPPED, plan_of


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_plan_has_all_that_an_agent_needs(name: str, tmp_path: Path) -> None:
    plan = plan_of(name)
    (config,) = run_config.objects(plan)
    (tmp_path / "plan.json").write_text(config["data"]["plan.json"], encoding="utf-8")
    document = plans.load(tmp_path / "plan.json")
    for rollout in plan.workload.rollouts:
        found = settings.read(document, rollout.pool, takes_tasks=True)
        assert found.lease_seconds == plan.queue.visibility_seconds
        assert found.tasks_max == rollout.engine.tasks_max
        assert found.requests_max == rollout.engine.running_requests_max
        assert found.drain_seconds == rollout.engine.drain_budget_seconds
        assert found.group_size == rollout.pods.pods_per_group
        command = parse(engine_command(plan, rollout, model_path="/m", jit_path="/j").flags)
        flags = {"--" + name.replace("_", "-"): str(value) for name, value in found.engine_arguments.items()}
        defaults = {"--dp-size": "1"}
        assert flags.items() <= (defaults | command).items(), "what the chart asks SGLang for"
        assert len(flags) == 4 + ("--deepep-v2-mode" in command)
        # What ends a drain has to fit into it, and a lease has to outlast what may delay its extension.
        budget = found.drain_seconds
        assert budget * settings.WORK_SHARE + settings.GIVE_BACK_SECONDS < budget * settings.STOP_SHARE
        assert found.poll_seconds < budget * settings.WORK_SHARE
        assert found.lease_seconds / 2 > 30


def test_an_engine_without_expert_parallelism_may_have_none(tmp_path: Path) -> None:
    plan = plan_of("starter-p5en", {"workload.rollout.expert_parallel": 1, "workload.rollout.precision": "bf16"})
    (config,) = run_config.objects(plan)
    (tmp_path / "plan.json").write_text(config["data"]["plan.json"], encoding="utf-8")
    found = settings.read(plans.load(tmp_path / "plan.json"), "rollout", takes_tasks=True).engine_arguments
    assert found == {"tp_size": 8, "ep_size": 1, "dp_size": 1, "moe_a2a_backend": "none"}


def test_a_pool_without_a_rollout_is_named(tmp_path: Path) -> None:
    (config,) = run_config.objects(plan_of("reference-p5en"))
    path = tmp_path / "plan.json"
    path.write_text(config["data"]["plan.json"], encoding="utf-8")
    with pytest.raises(InputFault, match="trainer"):
        settings.read(plans.load(path), "trainer", takes_tasks=True)


def test_a_plan_of_another_release_is_refused_and_not_guessed_at(tmp_path: Path) -> None:
    (config,) = run_config.objects(plan_of("reference-p5en"))
    document = json.loads(config["data"]["plan.json"])
    del document["workload"]["rollouts"][0]["engine"]["drain_budget_seconds"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputFault, match="drain_budget_seconds"):
        settings.read(plans.load(path), "rollout", takes_tasks=True)


def test_backoff_grows_and_has_an_end() -> None:
    waits = [settings.backoff(tries) for tries in range(20)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (settings.BACKOFF_SECONDS, settings.BACKOFF_SECONDS_MAX)
