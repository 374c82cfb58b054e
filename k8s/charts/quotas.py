"""What the run's namespace may ask for: no more than its pools can have, and no pod larger than its largest node.

A request beyond that would be pending for ever; here it is refused at once, with the number. Since the quota covers
CPU and memory, a container that does not state both is refused too: nothing is inherited.
"""

from __future__ import annotations

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE, PoolPlan
from k8s.manifest import Object, obj
from k8s.names import RUN_NAMESPACE

NAME = "run"


def objects(plan: Plan) -> tuple[Object, ...]:
    """ResourceQuota and LimitRange of the run. CPU in cores or millicores, memory in MiB, storage in GiB."""
    pools = tuple(pool for pool in plan.pools if pool.role != "system")
    largest = {
        "cpu": f"{max(pool.allocatable.cpu_millis for pool in pools)}m",
        "memory": f"{max(pool.allocatable.memory_mib for pool in pools)}Mi",
    }
    return (
        obj("v1", "ResourceQuota", NAME, namespace=RUN_NAMESPACE, spec={"hard": _hard(pools)}),
        obj("v1", "LimitRange", NAME, namespace=RUN_NAMESPACE, spec={"limits": [{"type": "Pod", "max": largest}]}),
    )


def _hard(pools: tuple[PoolPlan, ...]) -> dict[str, str]:
    """Every pool at its largest. Devices and huge pages have a quota on requests alone; Kubernetes holds their limits
    equal. A resource that no pool has gets 0, and so do services that would open the run to the outside."""
    cpu = f"{sum(pool.size.max * pool.allocatable.cpu_millis for pool in pools)}m"
    memory = f"{sum(pool.size.max * pool.allocatable.memory_mib for pool in pools)}Mi"
    storage = f"{sum(pool.size.max * pool.allocatable.ephemeral_gib for pool in pools)}Gi"
    return {
        "requests.cpu": cpu,
        "limits.cpu": cpu,
        "requests.memory": memory,
        "limits.memory": memory,
        "requests.ephemeral-storage": storage,
        "limits.ephemeral-storage": storage,
        f"requests.{GPU_RESOURCE}": str(sum(pool.size.max * pool.gpus_per_node for pool in pools)),
        f"requests.{EFA_RESOURCE}": str(sum(pool.size.max * pool.efa_per_node for pool in pools)),
        f"requests.{HUGE_PAGES_RESOURCE}": f"{sum(pool.size.max * pool.huge_pages_mib for pool in pools)}Mi",
        "services.loadbalancers": "0",
        "services.nodeports": "0",
    }
