"""The rollout fleet: order of containers, group, probes, drain, devices, and what broadcast mode changes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

import pytest

from infra.catalog.daemonsets import DAEMONSETS
from infra.config.model_plan import MODELS_PATH
from infra.config.plan import Plan
from infra.config.pod_plan import daemonset_load
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from k8s.charts import rollout, router
from k8s.manifest import Object
from k8s.pods import rdma, restricted
from moerl_runtime.agent import cli
from tests.shipped import IMAGE, SHIPPED, plan_of

SPOT_NOTICE_SECONDS = 120
FOUR_GPUS = {"workload.rollout.gpus_per_engine": 4, "workload.rollout.expert_parallel": 4}
STABLE = {"pools.rollout.nodes": 2, "pools.rollout.capacity": {"type": "on_demand"}}


def fleets(plan: Plan) -> list[Object]:
    made = rollout.objects(plan, image=IMAGE)
    return [item for item in made if item["kind"] == "LeaderWorkerSet"]


def templates(fleet: Object) -> list[tuple[str, dict[str, Any]]]:
    """(role, pod spec) of a group, leader first."""
    group = fleet["spec"]["leaderWorkerTemplate"]
    if "leaderTemplate" not in group:
        return [("leader", group["workerTemplate"]["spec"])]
    return [("leader", group["leaderTemplate"]["spec"]), ("worker", group["workerTemplate"]["spec"])]


def pods_of(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    for fleet in fleets(plan):
        yield from templates(fleet)


def part(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in (*pod["initContainers"], *pod["containers"]) if each["name"] == name]
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_the_agent_is_the_main_container_and_the_engine_a_sidecar_that_outlives_it(name: str) -> None:
    for _, pod in pods_of(plan_of(name)):
        assert [(each["name"], each.get("restartPolicy")) for each in pod["initContainers"]] == [
            ("preflight", None),
            ("fetch", None),
            ("engine", "Always"),
        ]
        assert [each["name"] for each in pod["containers"]] == ["agent"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_group_is_an_engine_and_is_made_anew_as_a_whole_only_where_there_is_more_than_one_pod(name: str) -> None:
    plan = plan_of(name)
    for fleet, planned in zip(fleets(plan), plan.workload.rollouts, strict=True):
        group = fleet["spec"]["leaderWorkerTemplate"]
        assert group["size"] == planned.geometry.nodes_per_engine
        assert group["restartPolicy"] == ("RecreateGroupOnPodRestart" if group["size"] > 1 else "None")
        assert ("leaderTemplate" in group) == (group["size"] > 1)


@pytest.mark.parametrize("name", SHIPPED)
def test_no_replica_count_and_no_disruption_budget(name: str) -> None:
    made = rollout.objects(plan_of(name), image=IMAGE)
    assert {item["kind"] for item in made} == {"LeaderWorkerSet"}
    assert all("replicas" not in item["spec"] for item in made)


def test_only_the_leader_is_probed_and_only_workers_wait_for_its_drain() -> None:
    (leader, worker) = [pod for _, pod in pods_of(plan_of("reference-p5en"))]
    probes = {"startupProbe", "livenessProbe", "readinessProbe"}
    assert set(part(leader, "engine")) & probes == {"startupProbe", "readinessProbe"}
    assert set(part(leader, "agent")) & probes == probes
    assert not any(set(part(worker, name)) & probes for name in ("preflight", "fetch", "engine", "agent"))
    assert part(worker, "agent")["lifecycle"]["preStop"]["exec"]["command"][-3:] == ["await-drain", "--port", "8090"]
    assert "lifecycle" not in part(leader, "agent")
    assert "lifecycle" not in part(worker, "engine")


@pytest.mark.parametrize("name", SHIPPED)
def test_an_engine_has_half_an_hour_to_start_and_nothing_but_its_exit_ends_it(name: str) -> None:
    for role, pod in pods_of(plan_of(name)):
        engine = part(pod, "engine")
        assert "livenessProbe" not in engine
        if role == "leader":
            start = engine["startupProbe"]
            assert start["periodSeconds"] * start["failureThreshold"] >= 1_800


@pytest.mark.parametrize("name", SHIPPED)
def test_an_engine_on_loopback_is_asked_from_inside(name: str) -> None:
    """The kubelet's HTTP and TCP probes go to the pod's address, and with `host` to the node's loopback."""
    for role, pod in pods_of(plan_of(name)):
        engine = part(pod, "engine")
        assert engine["args"][engine["args"].index("--host") + 1] == "127.0.0.1"
        if role == "leader":
            start, ready = engine["startupProbe"], engine["readinessProbe"]
            assert "127.0.0.1:30000/health'" in start["exec"]["command"][-1]
            assert "127.0.0.1:30000/health_generate'" in ready["exec"]["command"][-1]
            assert ready["timeoutSeconds"] > 30


