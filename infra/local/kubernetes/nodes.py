"""The nodes of an environment as kubelets would register them, computed from the Plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE, TAINT_EFFECTS, PoolPlan

Object = dict[str, Any]
MANAGED = ("kwok.x-k8s.io/node", "fake")
"""Annotation that makes kwok play a node's kubelet; without it the node's heartbeats stop."""
EKS_CAPACITY = {
    "on_demand": "ON_DEMAND",
    "reservation": "ON_DEMAND",
    "capacity_block": "CAPACITY_BLOCK",
    "spot": "SPOT",
}


def simulated_nodes(plan: Plan, counts: Mapping[str, int] | None = None) -> tuple[Object, ...]:
    """Every pool at its maximum, or at `counts[pool]` nodes."""
    chosen = counts or {}
    return tuple(
        simulated_node(plan, pool, index)
        for pool in plan.pools
        for index in range(chosen.get(pool.name, pool.size.max))
    )


def simulated_node(plan: Plan, pool: PoolPlan, index: int) -> Object:
    """Node number `index` of a pool; types and zones of a mixed pool take turns."""
    name = f"{pool.name}-{index}"
    instance_type = pool.instance_types[index % len(pool.instance_types)]
    zone = pool.zones[index % len(pool.zones)]
    allocatable = _allocatable(pool)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": dict([MANAGED]),
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/instance-type": instance_type,
                "beta.kubernetes.io/os": "linux",
                "eks.amazonaws.com/capacityType": EKS_CAPACITY[pool.capacity.type],
                "eks.amazonaws.com/nodegroup": pool.name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": instance_type,
                "topology.kubernetes.io/region": plan.region,
                "topology.kubernetes.io/zone": zone,
                **pool.labels,
            },
        },
        "spec": {
            "providerID": f"aws:///{zone}/i-{hashlib.sha256(name.encode()).hexdigest()[:17]}",
            "taints": [
                {"key": taint.key, "value": taint.value, "effect": TAINT_EFFECTS[taint.effect]} for taint in pool.taints
            ],
        },
        "status": {
            "allocatable": allocatable,
            "capacity": {**allocatable, "cpu": str(pool.vcpus_per_node)},
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "containerd://2.1",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "kubeletVersion": f"v{plan.kubernetes.version}.0",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "Amazon Linux 2023",
                "systemUUID": "",
            },
        },
    }


def _allocatable(pool: PoolPlan) -> dict[str, str]:
    resources = {
        "cpu": f"{pool.allocatable.cpu_millis}m",
        "memory": f"{pool.allocatable.memory_mib}Mi",
        "ephemeral-storage": f"{pool.allocatable.ephemeral_gib}Gi",
        "pods": str(pool.max_pods),
        "hugepages-1Gi": "0",
        HUGE_PAGES_RESOURCE: f"{pool.huge_pages_mib}Mi",
    }
    if pool.gpus_per_node:
        resources[GPU_RESOURCE] = str(pool.gpus_per_node)
    if pool.efa_per_node:
        resources[EFA_RESOURCE] = str(pool.efa_per_node)
    return resources
