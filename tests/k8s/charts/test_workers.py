"""Environment and buffer workers: one a node, restricted, and addressed as their callers are told."""

from __future__ import annotations

from typing import Any

import pytest

from infra.catalog.daemonsets import DAEMONSETS
from infra.config.plan import Plan
from infra.config.pod_plan import daemonset_load
from k8s.charts import workers
from k8s.manifest import Object
from tests.shipped import IMAGE, SHIPPED, plan_of


def made(plan: Plan, kind: str) -> list[Object]:
    return [item for item in workers.objects(plan, image=IMAGE) if item["kind"] == kind]


def pods(plan: Plan) -> list[dict[str, Any]]:
    return [item["spec"]["template"] for kind in ("Deployment", "StatefulSet") for item in made(plan, kind)]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_worker_fills_its_node_and_two_do_not_fit(name: str) -> None:
    plan = plan_of(name)
    for pod in pods(plan):
        pool = plan.pool(pod["metadata"]["labels"]["moerl.io/pool"])
        cpu, memory = daemonset_load(pool, DAEMONSETS)
        (container,) = pod["spec"]["containers"]
        asked = container["resources"]["requests"]
        assert asked == container["resources"]["limits"]
        assert int(asked["cpu"][:-1]) + cpu <= pool.allocatable.cpu_millis < 2 * int(asked["cpu"][:-1])
        assert int(asked["memory"][:-2]) + memory <= pool.allocatable.memory_mib


@pytest.mark.parametrize("name", SHIPPED)
def test_workers_are_restricted_and_without_tokens(name: str) -> None:
    for pod in pods(plan_of(name)):
        (container,) = pod["spec"]["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is context["runAsNonRoot"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not any("hostPath" in volume for volume in pod["spec"]["volumes"])
        assert container["args"][-1].startswith("$(POD_IP):")


@pytest.mark.parametrize("name", SHIPPED)
def test_services_reach_the_port_that_the_worker_listens_on(name: str) -> None:
    plan = plan_of(name)
    for service in made(plan, "Service"):
        (port,) = service["spec"]["ports"]
        chosen = [pod for pod in pods(plan) if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
        assert chosen
        for pod in chosen:
            (container,) = pod["spec"]["containers"]
            named = {each["name"]: each["containerPort"] for each in container["ports"]}
            assert named[port["targetPort"]] == port["port"] == int(container["args"][-1].rsplit(":", 1)[1])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_plan_s_urls_name_pods_and_services_that_are_there(name: str) -> None:
    plan = plan_of(name)
    services = {each["metadata"]["name"]: each["spec"]["ports"][0]["port"] for each in made(plan, "Service")}
    named = {f"http://{service}:{port}" for service, port in services.items()}
    for stateful_set in made(plan, "StatefulSet"):
        spec = stateful_set["spec"]
        named |= {
            f"http://{stateful_set['metadata']['name']}-{ordinal}.{spec['serviceName']}:{services[spec['serviceName']]}"
            for ordinal in range(spec["replicas"])
        }
    told = [url for worker in plan.workload.cpu_workers for url in worker.urls]
    assert set(told) <= named
    assert len(told) == sum(
        worker.replicas_max if worker.role == "buffer" else 1 for worker in plan.workload.cpu_workers
    )


def test_environments_are_scaled_from_outside_and_buffers_are_as_many_as_their_nodes() -> None:
    plan = plan_of("reference-p5en")
    (deployment,), (stateful_set,) = made(plan, "Deployment"), made(plan, "StatefulSet")
    assert "replicas" not in deployment["spec"]
    assert stateful_set["spec"]["replicas"] == plan.pool("buffer").size.max == 2
    (headless,) = [each for each in made(plan, "Service") if each["spec"].get("clusterIP") == "None"]
    assert stateful_set["spec"]["serviceName"] == headless["metadata"]["name"]


def test_a_rolling_update_never_needs_a_second_node() -> None:
    (deployment,) = made(plan_of("reference-p5en"), "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_pools_that_are_not_there_have_no_objects() -> None:
    plan = plan_of("starter-p5en")
    assert made(plan, "StatefulSet") == []
    assert [service["metadata"]["name"] for service in made(plan, "Service")] == ["environment"]