@pytest.mark.parametrize("name", SHIPPED)
def test_drain_and_exit_fit_the_spot_notice(name: str) -> None:
    plan = plan_of(name)
    for fleet, planned in zip(fleets(plan), plan.workload.rollouts, strict=True):
        for _, pod in templates(fleet):
            assert planned.engine.drain_budget_seconds < pod["terminationGracePeriodSeconds"] < SPOT_NOTICE_SECONDS


@pytest.mark.parametrize(("name", "changes"), [*((name, {}) for name in SHIPPED), ("starter-p5en", FOUR_GPUS)])
def test_the_pods_of_a_node_fit_it_and_a_whole_node_gets_all_its_devices(name: str, changes: dict[str, Any]) -> None:
    plan = plan_of(name, changes)
    for fleet, planned in zip(fleets(plan), plan.workload.rollouts, strict=True):
        pool = plan.pool(planned.pool)
        cpu, memory = daemonset_load(pool, DAEMONSETS)
        for _, pod in templates(fleet):
            engine, agent = (part(pod, each)["resources"]["limits"] for each in ("engine", "agent"))
            count = planned.pods.pods_per_node
            assert count * (int(engine["cpu"][:-1]) + int(agent["cpu"][:-1])) + cpu <= pool.allocatable.cpu_millis
            assert (
                count * (int(engine["memory"][:-2]) + int(agent["memory"][:-2])) + memory <= pool.allocatable.memory_mib
            )
            assert int(engine[GPU_RESOURCE]) * count == pool.gpus_per_node
            assert int(engine.get(EFA_RESOURCE, 0)) == (pool.efa_per_node if count == 1 else 0)
            assert "hugepages-2Mi" not in engine


def test_an_engine_smaller_than_a_node_shares_it_without_efa() -> None:
    plan = plan_of("starter-p5en", FOUR_GPUS)
    ((_, pod),) = list(pods_of(plan))
    engine = part(pod, "engine")
    assert engine["resources"]["limits"][GPU_RESOURCE] == "4"
    assert not any(each["name"].startswith("NCCL_NET") for each in engine["env"])


@pytest.mark.parametrize("name", SHIPPED)
def test_only_what_uses_a_device_sees_it_and_only_the_cache_needs_root(name: str) -> None:
    for _, pod in pods_of(plan_of(name)):
        for each in ("fetch", "agent"):
            assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in part(pod, each)["env"]
            assert GPU_RESOURCE not in part(pod, each)["resources"]["limits"]
        assert [part(pod, each)["securityContext"] for each in ("fetch", "engine", "agent")] == [
            rdma(),
            rdma(),
            restricted(),
        ]
        mounts = {mount["mountPath"]: mount for mount in part(pod, "engine")["volumeMounts"]}
        assert mounts[MODELS_PATH]["readOnly"] is True
        assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", SHIPPED)
def test_variables_are_expanded_only_where_kubernetes_does(name: str) -> None:
    """In command and args, out of the container's own environment or LeaderWorkerSet's; never in a probe or a hook."""
    for _, pod in pods_of(plan_of(name)):
        for each in (*pod["initContainers"], *pod["containers"]):
            known = {variable["name"] for variable in each["env"]} | {"LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX"}
            used = set(re.findall(r"\$\((\w+)\)", " ".join((*each["command"], *each["args"]))))
            assert used <= known
            elsewhere = {key: value for key, value in each.items() if key not in ("command", "args")}
            assert "$(" not in str(elsewhere)
            assert "0.0.0.0" not in str(each)  # noqa: S104 - looked for, not bound


def test_preflight_sees_what_the_engine_will() -> None:
    for _, pod in pods_of(plan_of("reference-p5en")):
        preflight, engine = part(pod, "preflight"), part(pod, "engine")
        assert all(preflight[key] == engine[key] for key in ("env", "resources", "securityContext", "image"))


