"""An environment on a started control plane: its nodes, what `moerl render` writes for it, and its run at full size."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import yaml

from infra.catalog import CATALOG
from infra.catalog.daemonsets import DaemonSet
from infra.config.plan import Plan
from infra.local.kubernetes import cluster
from infra.local.kubernetes.api import Api, serves, until
from infra.local.kubernetes.cluster import Cluster, ControllerValues, Progress, add
from infra.local.kubernetes.nodes import simulated_nodes
from infra.local.kubernetes.processes import Group
from infra.local.kubernetes.programs import Programs
from k8s.charts.rollout import fleet_name
from k8s.charts.workers import worker_name
from k8s.checks.tree import BY_HAND, COMPONENT_LABEL
from k8s.controllers import CONTROLLER_VALUES
from k8s.manifest import ManifestFile
from k8s.names import BUFFER, ENVIRONMENT, ROLLOUT, RUN_NAMESPACE, TRAINER
from k8s.render import TRAINER_FILE
from k8s.schemas import Resolved

Object = dict[str, Any]

PLACED_SECONDS = 90.0
BROUGHT = frozenset({"ray.io", "kueue.x-k8s.io", "leaderworkerset.x-k8s.io"})
"""API groups whose definitions the real controllers bring."""
ADDON_NAMESPACE = "kube-system"
HEAD_AND_SUBMITTER = 2
PAUSE = "registry.k8s.io/pause@sha256:" + "0" * 64
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def controller_values(plan: Plan) -> ControllerValues:
    """What Helm gets for the controllers that run here."""
    return ControllerValues(
        kueue=CONTROLLER_VALUES["kueue"](plan),
        lws=CONTROLLER_VALUES["lws"](plan),
        kuberay=CONTROLLER_VALUES["kuberay-operator"](plan),
    )


def define(api: Api, found: Resolved) -> frozenset[str]:
    """Stores the definitions of projects that run no controller here.

    Returns the kinds, GROUP/KIND, that the API server does not know: their definition could not be had.
    """
    definitions = [
        yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - both are safe loaders
        for kind, path in found.files.items()
        if not _brought(kind)
    ]
    add(api, definitions)
    until("definitions served", lambda: serves(api, definitions), PLACED_SECONDS)
    return frozenset(kind for kind in found.missing if not _brought(kind))


def _brought(kind: str) -> bool:
    return kind.partition("/")[0] in BROUGHT


def known(item: Object, unknown_kinds: Collection[str]) -> bool:
    """Whether the API server has a definition of the object's kind."""
    return f"{item['apiVersion'].partition('/')[0]}/{item['kind']}" not in unknown_kinds


def applied(files: Iterable[ManifestFile]) -> list[Object]:
    """What `kubectl apply` gets, in its order."""
    return [item for file in files if not file.name.startswith(BY_HAND) for item in file.objects]


def created(files: Iterable[ManifestFile]) -> list[Object]:
    """What people create: the trainer and jobs."""
    return [item for file in files if file.name.startswith(BY_HAND) for item in file.objects]


def trainer_objects(files: Iterable[ManifestFile]) -> list[Object]:
    """The RayJob and what it needs, as `kubectl create -f` gets them."""
    return [item for file in files if file.name == TRAINER_FILE for item in file.objects]


def start(
    folder: Path, programs: Programs, plan: Plan, found: Resolved, *, bound: bool, progress: Progress = lambda _: None
) -> tuple[Cluster, Group, frozenset[str]]:
    """A control plane as `cluster.start` brings it up, settled. bound: it ends when this process does. Nothing is left
    running when either fails, or when this process is ended before both are done."""
    started, group = cluster.start(folder, programs, controller_values(plan), progress=progress)
    try:
        progress("nodes")
        unknown = settle(started.api(), plan, started.deployments, found)
    except BaseException:
        group.end()
        raise
    if not bound:
        group.release()
    return started, group, unknown


def settle(api: Api, plan: Plan, deployments: Iterable[Object], found: Resolved) -> frozenset[str]:
    """Every node of the plan, ready, with the add-ons and the controllers' own pods on them. Returns unknown kinds."""
    unknown = define(api, found)
    nodes = simulated_nodes(plan)
    add(api, nodes)
    until("nodes ready", lambda: len(ready_nodes(api)) >= len(nodes), PLACED_SECONDS)
    for item in (*addon_daemonsets(), *deployments):
        api.apply(item)
    return unknown


def ready_nodes(api: Api) -> list[Object]:
    """Nodes that are Ready and carry no taint of the node lifecycle controller."""
    return [
        node
        for node in api.list("v1", "Node")
        if any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", ()))
        and not any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", ()))
    ]


def expected_pods(plan: Plan) -> dict[str, int]:
    """Component to its number of pods with everything scaled up."""
    workload = plan.workload
    return {
        TRAINER: workload.trainer.workers + HEAD_AND_SUBMITTER,
        ROLLOUT: sum(item.geometry.engines_max * item.pods.pods_per_group for item in workload.rollouts),
        **{
            role: sum(item.replicas_max for item in workload.cpu_workers if item.role == role)
            for role in (ENVIRONMENT, BUFFER)
        },
    }


def wait_for_all(api: Api, plan: Plan) -> dict[str, int]:
    """Component to its running pods, when those are all. Raises TimeoutError with the scheduler's words otherwise."""
    expected = expected_pods(plan)

    def counted() -> dict[str, int]:
        return {component: len(running(pods_of(api, component))) for component in expected}

    try:
        until("every pod of the run running", lambda: counted() == expected, PLACED_SECONDS)
    except TimeoutError as late:
        waiting = {why_pending(pod) for component in expected for pod in pods_of(api, component)}
        raise TimeoutError(f"{late}: {counted()} of {expected}; {' '.join(sorted(waiting))}") from late
    return expected


def pods_of(api: Api, component: str) -> list[Object]:
    """Pods of one component of the run that are not on their way out."""
    found = api.list("v1", "Pod", RUN_NAMESPACE, f"{COMPONENT_LABEL}={component}")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def running(pods: Iterable[Object]) -> list[Object]:
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


def why_pending(pod: Object) -> str:
    """The scheduler's words."""
    reasons = [
        item.get("message", "") for item in pod["status"].get("conditions", ()) if item["type"] == "PodScheduled"
    ]
    return " ".join(reasons)


def scale_up(api: Api, plan: Plan) -> None:
    """What KEDA would ask for with a full queue: through the scale subresource, every engine and worker."""
    for rollout in plan.workload.rollouts:
        name, engines = fleet_name(rollout), rollout.geometry.engines_max
        scale(api, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, engines)
    for worker in plan.workload.cpu_workers:
        if worker.role == ENVIRONMENT:
            scale(api, "apps/v1", "Deployment", worker_name(worker), worker.replicas_max)


def scale(api: Api, api_version: str, kind: str, name: str, replicas: int) -> None:
    target: Object = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": RUN_NAMESPACE},
    }
    api.patch(target, {"spec": {"replicas": replicas}}, subresource="scale")


def addon_daemonsets() -> list[Object]:
    """DaemonSets with the requests of the EKS add-ons, which no manifest of ours brings: they take their share of a node."""
    return [_daemonset(item) for item in CATALOG.daemonsets if not item.source.computed]


def _daemonset(item: DaemonSet) -> Object:
    labels = {"app": item.name}
    requests = {"cpu": f"{item.cpu_millis}m", "memory": f"{item.memory_mib}Mi"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": item.name, "namespace": ADDON_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{"name": "main", "image": PAUSE, "resources": {"requests": requests}}],
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                },
            },
        },
    }
