"""The names that an image is checked for are those that the rendered pods pass to it."""

from __future__ import annotations

import json

import pytest

from k8s.charts import rollout, trainer
from k8s.flags.rendered import engine_flag_names, trainer_flag_names
from tests.k8s.renders import outputs_of
from tests.shipped import IMAGE, SHIPPED, plan_of

BASELINE = {
    "software": "baseline",
    "workload.rollout.precision": "bf16",
    "workload.trainer.expert_parallel": 8,
    "checkpoints.scratch": "fsx",
}


def flags(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_trainers_names_are_those_of_its_config_map(name: str) -> None:
    plan = plan_of(name)
    (config,) = (
        item for item in trainer.objects(plan, image=IMAGE, outputs=outputs_of(plan)) if item["kind"] == "ConfigMap"
    )
    assert set(trainer_flag_names(plan)) == flags(json.loads(config["data"][trainer.FLAGS_FILE]))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_engines_names_are_those_of_its_containers(name: str) -> None:
    plan = plan_of(name)
    wanted: set[str] = set()
    for fleet in rollout.objects(plan, image=IMAGE):
        if fleet["kind"] == "LeaderWorkerSet":
            pod = fleet["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
            (engine,) = (item for item in pod["initContainers"] if item["name"] == "engine")
            variables = {item["name"] for item in engine["env"]}
            wanted |= flags(engine["args"]) | {name for name in variables if name.startswith("SGLANG_")}
    assert wanted
    assert set(engine_flag_names(plan)) == wanted


def test_the_baselines_trainer_is_slimes() -> None:
    names = trainer_flag_names(plan_of("starter-p5en", BASELINE))
    assert "--debug-train-only" in names
    assert "--sglang-config" not in names
