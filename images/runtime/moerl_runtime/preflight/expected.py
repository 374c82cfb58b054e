"""What the plan says a pod of a pool must find: numbers for preflight, all of them from plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moerl_runtime import plan as plans
from moerl_runtime.bench.settings import Links, Shape
from moerl_runtime.plan import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One pod on a node of one pool. None where the plan asks for nothing."""

    pool: str
    role: str
    account: str | None
    """Of the AWS role that this pod has; None for a job, which has none."""
    instance_types: tuple[str, ...]
    gpus: int
    """Of this pod; 0 for one that takes none."""
    gpu_model: str
    gpu_memory_gib: int
    cuda_arch: str | None
    """Of the pool's GPUs; None for a pod without."""
    node_efa: int
    """Devices of the node."""
    pod_efa: int
    """Devices that this pod is given: all of the node's or none."""
    transport: str
    """How expert traffic leaves this pod: `none` where it has no EFA or keeps experts on one node."""
    peer_mapping: bool
    """Whether the node's NVIDIA driver is loaded with PeerMappingOverride."""
    huge_pages_mib: int
    shm_mib: int
    efa_driver: str | None
    gdrdrv: str | None
    gin_export: str | None
    nvidia_driver: str | None
    libfabric: str | None
    nccl: str | None
    efa_installer_libfabric: bool
    """Whether the image carries the EFA installer's libfabric and plugin at all."""
    deepep: bool
    """Whether this pod uses DeepEP, so that it is tried here."""
    variables: Mapping[str, str]
    nvme: bool
    ephemeral_gib: int
    """What the node offers its pods on local disks; 0 on a type without."""
    shape: Shape
    links: Links
    together_nodes: int
    """Nodes that work together over EFA, the trainer's or an engine's; 1 where pods of the pool work alone."""
    expert_nodes: int
    """Of those, the ones that one group of DeepEP spans; 1 where there is none or it stays on a node."""


def expected(plan: Node, pool_name: str, *, whole_node: bool) -> Expected:
    """`whole_node` is true for the jobs that have a node to themselves; else the pod is a trainer worker or an engine.

    Raises InputFault for a pool that the plan does not have.
    """
    pool = plans.pool(plan, pool_name)
    part = _part(plan, pool_name)
    gpus = pool["gpus_per_node"].number
    resources: Mapping[str, Any] = plan["workload"]["node_jobs"].value.get(pool_name, {}) if whole_node else {}
    if part is not None and not resources:
        resources = part.resources
    pod_efa = int(resources.get("efa", 0))
    variables = part.variables if part is not None else {}
    device_side = pod_efa > 0 and "NCCL_GIN_TYPE" in variables
    needs, image = pool["needs"].value, plan["image"].value
    nvme = pool["nvme_gib"].number > 0
    return Expected(
        pool=pool_name,
        role=pool["role"].text,
        account=None if part is None or whole_node else plan["account"].text,
        instance_types=tuple(pool["instance_types"].value),
        gpus=int(resources.get("gpus", 0)),
        gpu_model=pool["gpu_model"].value or "",
        gpu_memory_gib=pool["gpu_memory_gib"].number,
        cuda_arch=pool["cuda_arch"].text if gpus else None,
        node_efa=pool["efa_per_node"].number,
        pod_efa=pod_efa,
        transport=pool["transport"].text if device_side else "none",
        peer_mapping=device_side and pool["gpu_direct_driver"].flag,
        huge_pages_mib=int(resources.get("huge_pages_mib", 0)),
        shm_mib=int(resources.get("shm_mib", 0)),
        efa_driver=needs["efa_driver"] if device_side else None,
        gdrdrv=needs["gdrdrv"] if device_side else None,
        gin_export=needs["gin_export"] if device_side else None,
        nvidia_driver=needs["nvidia_driver"],
        libfabric=image["libfabric"] if pod_efa else None,
        nccl=image["nccl"] if gpus else None,
        efa_installer_libfabric=image["libfabric"] is not None,
        deepep=image["deepep"] is not None and (device_side or (part is not None and part.deepep)),
        variables=variables if pod_efa else {},
        nvme=nvme,
        ephemeral_gib=pool["allocatable"]["ephemeral_gib"].number if nvme else 0,
        shape=Shape(**plan["workload"]["shape"].value),
        links=Links(
            gpus=max(1, gpus),
            efa_devices=pool["efa_per_node"].number,
            efa_gbps=needs["efa_gbps"],
            nvlink_gb_per_second=needs["nvlink_gb_per_second"],
        ),
        together_nodes=part.nodes if part is not None and pod_efa else 1,
        expert_nodes=part.expert_nodes if part is not None and part.deepep and pod_efa else 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The half of the workload that runs on a pool."""

    resources: Mapping[str, Any]
    variables: Mapping[str, str]
    deepep: bool
    nodes: int
    expert_nodes: int


def _part(plan: Node, pool_name: str) -> _Part | None:
    workload = plan["workload"]
    trainer = workload["trainer"]
    if trainer["pool"].text == pool_name:
        return _Part(
            resources=trainer["pods"]["worker"].value,
            variables=trainer["variables"].value,
            deepep=trainer["dispatcher"].text == "deepep_v2",
            nodes=trainer["workers"].number,
            expert_nodes=trainer["geometry"]["expert_group_nodes"].number,
        )
    for place, entry in enumerate(workload["rollouts"].value):
        if entry["pool"] == pool_name:
            rollout = workload["rollouts"][place]
            return _Part(
                resources=rollout["pods"]["engine"].value,
                variables=rollout["variables"].value,
                deepep=rollout["backend"].text == "deepep_v2",
                nodes=rollout["geometry"]["nodes_per_engine"].number,
                expert_nodes=rollout["geometry"]["expert_group_nodes"].number,
            )
    return None
