"""What the run's namespace may ask for: no more than its pools can have, and no pod larger than its largest node.

A request beyond that would be pending for ever; here it is refused at once, with the number. Since the quotas cover
CPU and memory, a container that does not state both is refused too: nothing is inherited.

Rollouts have a quota of their own. A pod's charge may outlive it: the API server charges before it stores, and when the
store then says that the pod is there already, as StatefulSets now and then hear, nobody takes the charge back before the
quota controller's next full count, five minutes later. In one quota for all, engines on Spot would keep the trainer out.
"""

from __future__ import annotations

from math import ceil

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE, PoolPlan
from k8s.manifest import Object, obj
from k8s.names import ROLLOUT_PRIORITY, RUN_NAMESPACE

RUN, ROLLOUT, SHARED = "run", "rollout", "shared"
SPARE_SHARE = 4
"""Rollouts may have one node in so many beyond their pools, for charges that nobody has taken back yet."""
_ROLLOUTS = {"scopeName": "PriorityClass", "values": [ROLLOUT_PRIORITY]}


def objects(plan: Plan) -> tuple[Object, ...]:
    """ResourceQuotas and LimitRange of the run. CPU in cores or millicores, memory in MiB, storage in GiB."""
    pools = tuple(pool for pool in plan.pools if pool.role != "system")
    rollouts = tuple(pool for pool in pools if pool.role == "rollout")
    largest = {
        "cpu": f"{max(pool.allocatable.cpu_millis for pool in pools)}m",
        "memory": f"{max(pool.allocatable.memory_mib for pool in pools)}Mi",
    }
    return (
        # Jobs of people stand on any pool, so what is not a rollout may have them all.
        _quota(RUN, _of_nodes(pools), {**_ROLLOUTS, "operator": "NotIn"}),
        _quota(ROLLOUT, _of_nodes(rollouts, SPARE_SHARE), {**_ROLLOUTS, "operator": "In"}),
        _quota(SHARED, _without_scope(pools)),
        obj("v1", "LimitRange", RUN, namespace=RUN_NAMESPACE, spec={"limits": [{"type": "Pod", "max": largest}]}),
    )


def _quota(name: str, hard: dict[str, str], scope: dict[str, object] | None = None) -> Object:
    spec: dict[str, object] = {"hard": hard}
    if scope:
        spec["scopeSelector"] = {"matchExpressions": [scope]}
    return obj("v1", "ResourceQuota", name, namespace=RUN_NAMESPACE, spec=spec)


def _of_nodes(pools: tuple[PoolPlan, ...], spare_share: int | None = None) -> dict[str, str]:
    """Every pool at its largest, and one node in `spare_share` more. Devices have a quota on requests alone; Kubernetes
    holds their limits equal. A resource that no pool has gets 0."""
    nodes = {pool.name: pool.size.max + (ceil(pool.size.max / spare_share) if spare_share else 0) for pool in pools}
    cpu = f"{sum(nodes[pool.name] * pool.allocatable.cpu_millis for pool in pools)}m"
    memory = f"{sum(nodes[pool.name] * pool.allocatable.memory_mib for pool in pools)}Mi"
    return {
        "requests.cpu": cpu,
        "limits.cpu": cpu,
        "requests.memory": memory,
        "limits.memory": memory,
        f"requests.{GPU_RESOURCE}": str(sum(nodes[pool.name] * pool.gpus_per_node for pool in pools)),
        f"requests.{EFA_RESOURCE}": str(sum(nodes[pool.name] * pool.efa_per_node for pool in pools)),
    }


def _without_scope(pools: tuple[PoolPlan, ...]) -> dict[str, str]:
    """What Kubernetes lets no quota of a priority class cover. Services that would open the run to the outside get 0."""
    storage = f"{sum(pool.size.max * pool.allocatable.ephemeral_gib for pool in pools)}Gi"
    return {
        "requests.ephemeral-storage": storage,
        "limits.ephemeral-storage": storage,
        f"requests.{HUGE_PAGES_RESOURCE}": f"{sum(pool.size.max * pool.huge_pages_mib for pool in pools)}Mi",
        "services.loadbalancers": "0",
        "services.nodeports": "0",
    }