def test_a_worker_reports_to_its_leader_and_a_leader_to_nobody() -> None:
    (leader, worker) = [part(pod, "agent") for _, pod in pods_of(plan_of("reference-p5en"))]
    assert leader["command"][-1] == "lead"
    assert "--leader" not in leader["args"]
    assert worker["command"][-1] == "follow"
    assert worker["args"][-2:] == ["--leader", "$(LWS_LEADER_ADDRESS):8090"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_rebalance_recommendation_is_left_to_eks_unless_the_file_says_otherwise(name: str) -> None:
    assert not [pod for _, pod in pods_of(plan_of(name)) if "--rebalance" in part(pod, "agent")["args"]]


def test_every_agent_of_a_spot_pool_looks_for_a_rebalance_recommendation_that_the_file_asks_for() -> None:
    steady = {
        "role": "rollout",
        "instance_types": ["p5en.48xlarge"],
        "nodes": {"min": 0, "max": 4},
        "capacity": {"type": "on_demand"},
    }
    asked = {"workload.rollout.drain_on_rebalance": True, "pools.steady": steady}
    spot, stable = fleets(plan_of("reference-p5en", asked))
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers())
    for fleet, expected in ((spot, True), (stable, False)):
        for _, pod in templates(fleet):
            agent = part(pod, "agent")
            parsed = parser.parse_args(["agent", agent["command"][-1], *agent["args"]])
            assert parsed.rebalance is expected


@pytest.mark.parametrize(("changes", "asked"), [({}, "enabled"), ({"workload.rollout.backend": "none"}, None)])
def test_gdrcopy_comes_with_device_side_networking(changes: dict[str, Any], asked: str | None) -> None:
    for _, pod in pods_of(plan_of("reference-p5en", changes)):
        for name in ("preflight", "engine"):
            variables = {item["name"]: item.get("value") for item in part(pod, name)["env"]}
            assert variables.get("NVIDIA_GDRCOPY") == asked
            assert ("NCCL_GIN_TYPE" in variables) == (asked is not None)


def test_kernels_are_cached_per_image_and_models_are_not() -> None:
    def paths(image: str) -> set[str]:
        (fleet,) = rollout.objects(plan_of("starter-p5en"), image=image)
        ((_, pod),) = templates(fleet)
        return {volume["hostPath"]["path"].rsplit("/", 1)[1] for volume in pod["volumes"] if "hostPath" in volume}

    assert paths(IMAGE) == {"models", f"jit-{'0' * 12}"}
    assert paths(IMAGE.replace("0" * 64, "a" * 64)) == {"models", f"jit-{'a' * 12}"}


@pytest.mark.parametrize("image", ["repo:latest", "repo@sha256:123", ""])
def test_an_image_without_a_digest_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        rollout.objects(plan_of("starter-p5en"), image=image)


def test_each_pod_goes_to_its_pool_past_any_taint_of_it() -> None:
    plan = plan_of("starter-p5en", {"pools.rollout.taints": [{"key": "team", "value": "rl"}]})
    for _, pod in pods_of(plan):
        assert pod["nodeSelector"] == {"moerl.io/pool": "rollout"}
        assert {taint["key"] for taint in pod["tolerations"]} == {"moerl.io/role", "nvidia.com/gpu", "team"}


def test_several_pools_are_several_fleets() -> None:
    second = {
        "role": "rollout",
        "instance_types": ["p5en.48xlarge"],
        "nodes": {"min": 0, "max": 4},
        "capacity": {"type": "on_demand"},
    }
    names = [fleet["metadata"]["name"] for fleet in fleets(plan_of("starter-p5en", {"pools.steady": second}))]
    assert names == ["engines-rollout", "engines-steady"]


def test_in_broadcast_mode_engines_are_reached_by_router_and_kubelet() -> None:
    (fleet,) = fleets(plan_of("starter-p5en", {**STABLE, "workload.rollout.router": True}))
    ((_, pod),) = templates(fleet)
    engine, agent = part(pod, "engine"), part(pod, "agent")
    assert engine["args"][engine["args"].index("--host") + 1] == "$(POD_IP)"
    assert engine["startupProbe"]["httpGet"] == {"path": "/health", "port": 30000}
    assert agent["args"][-4:] == ["--router", router.URL, "--advertise", "http://$(POD_IP):30000"]
    assert agent["args"][agent["args"].index("--engine") + 1] == "http://$(POD_IP):30000"
