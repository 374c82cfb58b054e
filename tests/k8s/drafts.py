"""A render to be changed in place: its parts, found by what they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from k8s.manifest import ManifestFile, Object, component, obj
from k8s.names import RUN_NAMESPACE

Spec = dict[str, Any]
Draft = dict[str, list[Object]]
"""File name to objects, to be changed in place."""
Break = Callable[[Draft], object]

WORKER, HEAD = "worker", "head"
LEADER, FOLLOWER = "leaderTemplate", "workerTemplate"


def draft(files: tuple[ManifestFile, ...]) -> Draft:
    return {file.name: copy.deepcopy(list(file.objects)) for file in files}


def files(changed: Draft) -> tuple[ManifestFile, ...]:
    return tuple(ManifestFile(name=name, objects=tuple(objects)) for name, objects in changed.items())


def one(changed: Draft, kind: str, name: str | None = None) -> Object:
    """The first object of that kind, and name where one is given."""
    return next(
        item
        for objects in changed.values()
        for item in objects
        if item["kind"] == kind and name in (None, item["metadata"]["name"])
    )


def drop(changed: Draft, kind: str, name: str) -> None:
    gone = one(changed, kind, name)
    for objects in changed.values():
        objects[:] = [item for item in objects if item is not gone]


def cluster(changed: Draft) -> Spec:
    found: Spec = one(changed, "RayJob")["spec"]["rayClusterSpec"]
    return found


def trainer(changed: Draft, part: str = WORKER) -> Spec:
    """Pod spec of the trainer's worker or head."""
    of = cluster(changed)
    found: Spec = (of["headGroupSpec"] if part == HEAD else of["workerGroupSpecs"][0])["template"]["spec"]
    return found


def group(changed: Draft) -> Spec:
    found: Spec = one(changed, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    return found


def rollout(changed: Draft, part: str = LEADER) -> Spec:
    """Pod spec of an engine's leader or follower."""
    found: Spec = group(changed)[part]["spec"]
    return found


def engine(changed: Draft, part: str = LEADER) -> Spec:
    found: Spec = rollout(changed, part)["initContainers"][-1]
    return found


def daemon(changed: Draft, name: str) -> Spec:
    found: Spec = one(changed, "DaemonSet", name)["spec"]["template"]["spec"]
    return found


def environment(changed: Draft) -> Spec:
    found: Spec = one(changed, "Deployment")["spec"]["template"]["spec"]
    return found


def main(spec: Spec) -> Spec:
    found: Spec = spec["containers"][0]
    return found


def ask(container: Spec, name: str, value: str | None) -> None:
    """Request and limit of the container; None takes both away."""
    for key in ("requests", "limits"):
        if value is None:
            del container["resources"][key][name]
        else:
            container["resources"][key][name] = value


def volume(spec: Spec, name: str) -> Spec:
    return next(item for item in spec["volumes"] if item["name"] == name)


def budget(name: str, labels: dict[str, str], **spec: Any) -> Object:
    return obj(
        "policy/v1",
        "PodDisruptionBudget",
        name,
        namespace=RUN_NAMESPACE,
        spec={"selector": {"matchLabels": labels}, **spec},
    )


def daemon_labels(changed: Draft, name: str) -> dict[str, str]:
    found: dict[str, str] = one(changed, "DaemonSet", name)["spec"]["template"]["metadata"]["labels"]
    return found


def service_monitor(name: str, port: str) -> Object:
    return obj(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        "extra",
        namespace=RUN_NAMESPACE,
        spec={"selector": {"matchLabels": component(name)}, "endpoints": [{"port": port}]},
    )
