"""Every pod that runs preflight or a bench is one that its own checks would pass: same devices, memory and variables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE
from moerl_runtime import efa_exporter, load_gdrdrv
from moerl_runtime.bench import cli
from moerl_runtime.bench.cli import settings_of
from moerl_runtime.bench.planned import address
from moerl_runtime.bench.settings import INDEX_VARIABLE
from moerl_runtime.plan import Node as Document
from moerl_runtime.preflight import cli as preflight
from moerl_runtime.preflight.cli import ADDRESS_VARIABLE
from moerl_runtime.preflight.collect import collect
from moerl_runtime.preflight.expected import expected
from moerl_runtime.preflight.judge import judge
from tests.k8s.renders import rendered
from tests.shipped import SHIPPED, plan_of

Spec = dict[str, Any]


def pod_specs(value: Any) -> Iterator[Spec]:
    """Every pod spec in a manifest, whatever kind it is of."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for item in value.values():
            yield from pod_specs(item)
    elif isinstance(value, list):
        for item in value:
            yield from pod_specs(item)


def containers(name: str, *command: str) -> list[tuple[Spec, Spec, bool]]:
    """(pod, container, whether it is of a job) of those that run `moerl_runtime COMMAND`."""
    wanted = ["python", "-m", "moerl_runtime", *command]
    return [
        (pod, container, item["kind"] == "Job")
        for file in rendered(name).files
        for item in file.objects
        for pod in pod_specs(item)
        for container in (*pod.get("initContainers", []), *pod["containers"])
        if container.get("command", [])[: len(wanted)] == wanted
    ]


def document(name: str) -> Document:
    return Document(json.loads(json.dumps(plan_of(name).document())), "")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_pod_that_preflight_runs_in_has_what_preflight_asks_for(name: str, tmp_path: Path) -> None:
    found = containers(name, "preflight", "node")
    assert {job for _, _, job in found} == {True, False}
    for pod, container, job in found:
        pool = container["args"][container["args"].index("--pool") + 1]
        needs = expected(document(name), pool, whole_node=job)
        limits = container["resources"]["limits"]
        assert int(limits.get(GPU_RESOURCE, 0)) == needs.gpus
        assert int(limits.get(EFA_RESOURCE, 0)) == needs.pod_efa
        assert limits.get(HUGE_PAGES_RESOURCE, "0Mi") == f"{needs.huge_pages_mib}Mi"
        (shm,) = (volume for volume in pod["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"]["sizeLimit"] == f"{needs.shm_mib}Mi"
        variables = {item["name"]: item.get("value", "") for item in container["env"]}
        facts = replace(collect(tmp_path, run=lambda *_: None, variables=variables), shm_bytes=needs.shm_mib * 2**20)
        checks = {check.name: check for check in judge(facts, needs)}
        assert checks["shared memory"].status == "ok"
        assert ("communication variables" in checks) == bool(needs.pod_efa)
        for about in ("communication variables", "GIN variables", "cuMem"):
            assert about not in checks or checks[about].status == "ok", checks[about].line()


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("kind", ["nccl", "deepep"])
def test_a_bench_job_is_one_that_the_image_accepts(name: str, kind: str) -> None:
    for _, container, job in containers(name, "bench", kind):
        assert job
        parser = argparse.ArgumentParser()
        cli.register(parser.add_subparsers())
        arguments = parser.parse_args(["bench", kind, *container["args"]])
        settings = settings_of(arguments, document(name), {INDEX_VARIABLE: "1"})
        assert settings.ranks_per_node == int(container["resources"]["limits"][GPU_RESOURCE])
        assert settings.links.efa_devices == int(container["resources"]["limits"].get(EFA_RESOURCE, 0))
        assert settings.node == 1
        assert settings.cases if kind == "deepep" else settings.cases == ()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_preflight_is_one_that_the_image_accepts_for_as_many_nodes_as_the_plan_has_together(name: str) -> None:
    parser = argparse.ArgumentParser()
    preflight.register(parser.add_subparsers())
    for part in ("node", "fabric"):
        for _, container, job in containers(name, "preflight", part):
            arguments = parser.parse_args(["preflight", part, *container["args"]])
            needs = expected(document(name), arguments.pool, whole_node=job)
            assert (arguments.service is not None) == (needs.together_nodes > 1 and (job or part == "fabric"))
            if arguments.service:
                assert arguments.nodes == needs.together_nodes
                assert address(arguments.service)[1] in [port["containerPort"] for port in container["ports"]]
                assert ADDRESS_VARIABLE in {item["name"] for item in container["env"]}


def test_every_shipped_trainer_proves_its_links_before_it_starts() -> None:
    for name in SHIPPED:
        plan = plan_of(name)
        assert plan.workload.trainer.prove_fabric
        assert len(containers(name, "preflight", "fabric")) == 1


def test_shipped_environments_have_bench_jobs_of_both_kinds() -> None:
    assert containers("reference-p5en", "bench", "nccl")
    assert containers("reference-p5en", "bench", "deepep")


@pytest.mark.parametrize("module", [efa_exporter, load_gdrdrv])
def test_what_the_daemonsets_ask_for_is_what_these_commands_take(module: Any) -> None:
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    ((_, container, _),) = containers("reference-p5en", name)
    parser = argparse.ArgumentParser()
    module.register(parser.add_subparsers())
    arguments = parser.parse_args([name, *container["args"]])
    assert callable(arguments.handler)
