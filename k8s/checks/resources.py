"""What containers ask for: stated, equal to the limits, whole where devices are, and inside the pod's own memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE
from k8s.checks.quantities import amounts, is_sidecar, pod_requests, quantity
from k8s.checks.scheduling import reached
from k8s.checks.tree import Pods, Problem, Tree, where
from k8s.pods import Spec

HUGE_PAGE_BYTES = 2 << 20
MIB = 1 << 20
_DEVICES = (GPU_RESOURCE, EFA_RESOURCE)


def quantities_parse(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Schemas take any text; the API server refuses `8 gpus`, half a device and huge pages without a unit."""
    for pods in tree.pods:
        for place, container in pods.containers():
            for key in ("requests", "limits"):
                yield from _quantities(f"{place}.resources.{key}", (container.get("resources") or {}).get(key) or {})
        for volume in pods.spec.get("volumes", ()):
            size = (volume.get("emptyDir") or {}).get("sizeLimit")
            if size is not None:
                yield from _quantities(f"{pods.where}.spec.volumes[{volume.get('name')}]", {"sizeLimit": size})
    for quota in tree.of_kind("ResourceQuota"):
        yield from _quantities(f"{where(quota)}: spec.hard", quota["spec"].get("hard", {}))


def requests_are_limits(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Every container, sidecars and init containers too, states cpu and memory, and its requests equal its limits."""
    for pods in tree.pods:
        for place, container in pods.containers():
            requests, limits = _both(container)
            for name in sorted({"cpu", "memory"} | (set(requests) | set(limits)) - set(_DEVICES)):
                if name not in requests or requests[name] != limits.get(name):
                    yield Problem(
                        where=f"{place}.resources",
                        value=f"{name}: request {requests.get(name)}, limit {limits.get(name)}",
                        why="requests and limits must be stated and equal, so that nobody is throttled or evicted for another",
                        fix="Build the container with k8s.pods.container and the Plan's PodResources.",
                    )


def gpu_request_is_limit(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Kubernetes refuses extended resources that are requested below their limit, or limited without a request."""
    yield from _device_request_is_limit(tree, GPU_RESOURCE)


def efa_is_whole(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """A container has no EFA device, or all that its pool's launch template gives a node; one with all of a node's GPUs has
    them all. A part of them passes an all-reduce test and breaks point-to-point traffic; none of them means TCP."""
    yield from _device_request_is_limit(tree, EFA_RESOURCE)
    for pods in tree.pods:
        pools = [plan.pool(name) for name in reached(pods.spec, plan)]
        for place, container in pods.containers():
            requests = amounts(container.get("resources"), "requests")
            asked, gpus = requests.get(EFA_RESOURCE, Fraction(0)), requests.get(GPU_RESOURCE, Fraction(0))
            for pool in pools if asked or gpus else ():
                if asked == pool.efa_per_node or (asked == 0 and gpus < pool.gpus_per_node):
                    continue
                yield Problem(
                    where=f"{place}.resources",
                    value=f"{EFA_RESOURCE}: {asked}",
                    why=f"a node of pool {pool.name} has {pool.efa_per_node}, and a part of them breaks point-to-point traffic",
                    fix=f"Request all {pool.efa_per_node}, as the Plan's PodResources do.",
                )


def huge_pages_are_there(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Huge pages only on fixed pools that have them, no more than they have, and a volume for them only with a request: the
    autoscaler knows nothing of huge pages on a node that does not exist yet."""
    for pods in tree.pods:
        asked = pod_requests(pods.spec).get(HUGE_PAGES_RESOURCE, Fraction(0))
        volumes = [v for v in pods.spec.get("volumes", ()) if (v.get("emptyDir") or {}).get("medium") == "HugePages"]
        if volumes and not asked:
            yield Problem(
                where=pods.where,
                value="a HugePages volume",
                why="the pod requests no huge pages, so the kubelet refuses the volume",
                fix="Request huge pages, or leave the volume out.",
            )
        for name in reached(pods.spec, plan) if asked else ():
            pool = plan.pool(name)
            moves = pool.size.desired is None and pool.capacity.block is None
            if moves or asked > pool.huge_pages_mib * MIB:
                yield Problem(
                    where=pods.where,
                    value=f"{HUGE_PAGES_RESOURCE}: {asked / MIB} MiB",
                    why=f"pool {name} has {pool.huge_pages_mib} MiB a node"
                    + (" and is scaled, and no autoscaler sees huge pages in advance" if moves else ""),
                    fix="Request huge pages on fixed pools alone, as the Plan's PodResources do.",
                )


def memory_volumes_fit(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A memory-backed volume has a size, and all of a pod's together are less than the memory of the containers that mount
    them: what is written there counts as theirs, and one without a size takes half the node."""
    for pods in tree.pods:
        for volume in pods.spec.get("volumes", ()):
            empty = volume.get("emptyDir") or {}
            if empty.get("medium") != "Memory":
                continue
            size = quantity(empty.get("sizeLimit"))
            memory = _memory_of_users(pods, volume["name"])
            if size is None or size >= memory:
                yield Problem(
                    where=f"{pods.where}.spec.volumes[{volume['name']}]",
                    value=empty.get("sizeLimit"),
                    why=f"the containers that mount it have {memory / MIB} MiB, and what is written there counts as theirs",
                    fix="Size it from the Plan's shm_mib.",
                )


def _memory_of_users(pods: Pods, volume: str) -> Fraction:
    limits = [
        amounts(container.get("resources"), "limits").get("memory", Fraction(0))
        for _, container in pods.containers()
        if any(mount.get("name") == volume for mount in container.get("volumeMounts", ()))
        and (is_sidecar(container) or container in pods.spec["containers"])
    ]
    return sum(limits, Fraction(0))


def _device_request_is_limit(tree: Tree, device: str) -> Iterator[Problem]:
    for pods in tree.pods:
        for place, container in pods.containers():
            requests, limits = _both(container)
            if requests.get(device) != limits.get(device):
                yield Problem(
                    where=f"{place}.resources",
                    value=f"{device}: request {requests.get(device)}, limit {limits.get(device)}",
                    why="devices cannot be overcommitted: the API server refuses a request that is not the limit",
                    fix="Build the container with k8s.pods.container and the Plan's PodResources.",
                )


def _both(container: Spec) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    resources = container.get("resources") or {}
    return resources.get("requests") or {}, resources.get("limits") or {}


def _quantities(place: str, written: Mapping[str, Any]) -> Iterator[Problem]:
    for name, text in written.items():
        value = quantity(text)
        device = "/" in name and not name.startswith("count/")
        if value is None or value < 0 or (device and value.denominator != 1):
            why = "is not a quantity" if value is None else "is not a whole number of devices"
        elif name.rpartition(".")[2].startswith("hugepages-") and value % HUGE_PAGE_BYTES:
            why = "is not a whole number of pages, in bytes or with a unit"
        else:
            continue
        yield Problem(
            where=place, value=f"{name}: {text}", why=why, fix="Write a number with a unit, such as 500m or 2Gi."
        )
