"""The smoke job reads the real plan, with the same queues and buckets and engines of one tiny pod."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from moerl_runtime import plan
from moerl_runtime.agent import settings
from moerl_runtime.cli import main
from moerl_runtime.smoke import job, task
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.trainer.prompts import Columns, parse
from moerl_runtime.workers.buffer_client import urls
from tests.shipped import SHIPPED, plan_of


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_plan_makes_a_smoke_job(name: str, tmp_path: Path) -> None:
    document = json.loads(json.dumps(plan_of(name).document()))
    for rollout in document["workload"]["rollouts"]:
        pool = rollout["pool"]
        path = job.write_plan(plan.Node(document, ""), pool, tmp_path / f"{pool}.json")
        made = plan.load(path)
        assert made["queue"]["task_url"].text == document["queue"]["task_url"]
        assert made["names"].value == document["names"]
        found = settings.read(made, pool, takes_tasks=True)
        assert (found.group_size, found.tasks_max, found.requests_max) == (1, job.TASKS_MAX, job.REQUESTS_MAX)
        assert found.lease_seconds == job.LEASE_SECONDS
        assert found.drain_seconds == job.DRAIN_SECONDS
        local = asdict(EngineSettings())
        assert found.engine_arguments == {name: local[name] for name in found.engine_arguments}
        assert len(found.engine_arguments) == 4
        assert urls(made) == []
        batch = made["workload"]["batch"]
        assert batch["groups"].number == job.GROUPS
        assert batch["window_groups"].number == job.GROUPS * batch["staleness_versions"].number
    assert document == json.loads(json.dumps(plan_of(name).document())), "the plan itself is as it was"


def test_the_prompt_file_is_one_that_the_trainer_reads() -> None:
    rows = parse(job.prompt_lines().encode(), Columns(prompt="prompt", label="label"))
    assert len(rows) == job.PROMPTS
    for row in rows:
        assert isinstance(row.prompt, str)
        assert row.grader == task.GRADER
        assert row.label == task.label(int(row.prompt[0]))


def test_a_run_that_could_be_a_real_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_of(SHIPPED[0]).document()))
    assert main(["smoke", "trainer", "--plan", str(path), "--run", "policy-1"], variables={}) == 2
    assert "could be a real run" in capsys.readouterr().err


def test_the_torch_engine_needs_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "engine", "--listen", "127.0.0.1:0", "--model", "torch"], variables={}) == 2
    assert "--weights" in capsys.readouterr().err
