"""Pods fit beside each other on the node that they are meant for."""

from __future__ import annotations

from datetime import date

import pytest

from infra.catalog import CATALOG
from infra.catalog.allocatable import allocatable
from infra.catalog.daemonsets import DaemonSet
from infra.catalog.facts import Source
from infra.config.pod_plan import daemonset_load, trainer_pods

R, P5, P6, S = "reference-p5en", "p5", "p6-b200", "starter-p5en"
MIXED = {"pools.environments.instance_types": ["c7i.24xlarge", "r7i.8xlarge"]}
SOURCE = Source(title="a test", url="", as_of=date(2026, 1, 1), computed=True)


def daemonset(name: str, cpu: int, memory: int, **only: bool) -> DaemonSet:
    return DaemonSet(name=name, cpu_millis=cpu, memory_mib=memory, source=SOURCE, **only)


EVERYWHERE = daemonset("everywhere", 300, 700)
ON_GPU = daemonset("gpu", 50, 100, gpu_only=True)
ON_EFA = daemonset("efa", 7, 13, efa_only=True)
ALL = (EVERYWHERE, ON_GPU, ON_EFA)


def test_daemonsets_are_counted_where_they_run(planned) -> None:
    plan = planned(S, {"pools.rollout.efa": False})
    assert daemonset_load(plan.pool("trainer"), ALL) == (357, 813)
    assert daemonset_load(plan.pool("rollout"), ALL) == (350, 800)
    assert daemonset_load(plan.pool("environments"), ALL) == (300, 700)


def test_trainer_pods_of_a_p5en_node_by_hand(planned) -> None:
    pool = planned(R).pool("trainer")
    assert (pool.allocatable.cpu_millis, pool.allocatable.memory_mib) == (191_450, 1_980_044)
    pods = trainer_pods(pool, ALL)
    assert (pods.head.gpus, pods.head.efa, pods.head.cpu_millis, pods.head.memory_mib) == (0, 0, 8_000, 48 * 1024)
    # Beside DaemonSets, head, uploader and submitter: 191450 - 357 - 8000 - 4000 - 500 = 178593 and
    # 1980044 - 813 - 48 x 1024 - 16 x 1024 - 1024 = 1912671 = 1867.8 GiB.
    assert (pods.worker.cpu_millis, pods.worker.memory_mib) == (178_000, 1867 * 1024)
    assert (pods.worker.gpus, pods.worker.efa, pods.worker.huge_pages_mib) == (8, 16, 5 * 1024)
    assert pods.worker.shm_mib == 1867 * 1024 // 4


@pytest.mark.parametrize(("base", "changes"), [(R, {}), (P5, {}), (P6, {}), (S, {}), (R, MIXED)])
def test_every_pod_fits_its_node_beside_daemonsets_and_the_others(base, changes, planned) -> None:
    plan = planned(base, changes)
    workload = plan.workload
    trainer = workload.trainer.pods
    loads = [(workload.trainer.pool, [trainer.head, trainer.uploader, trainer.submitter, trainer.worker])]
    loads += [(name, [pod]) for name, pod in workload.node_jobs.items()]
    for rollout in workload.rollouts:
        loads.append((rollout.pool, [rollout.pods.agent, rollout.pods.engine] * rollout.pods.pods_per_node))
    loads += [(worker.pool, [worker.pod]) for worker in workload.cpu_workers]
    assert {name for name, _ in loads} == {pool.name for pool in plan.pools if pool.role != "system"}
    for name, pods in loads:
        pool = plan.pool(name)
        cpu, memory = daemonset_load(pool, CATALOG.daemonsets)
        for instance in map(CATALOG.instances.__getitem__, pool.instance_types):
            node = allocatable(
                instance,
                max_pods=pool.max_pods,
                root_volume_gib=pool.root_volume_gib,
                huge_pages_mib=pool.huge_pages_mib,
            )
            assert sum(pod.cpu_millis for pod in pods) <= node.cpu_millis - cpu
            assert sum(pod.memory_mib for pod in pods) <= node.memory_mib - memory
            assert sum(pod.ephemeral_gib for pod in pods) <= node.ephemeral_gib
            assert sum(pod.gpus for pod in pods) == instance.gpus
            assert sum(pod.efa for pod in pods) in (0, instance.efa_devices)
            assert sum(pod.huge_pages_mib for pod in pods) <= pool.huge_pages_mib
            assert all(pod.cpu_millis > 0 and pod.memory_mib > pod.shm_mib >= 0 for pod in pods)


@pytest.mark.parametrize(
    ("width", "per_node", "per_group", "gpus", "efa"),
    [(16, 1, 2, 8, 16), (8, 1, 1, 8, 16), (4, 2, 1, 4, 0), (2, 4, 1, 2, 0)],
)
def test_an_engine_has_whole_nodes_with_efa_or_shares_one_without(
    width, per_node, per_group, gpus, efa, planned
) -> None:
    changes = {"workload.rollout.gpus_per_engine": width, "workload.rollout.expert_parallel": width}
    (rollout,) = planned(R, changes).workload.rollouts
    pods = rollout.pods
    assert (pods.pods_per_node, pods.pods_per_group) == (per_node, per_group)
    assert (pods.engine.gpus, pods.engine.efa) == (gpus, efa)


def test_huge_pages_are_asked_for_on_fixed_and_block_pools_with_efa_alone(planned) -> None:
    for base in (R, P6):
        workload = planned(base).workload
        assert workload.trainer.pods.worker.huge_pages_mib == 5 * 1024
        assert [rollout.pods.engine.huge_pages_mib for rollout in workload.rollouts] == [0]
    assert planned(S, {"pools.trainer.efa": False}).workload.trainer.pods.worker.huge_pages_mib == 0


def test_a_cpu_pool_has_one_worker_a_node_without_gpus(planned) -> None:
    workers = {worker.pool: worker for worker in planned(R).workload.cpu_workers}
    assert set(workers) == {"environments", "buffer"}
    assert (workers["environments"].replicas_min, workers["environments"].replicas_max) == (0, 16)
    assert (workers["buffer"].replicas_min, workers["buffer"].replicas_max) == (2, 2)
    assert {worker.role for worker in workers.values()} == {"environment", "buffer"}
    assert all((worker.pod.gpus, worker.pod.efa, worker.pod.shm_mib) == (0, 0, 0) for worker in workers.values())
