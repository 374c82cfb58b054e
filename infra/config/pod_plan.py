"""What one pod of each kind asks for: the node's allocatable, less its DaemonSets, less what shares the node.

Requests are whole cores and whole GiB, rounded down, so that a node that shows slightly less still takes the pod.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.catalog.daemonsets import DaemonSet
from infra.config.geometry import RolloutGeometry
from infra.config.pool_plan import PoolPlan

GIB = 1024
HEAD_CPU_MILLIS, HEAD_MEMORY_MIB = 8_000, 48 * GIB
"""Ray head with the driver, the rollout manager and the object store's share of the control actors."""
UPLOADER_CPU_MILLIS, UPLOADER_MEMORY_MIB = 4_000, 16 * GIB
"""Checkpoint uploader: multipart uploads of what a save has left on scratch, some gigabytes a second."""
SUBMITTER_CPU_MILLIS, SUBMITTER_MEMORY_MIB = 500, GIB
"""Pod that hands the job to Ray and follows its log."""
AGENT_CPU_MILLIS, AGENT_MEMORY_MIB, AGENT_EPHEMERAL_GIB = 4_000, 16 * GIB, 2
"""Rollout agent: transfers weights in parallel and holds one task's samples in memory."""
POD_HUGE_PAGES_MIB = 5 * GIB
"""What libfabric's EFA provider uses of the 10256 MiB that the driver reserves at boot."""
SHM_SHARE = 4
"""Shared memory is memory of the pod: a quarter of it, enough for NCCL, Ray's object store and data loading."""
EPHEMERAL_PERCENT = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResources:
    """Requests, equal to limits, of one pod's main work."""

    cpu_millis: int
    memory_mib: int
    """Includes `shm_mib`: a memory-backed volume counts against the pod."""
    gpus: int = 0
    efa: int = 0
    huge_pages_mib: int = 0
    shm_mib: int = 0
    ephemeral_gib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPods:
    head: PodResources
    submitter: PodResources
    uploader: PodResources
    """Sidecar of the pods that see a checkpoint's files: every worker with scratch on NVMe, the head with FSx."""
    worker: PodResources


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPods:
    """One pod of an engine group: agent and engine side by side."""

    agent: PodResources
    engine: PodResources
    pods_per_group: int
    pods_per_node: int


def daemonset_load(pool: PoolPlan, daemonsets: tuple[DaemonSet, ...]) -> tuple[int, int]:
    """(CPU in millicores, memory in MiB) that DaemonSets request on a node of the pool."""
    present = [
        daemonset
        for daemonset in daemonsets
        if (pool.is_gpu or not daemonset.gpu_only) and (pool.efa_per_node or not daemonset.efa_only)
    ]
    return sum(item.cpu_millis for item in present), sum(item.memory_mib for item in present)


def trainer_pods(pool: PoolPlan, daemonsets: tuple[DaemonSet, ...]) -> TrainerPods:
    """Every worker leaves room for the head, an uploader and the submitter, which may stand on any node of the pool."""
    cpu, memory = daemonset_load(pool, daemonsets)
    cpu += HEAD_CPU_MILLIS + UPLOADER_CPU_MILLIS + SUBMITTER_CPU_MILLIS
    memory += HEAD_MEMORY_MIB + UPLOADER_MEMORY_MIB + SUBMITTER_MEMORY_MIB
    return TrainerPods(
        head=PodResources(
            cpu_millis=HEAD_CPU_MILLIS,
            memory_mib=HEAD_MEMORY_MIB,
            shm_mib=HEAD_MEMORY_MIB // SHM_SHARE,
            ephemeral_gib=50,
        ),
        uploader=PodResources(cpu_millis=UPLOADER_CPU_MILLIS, memory_mib=UPLOADER_MEMORY_MIB),
        submitter=PodResources(cpu_millis=SUBMITTER_CPU_MILLIS, memory_mib=SUBMITTER_MEMORY_MIB),
        worker=_share(pool, cpu, memory, pods=1, ephemeral_reserve_gib=50, huge=True),
    )


def rollout_pods(pool: PoolPlan, geometry: RolloutGeometry, daemonsets: tuple[DaemonSet, ...]) -> RolloutPods:
    """A group has one pod per node; engines smaller than a node share it, without EFA: a part of its devices breaks
    point-to-point traffic, and such an engine sends none."""
    pods = max(1, geometry.engines_per_node)
    cpu, memory = daemonset_load(pool, daemonsets)
    engine = _share(
        pool,
        cpu + pods * AGENT_CPU_MILLIS,
        memory + pods * AGENT_MEMORY_MIB,
        pods=pods,
        ephemeral_reserve_gib=20,
        huge=False,
    )
    return RolloutPods(
        agent=PodResources(cpu_millis=AGENT_CPU_MILLIS, memory_mib=AGENT_MEMORY_MIB, ephemeral_gib=AGENT_EPHEMERAL_GIB),
        engine=engine,
        pods_per_group=geometry.nodes_per_engine,
        pods_per_node=pods,
    )


def node_job(pool: PoolPlan, daemonsets: tuple[DaemonSet, ...]) -> PodResources:
    """A test or prepare pod that has a GPU node for itself."""
    cpu, memory = daemonset_load(pool, daemonsets)
    return _share(pool, cpu, memory, pods=1, ephemeral_reserve_gib=50, huge=True)


def cpu_worker(pool: PoolPlan, daemonsets: tuple[DaemonSet, ...]) -> PodResources:
    """One worker per node of a CPU pool."""
    cpu, memory = daemonset_load(pool, daemonsets)
    return _share(pool, cpu, memory, pods=1, ephemeral_reserve_gib=10, huge=False)


def _share(
    pool: PoolPlan, taken_cpu_millis: int, taken_memory_mib: int, *, pods: int, ephemeral_reserve_gib: int, huge: bool
) -> PodResources:
    whole = pods == 1
    memory_mib = (pool.allocatable.memory_mib - taken_memory_mib) // pods // GIB * GIB
    fixed = pool.size.desired is not None or pool.capacity.block is not None
    ephemeral_gib = (pool.allocatable.ephemeral_gib - ephemeral_reserve_gib) * EPHEMERAL_PERCENT // 100 // pods
    return PodResources(
        cpu_millis=(pool.allocatable.cpu_millis - taken_cpu_millis) // pods // 1000 * 1000,
        memory_mib=memory_mib,
        gpus=pool.gpus_per_node // pods,
        efa=pool.efa_per_node if whole else 0,
        huge_pages_mib=POD_HUGE_PAGES_MIB if huge and fixed and pool.efa_per_node else 0,
        shm_mib=memory_mib // SHM_SHARE if pool.is_gpu else 0,
        ephemeral_gib=max(1, ephemeral_gib),
    )
