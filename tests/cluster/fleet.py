"""The reference environment on its simulated nodes, every pool at its maximum, trainer and engines running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infra.config.plan import Plan
from infra.local.kubernetes.api import Object
from k8s.charts.rollout import fleet_name
from k8s.charts.workers import worker_name
from k8s.checks.tree import COMPONENT_LABEL
from k8s.names import BUFFER, ENVIRONMENT, ROLLOUT, RUN_NAMESPACE, TRAINER
from k8s.render import TRAINER_FILE
from tests.k8s.renders import rendered
from tests.shipped import plan_of

from .bed import Bed, addon_daemonsets, applied

REFERENCE = "reference-p5en"
HEAD_AND_SUBMITTER = 2


@dataclass(frozen=True)
class Fleet:
    bed: Bed
    plan: Plan

    def pods(self, component: str) -> list[Object]:
        """Pods of the run that are not on their way out."""
        return self.bed.pods(RUN_NAMESPACE, f"{COMPONENT_LABEL}={component}")

    def running(self, component: str) -> list[Object]:
        return self.bed.running(RUN_NAMESPACE, f"{COMPONENT_LABEL}={component}")

    def expected(self) -> dict[str, int]:
        """Component to its number of pods with everything scaled up."""
        workload = self.plan.workload
        workers = {role: sum(item.replicas_max for item in workload.cpu_workers if item.role == role) for role in ROLES}
        return {
            TRAINER: workload.trainer.workers + HEAD_AND_SUBMITTER,
            ROLLOUT: sum(item.geometry.engines_max * item.pods.pods_per_group for item in workload.rollouts),
            **workers,
        }

    def node_of(self, pod: Object) -> Object:
        node = self.bed.api.get("v1", "Node", pod["spec"]["nodeName"])
        assert node is not None
        return node


ROLES = (ENVIRONMENT, BUFFER)


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


def trainer_objects() -> list[Object]:
    return [item for file in rendered(REFERENCE).files if file.name == TRAINER_FILE for item in file.objects]


def create_trainer(fleet: Fleet) -> Object:
    """The RayJob, as `kubectl create -f` makes it."""
    stored = [fleet.bed.api.create(item).item for item in trainer_objects()]
    return next(item for item in stored if item["kind"] == "RayJob")


def scale_up(fleet: Fleet) -> None:
    """What KEDA would ask for with a full queue: through the scale subresource, every engine and worker."""
    workload = fleet.plan.workload
    for rollout in workload.rollouts:
        scale(
            fleet, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", fleet_name(rollout), rollout.geometry.engines_max
        )
    for worker in workload.cpu_workers:
        if worker.role == ENVIRONMENT:
            scale(fleet, "apps/v1", "Deployment", worker_name(worker), worker.replicas_max)


def scale(fleet: Fleet, api_version: str, kind: str, name: str, replicas: int) -> None:
    target: Object = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": RUN_NAMESPACE},
    }
    fleet.bed.api.patch(target, {"spec": {"replicas": replicas}}, subresource="scale")
