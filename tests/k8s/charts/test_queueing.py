"""Kueue's queue: whole pools, everything that any pod of the plan requests, and one stock for trainer and jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import jsonschema_rs
import pytest

from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.local.schemas import local_schemas
from k8s.charts import queueing
from k8s.charts.priorities import CLASSES
from k8s.checks.quantities import quantity as parsed
from k8s.manifest import Object
from k8s.pods import quantity, queued
from k8s.schemas import served_schemas
from tests.shipped import SHIPPED, plan_of

EACH = pytest.mark.parametrize("name", SHIPPED)


def of_kind(plan: Plan, kind: str) -> list[Object]:
    return [item for item in queueing.objects(plan) if item["kind"] == kind]


def group(plan: Plan) -> Object:
    (queue,) = of_kind(plan, "ClusterQueue")
    (only,) = queue["spec"]["resourceGroups"]
    return only  # type: ignore[no-any-return]


def quota(plan: Plan, pool: str) -> dict[str, str]:
    (found,) = (entry for entry in group(plan)["flavors"] if entry["name"].partition(".")[0] == pool)
    return {entry["name"]: entry["nominalQuota"] for entry in found["resources"]}


def of_the_plan(plan: Plan) -> Iterator[tuple[str, PodResources, int]]:
    """(pool, pod, most pods) of what may be queued."""
    trainer = plan.workload.trainer
    yield trainer.pool, trainer.pods.worker, trainer.workers
    yield trainer.pool, trainer.pods.head, 1
    for pool, pod in trainer_jobs(plan):
        yield pool, pod, plan.pool(pool).size.max


def trainer_jobs(plan: Plan) -> Iterator[tuple[str, PodResources]]:
    yield from plan.workload.node_jobs.items()


@EACH
def test_b45_c8_every_resource_that_a_pod_requests_is_covered(name: str) -> None:
    plan = plan_of(name)
    covered = group(plan)["coveredResources"]
    for _, pod, _ in of_the_plan(plan):
        assert set(quantity(pod)) <= set(covered)
    for worker in plan.workload.cpu_workers:
        assert set(quantity(worker.pod)) <= set(covered)
    assert {"vpc.amazonaws.com/efa", "hugepages-2Mi", "ephemeral-storage"} <= set(covered)
    assert tuple(covered) == queueing.covered_resources(plan)


def test_b45_a_resource_that_only_one_pod_of_the_plan_requests_is_covered() -> None:
    """Wherever the pod stands in the plan: deep in a tuple, or in a mapping."""
    plan = plan_of("starter-p5en")
    bare = PodResources(cpu_millis=1000, memory_mib=1024)
    work = plan.workload
    trainer = replace(
        work.trainer, pods=replace(work.trainer.pods, head=bare, worker=bare, submitter=bare, uploader=bare)
    )
    rollouts = tuple(replace(one, pods=replace(one.pods, agent=bare, engine=bare)) for one in work.rollouts)
    workers = tuple(replace(one, pod=bare) for one in work.cpu_workers)
    jobs = MappingProxyType(dict.fromkeys(work.node_jobs, bare))
    plain = replace(work, trainer=trainer, rollouts=rollouts, cpu_workers=workers, node_jobs=jobs)
    assert queueing.covered_resources(replace(plan, workload=plain)) == ("cpu", "memory")
    asking = replace(bare, efa=16)
    in_tuple = replace(plain, cpu_workers=(replace(workers[0], pod=asking),))
    in_mapping = replace(plain, node_jobs=MappingProxyType({"rollout": asking}))
    for changed in (in_tuple, in_mapping):
        covered = queueing.covered_resources(replace(plan, workload=changed))
        assert covered == ("cpu", "memory", "vpc.amazonaws.com/efa")


@EACH
def test_the_quota_of_a_flavor_is_its_pool_at_the_maximum_and_takes_a_whole_workload(name: str) -> None:
    plan = plan_of(name)
    for pool in queueing.queued_pools(plan):
        has = quota(plan, pool.name)
        assert has["nvidia.com/gpu"] == str(pool.size.max * pool.gpus_per_node)
        assert has["vpc.amazonaws.com/efa"] == str(pool.size.max * pool.efa_per_node)
        assert has["cpu"] == f"{pool.size.max * pool.allocatable.cpu_millis}m"
    for pool_name, pod, count in of_the_plan(plan):
        for resource, text in quantity(pod).items():
            need, have = parsed(text), parsed(quota(plan, pool_name)[resource])
            assert need is not None
            assert have is not None
            assert need * count <= have, (pool_name, resource)


@EACH
def test_each_pool_that_runs_work_is_one_flavor_and_the_system_pool_is_none(name: str) -> None:
    plan = plan_of(name)
    working = {pool.name for pool in plan.pools if pool.role != "system"}
    flavors = {item["metadata"]["name"]: item["spec"]["nodeLabels"] for item in of_kind(plan, "ResourceFlavor")}
    assert list(flavors) == [entry["name"] for entry in group(plan)["flavors"]]
    assert next(iter(flavors)) == "trainer"
    assert sorted(labels["moerl.io/pool"] for labels in flavors.values()) == sorted(working)
    assert {len(labels) for labels in flavors.values()} == {1}


def test_a_flavors_content_is_fixed_by_its_name() -> None:
    """Kueue refuses most changes of a flavor with a topology, and the taking away of one."""
    plans = [
        plan_of("reference-p5en", changes)
        for changes in (
            {},
            {"pools.buffer.nodes": {"min": 1, "max": 4}},
            {"pools.environments.nodes": 16},
            {"pools.trainer.taints": [{"key": "example.com/team", "value": "rl", "effect": "NO_SCHEDULE"}]},
            {"pools.trainer.labels": {"example.com/team": "rl"}},
            {"pools.trainer.capacity": {"type": "on_demand"}},
        )
    ]
    specs: dict[str, list[Object]] = {}
    for plan in plans:
        for item in of_kind(plan, "ResourceFlavor"):
            specs.setdefault(item["metadata"]["name"], []).append(item["spec"])
    assert all(spec == found[0] for found in specs.values() for spec in found)
    assert {"buffer", "buffer.autoscaled", "environments", "environments.autoscaled"} <= set(specs)
    assert "topologyName" not in specs["buffer.autoscaled"][0]


def test_both_queues_lead_to_one_stock_and_the_trainer_takes_its_nodes_back() -> None:
    plan = plan_of("reference-p5en")
    (queue,) = of_kind(plan, "ClusterQueue")
    local = {item["metadata"]["name"]: item["spec"]["clusterQueue"] for item in of_kind(plan, "LocalQueue")}
    assert local == {"trainer": queue["metadata"]["name"], "batch": queue["metadata"]["name"]}
    assert queue["spec"]["preemption"] == {"withinClusterQueue": "LowerPriority"}
    values = {item["metadata"]["name"]: item["value"] for item in of_kind(plan, "WorkloadPriorityClass")}
    assert values["trainer"] > values["batch"]


def test_a_queued_workloads_labels_name_a_queue_and_a_priority_class_that_exist() -> None:
    plan = plan_of("reference-p5en")
    queues = {item["metadata"]["name"] for item in of_kind(plan, "LocalQueue")}
    classes = {item["metadata"]["name"]: item["value"] for item in of_kind(plan, "WorkloadPriorityClass")}
    of_pods = {name: value for name, value, _, _ in CLASSES}
    for queue in queues:
        labels = queued(queue)
        assert labels["kueue.x-k8s.io/queue-name"] in queues
        assert classes[labels["kueue.x-k8s.io/priority-class"]] == of_pods[queueing.PRIORITIES[queue]]


def test_only_the_runs_namespace_may_use_the_queue() -> None:
    plan = plan_of("reference-p5en")
    (queue,) = of_kind(plan, "ClusterQueue")
    assert queue["spec"]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "rl"}}
    assert {item["metadata"]["namespace"] for item in of_kind(plan, "LocalQueue")} == {"rl"}


@EACH
def test_objects_fit_the_schema_of_the_pinned_kueue(name: str) -> None:
    resolved = local_schemas(os.environ)
    for item in queueing.objects(plan_of(name)):
        kind = f"kueue.x-k8s.io/{item['kind']}"
        if kind not in resolved.files:
            pytest.skip(f"{kind}: {resolved.missing[kind]}")
        served = served_schemas(resolved.files[kind])
        assert item["apiVersion"] == "kueue.x-k8s.io/v1beta2"
        jsonschema_rs.validator_for(dict(served["v1beta2"])).validate(item)
