"""The quota lets the whole run in, covers every resource that a pod names, and refuses what no node can take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from k8s.charts import quotas
from k8s.pods import quantity
from tests.shipped import SHIPPED, plan_of


def number(text: str) -> int:
    """The number of a quantity; each resource is written in one unit throughout."""
    return int(text.removesuffix("m").removesuffix("Mi").removesuffix("Gi"))


def hard(plan: Plan) -> dict[str, str]:
    """All bounds; of those that two quotas have, the one for everything but rollouts."""
    of_run, *others = [item["spec"]["hard"] for item in quotas.objects(plan) if item["kind"] == "ResourceQuota"]
    return {key: bound for quota in (*others, of_run) for key, bound in quota.items()}


def whole_run(plan: Plan) -> Iterator[tuple[PodResources, int]]:
    """Every pod of the run at its largest, with its count."""
    work = plan.workload
    yield work.trainer.pods.head, 1
    yield work.trainer.pods.worker, work.trainer.workers
    for rollout in work.rollouts:
        pods = rollout.geometry.engines_max * rollout.pods.pods_per_group
        yield rollout.pods.agent, pods
        yield rollout.pods.engine, pods
    for worker in work.cpu_workers:
        yield worker.pod, worker.replicas_max


def requested(plan: Plan) -> Counter[str]:
    total: Counter[str] = Counter()
    for resources, count in whole_run(plan):
        for name, text in quantity(resources).items():
            total[name] += count * number(text)
    return total


@pytest.mark.parametrize("name", SHIPPED)
def test_the_whole_run_fits_and_all_it_names_is_covered(name: str) -> None:
    plan = plan_of(name)
    for resource, wanted in requested(plan).items():
        assert wanted <= number(hard(plan)[f"requests.{resource}"]), resource


@pytest.mark.parametrize("name", SHIPPED)
def test_one_node_more_than_the_pools_have_is_too_much(name: str) -> None:
    plan = plan_of(name)
    for resource in ("nvidia.com/gpu", "vpc.amazonaws.com/efa"):
        assert requested(plan)[resource] == number(hard(plan)[f"requests.{resource}"])


def test_units_are_those_of_the_pods() -> None:
    plan = plan_of("reference-p5en")
    for resource, text in quantity(plan.workload.trainer.pods.worker).items():
        assert hard(plan)[f"requests.{resource}"].lstrip("0123456789") == text.lstrip("0123456789"), resource


def test_limits_of_cpu_memory_and_storage_equal_their_requests() -> None:
    quota = hard(plan_of("p5"))
    limited = {key.removeprefix("limits.") for key in quota if key.startswith("limits.")}
    assert limited == {"cpu", "memory", "ephemeral-storage"}
    assert all(quota[f"limits.{key}"] == quota[f"requests.{key}"] for key in limited)


def test_a_resource_that_no_pool_has_is_refused_not_left_open() -> None:
    plan = plan_of("starter-p5en")
    without = replace(plan, pools=tuple(replace(pool, efa_per_node=0, huge_pages_mib=0) for pool in plan.pools))
    assert hard(without)["requests.vpc.amazonaws.com/efa"] == "0"
    assert hard(without)["requests.hugepages-2Mi"] == "0Mi"


def test_nothing_of_the_run_opens_itself_to_the_outside() -> None:
    quota = hard(plan_of("starter-p5en"))
    assert (quota["services.loadbalancers"], quota["services.nodeports"]) == ("0", "0")


@pytest.mark.parametrize("name", SHIPPED)
def test_largest_pod_is_admitted_and_the_nominal_node_is_not(name: str) -> None:
    plan = plan_of(name)
    (limits,) = quotas.objects(plan)[-1]["spec"]["limits"]
    assert limits["type"] == "Pod"
    worker = plan.workload.trainer.pods.worker
    assert worker.memory_mib <= number(limits["max"]["memory"])
    assert worker.cpu_millis <= number(limits["max"]["cpu"])
    assert number(limits["max"]["memory"]) < 2048 * 1024
    assert number(limits["max"]["cpu"]) < plan.pool(plan.workload.trainer.pool).vcpus_per_node * 1000


def test_charges_of_rollouts_never_count_against_the_trainer() -> None:
    plan = plan_of("reference-p5en")
    of_run, of_rollouts, shared = (item["spec"] for item in quotas.objects(plan)[:3])
    (run_scope,), (rollout_scope,) = (spec["scopeSelector"]["matchExpressions"] for spec in (of_run, of_rollouts))
    assert run_scope == {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["moerl-rollout"]}
    assert rollout_scope == {"scopeName": "PriorityClass", "operator": "In", "values": ["moerl-rollout"]}
    assert of_rollouts["hard"]["requests.nvidia.com/gpu"] == str((32 + 8) * 8)
    assert "scopeSelector" not in shared
