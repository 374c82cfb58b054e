"""Kueue: the trainer and the jobs beside it are admitted whole or not at all. Rollouts are not queued: their pools and the
namespace's quota bound them, and a queue would hold back what the next interruption takes anyway.

One ClusterQueue holds every pool that runs work, each as a flavor, since a pool's nodes are one stock whoever asks for
them; two LocalQueues lead to it. A test or prepare job may take trainer nodes while they idle, and the trainer, by its
higher priority, takes them back. Kueue reads a workload's flavor from its pods' node selector, so every pod of a queued
job, a RayJob's submitter included, stands on a pool of this queue.

Workloads name `kueue.x-k8s.io/queue-name` (TRAINER_QUEUE or BATCH_QUEUE) and `kueue.x-k8s.io/priority-class` (the same
names). All-or-nothing comes with a timeout from the controller's configuration (`k8s.controllers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE, PoolPlan
from k8s.charts.priorities import CLASSES
from k8s.manifest import Object, obj
from k8s.names import BATCH_QUEUE, RUN_NAMESPACE, TRAINER_PRIORITY, TRAINER_QUEUE, WORKER_PRIORITY
from k8s.pods import counted, on_pool, quantity

API = "kueue.x-k8s.io/v1beta2"
"""The version that 0.17 stores; it still serves v1beta1, with a warning."""
CLUSTER_QUEUE = "run"
TOPOLOGY = "nodes"
"""By it Kueue places a workload node by node before it admits it: one node short admits nothing. Only flavors of pools whose
nodes are there, or come by a schedule, have it; an autoscaler brings nodes for pods that wait, so there it would wait for
ever."""
AUTOSCALED_SUFFIX = ".autoscaled"
"""Ends the flavor's name of a pool without the topology. A flavor can neither lose one nor, once it has one, change its
tolerations: a pool that goes from a fixed size to a range has another flavor, and the old one, which no queue names any
more, is of no effect. No pool's name has a dot."""
PRIORITIES: Mapping[str, str] = {TRAINER_QUEUE: TRAINER_PRIORITY, BATCH_QUEUE: WORKER_PRIORITY}
"""Workload priority class → the priority class of the pods, whose value it has."""


def objects(plan: Plan) -> tuple[Object, ...]:
    pools, covered = queued_pools(plan), covered_resources(plan)
    values = {name: value for name, value, _, _ in CLASSES}
    return (
        obj(API, "Topology", TOPOLOGY, spec={"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}),
        *(_flavor(pool) for pool in pools),
        *(
            obj(
                API,
                "WorkloadPriorityClass",
                name,
                value=values[of_pods],
                description=f"As {of_pods} is among pods.",
            )
            for name, of_pods in PRIORITIES.items()
        ),
        obj(
            API,
            "ClusterQueue",
            CLUSTER_QUEUE,
            spec={
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": RUN_NAMESPACE}},
                # A job that fits goes ahead of one that does not; priority decides first.
                "queueingStrategy": "BestEffortFIFO",
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {"coveredResources": list(covered), "flavors": [_quota(pool, covered) for pool in pools]}
                ],
            },
        ),
        *(
            obj(API, "LocalQueue", name, namespace=RUN_NAMESPACE, spec={"clusterQueue": CLUSTER_QUEUE})
            for name in (TRAINER_QUEUE, BATCH_QUEUE)
        ),
    )


def queued_pools(plan: Plan) -> tuple[PoolPlan, ...]:
    """Pools that run work, the trainer's first."""
    pools = [pool for pool in plan.pools if pool.role != "system"]
    return tuple(sorted(pools, key=lambda pool: pool.role != "trainer"))


def covered_resources(plan: Plan) -> tuple[str, ...]:
    """Every resource that any pod of the plan's workload requests. A workload that asks for one which its queue does not
    cover is never admitted, without a word."""
    return tuple(sorted({resource for pod in _pods(plan.workload) for resource in quantity(pod)}, key=_ORDER.index))


def node_quota(pool: PoolPlan) -> dict[str, str]:
    """What the pool has with all its nodes: `size.max` times a node's allocatable and devices."""
    nodes = pool.size.max
    return {
        "cpu": f"{nodes * pool.allocatable.cpu_millis}m",
        "memory": f"{nodes * pool.allocatable.memory_mib}Mi",
        "ephemeral-storage": f"{nodes * pool.allocatable.ephemeral_gib}Gi",
        GPU_RESOURCE: str(nodes * pool.gpus_per_node),
        EFA_RESOURCE: str(nodes * pool.efa_per_node),
        HUGE_PAGES_RESOURCE: f"{nodes * pool.huge_pages_mib}Mi" if pool.huge_pages_mib else "0",
    }


_ORDER = ("cpu", "memory", "ephemeral-storage", GPU_RESOURCE, EFA_RESOURCE, HUGE_PAGES_RESOURCE)


def _pods(value: object) -> Iterator[PodResources]:
    """Every PodResources anywhere in the plan's workload, so that a pod added there cannot be forgotten here."""
    if isinstance(value, PodResources):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _pods(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _pods(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _pods(item)


def flavor_name(pool: PoolPlan) -> str:
    return pool.name if counted(pool) else pool.name + AUTOSCALED_SUFFIX


def _flavor(pool: PoolPlan) -> Object:
    """By its labels Kueue finds the flavor of a pod. Pods bring their own tolerations, which may change."""
    labels = on_pool(pool)["nodeSelector"]
    topology = {"topologyName": TOPOLOGY} if counted(pool) else {}
    return obj(API, "ResourceFlavor", flavor_name(pool), spec={"nodeLabels": labels, **topology})


def _quota(pool: PoolPlan, covered: tuple[str, ...]) -> Object:
    has = node_quota(pool)
    return {"name": flavor_name(pool), "resources": [{"name": name, "nominalQuota": has[name]} for name in covered]}
