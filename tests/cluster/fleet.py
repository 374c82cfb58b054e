"""The reference environment on its simulated nodes, every pool at its maximum, trainer and engines running."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from infra.config.plan import Plan
from infra.local.kubernetes.api import ApiFault, Object
from infra.local.kubernetes.cluster import add
from infra.local.kubernetes.fleet import addon_daemonsets, applied, pods_of, running, trainer_objects, wait_for_all
from infra.local.kubernetes.nodes import simulated_node
from k8s.names import RUN_NAMESPACE
from tests.k8s.renders import rendered
from tests.shipped import plan_of

from .bed import Bed

REFERENCE = "reference-p5en"
POOL_LABEL = "moerl.io/pool"


@dataclass(frozen=True)
class Fleet:
    bed: Bed
    plan: Plan
    newest: dict[str, int] = field(default_factory=dict)
    """Pool to the number after its newest replacement node's."""

    def pods(self, component: str) -> list[Object]:
        """Pods of the run that are not on their way out."""
        return pods_of(self.bed.api, component)

    def running(self, component: str) -> list[Object]:
        return running(self.pods(component))

    def wait_for_all(self) -> None:
        """Until the run is complete. Raises TimeoutError with what is missing, and what controllers say of it."""
        try:
            wait_for_all(self.bed.api, self.plan)
        except TimeoutError as late:
            raise TimeoutError(f"{late}; {sorted(self.warnings())}") from late
        self.bed.group.check()

    def warnings(self) -> set[str]:
        """What controllers complain of; the scheduler's reasons are the pods' own."""
        return {
            f"{event['involvedObject']['kind']} {event['involvedObject']['name']}: {event['message']}"
            for event in self.bed.api.list("v1", "Event", RUN_NAMESPACE)
            if event["type"] == "Warning" and event["reason"] != "FailedScheduling"
        }

    def node_of(self, pod: Object) -> Object:
        node = self.bed.api.get("v1", "Node", pod["spec"]["nodeName"])
        assert node is not None
        return node


def start(start_bed: Callable[[Plan], Bed], *, missing: dict[str, int] | None = None) -> Fleet:
    """Nodes, add-ons and manifests; pools are `missing` so many nodes. The trainer is not created yet."""
    plan = plan_of(REFERENCE)
    bed = start_bed(plan)
    bed.define()
    counts = {pool.name: pool.size.max - (missing or {}).get(pool.name, 0) for pool in plan.pools}
    bed.add_nodes(plan, counts)
    bed.apply(addon_daemonsets())
    bed.apply(applied(rendered(REFERENCE).files))
    return Fleet(bed, plan)


def create_trainer(fleet: Fleet) -> Object:
    """The RayJob, as `kubectl create -f` makes it."""
    stored = [fleet.bed.api.create(item).item for item in trainer_objects(rendered(REFERENCE).files)]
    return next(item for item in stored if item["kind"] == "RayJob")


def reclaim(fleet: Fleet, nodes: list[str]) -> None:
    """As a managed node group does on a Spot notice: cordon, evict what is no DaemonSet's, and when that has ended, the
    nodes are gone."""
    api = fleet.bed.api
    found = [node for node in api.list("v1", "Node") if node["metadata"]["name"] in nodes]
    for node in found:
        api.patch(node, {"spec": {"unschedulable": True}})
    for pod in _standing_on(fleet, nodes):
        _evict(fleet, pod)
    fleet.bed.until("evicted pods gone", lambda: not _standing_on(fleet, nodes))
    for node in found:
        api.delete(node)


def _standing_on(fleet: Fleet, nodes: list[str]) -> list[Object]:
    """Pods of the run on these nodes, those on their way out too."""
    found = fleet.bed.api.list("v1", "Pod", RUN_NAMESPACE)
    return [pod for pod in found if pod["spec"].get("nodeName") in nodes]


def _evict(fleet: Fleet, pod: Object) -> None:
    """A pod may be gone by now: its group was taken down with another one's pod."""
    try:
        fleet.bed.api.evict(pod)
    except ApiFault as fault:
        if fault.status != 404:
            raise


def kill(fleet: Fleet, node: Object) -> None:
    """The machine is gone without notice: the node's pods go with it, whatever their budget, then the node."""
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    fleet.bed.api.patch(node, {"spec": {"taints": [*node["spec"].get("taints", ()), taint]}})
    fleet.bed.until("pods of the node gone", lambda: not _standing_on(fleet, [node["metadata"]["name"]]))
    fleet.bed.api.delete(node)


@contextmanager
def silent(fleet: Fleet, node: Object) -> Iterator[None]:
    """A node that says it has not been ready for a minute, while no kubelet says anything else. For less than the 40 s
    after which all nodes would be taken for lost."""
    kubelets = fleet.bed.cluster.pids["kwok"]
    since = (datetime.now(UTC) - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    os.kill(kubelets, signal.SIGSTOP)
    try:
        kept = [item for item in node["status"]["conditions"] if item["type"] != "Ready"]
        ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "lastTransitionTime": since}
        fleet.bed.api.patch(node, {"status": {"conditions": [*kept, ready]}}, subresource="status")
        yield
    finally:
        os.kill(kubelets, signal.SIGCONT)


def replace(fleet: Fleet, pool: str, count: int) -> None:
    """So many new nodes in a pool, under names that it never had."""
    of = fleet.plan.pool(pool)
    made = sum(1 for node in fleet.bed.api.list("v1", "Node") if node["metadata"]["labels"][POOL_LABEL] == pool)
    first = max(of.size.max, fleet.newest.get(pool, 0))
    fleet.newest[pool] = first + count
    assert made + count <= of.size.max
    add(fleet.bed.api, [simulated_node(fleet.plan, of, first + number) for number in range(count)])
