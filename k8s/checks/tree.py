"""Rendered files as the checks see them: every object, and every pod template with the number of pods it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.config.plan import Plan
from k8s.manifest import ManifestFile, Object
from k8s.pods import Spec

BY_HAND = "jobs/"
"""Folder of the files that people create one at a time."""
COMPONENT_LABEL = "moerl.io/component"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What one check has found; `where` is namespace/Kind/name and the path inside it."""

    where: str
    value: object
    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of one template."""

    where: str
    file: str
    owner: Object
    template: Spec
    namespace: str
    at_most: int | None
    """Pods at a time when everything is scaled up; None for a DaemonSet, which has one on every node that it reaches."""

    @property
    def spec(self) -> Spec:
        spec: Spec = self.template["spec"]
        return spec

    @property
    def labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = self.template.get("metadata", {}).get("labels", {})
        return labels

    @property
    def component(self) -> str | None:
        return self.labels.get(COMPONENT_LABEL)

    @property
    def kind(self) -> str:
        return str(self.owner["kind"])

    @property
    def is_daemon(self) -> bool:
        return self.at_most is None

    @property
    def by_hand(self) -> bool:
        """A job that people start between runs; the trainer stands below `jobs/` too, but is up with everything else."""
        return self.file.startswith(BY_HAND) and self.kind == "Job"

    def containers(self) -> Iterator[tuple[str, Spec]]:
        """(where, container) of init containers, sidecars and main containers, in the order in which they start."""
        for key in ("initContainers", "containers"):
            for container in self.spec.get(key, ()):
                yield f"{self.where}.spec.{key}[{container.get('name')}]", container


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    files: tuple[ManifestFile, ...]
    complete: bool
    """False where the render has left something out: a selector may then have nothing to select."""
    objects: tuple[Object, ...]
    pods: tuple[Pods, ...]

    def of_kind(self, *kinds: str) -> Iterator[Object]:
        return (item for item in self.objects if item["kind"] in kinds)

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """The object of that kind and name; `namespace` is None for cluster-scoped ones."""
        for item in self.of_kind(kind):
            metadata = item["metadata"]
            if metadata["name"] == name and metadata.get("namespace") == namespace:
                return item
        return None


Check = Callable[[Tree, Plan], Iterator[Problem]]


def tree(files: Iterable[ManifestFile], *, complete: bool = True) -> Tree:
    """The files' objects in order, and their pods. Raises ValueError for a kind whose pods it cannot count."""
    kept = tuple(files)
    objects = tuple(item for file in kept for item in file.objects)
    limits = {
        (
            item["metadata"].get("namespace"),
            item["spec"]["scaleTargetRef"].get("kind", "Deployment"),
            item["spec"]["scaleTargetRef"]["name"],
        ): item["spec"].get("maxReplicaCount", 100)
        for item in objects
        if item["kind"] == "ScaledObject"
    }
    pods = []
    for file in kept:
        for item in file.objects:
            metadata = item["metadata"]
            scaled = limits.get((metadata.get("namespace"), item["kind"], metadata["name"]))
            for path, template in _templates(item, ""):
                pods.append(
                    Pods(
                        where=f"{where(item)}: {path}" if path else where(item),
                        file=file.name,
                        owner=item,
                        template=template,
                        namespace=str(metadata.get("namespace", "")),
                        at_most=_at_most(item, path, scaled),
                    )
                )
    return Tree(files=kept, complete=complete, objects=objects, pods=tuple(pods))


def where(item: Object) -> str:
    """namespace/Kind/name, without the namespace where there is none."""
    metadata = item["metadata"]
    parts = [metadata.get("namespace"), item["kind"], metadata["name"]]
    return "/".join(part for part in parts if part)


def key_of(item: Object) -> tuple[str, str, str]:
    """(kind, namespace, name), empty where there is no namespace."""
    metadata = item["metadata"]
    return item["kind"], str(metadata.get("namespace", "")), metadata["name"]


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) selects these labels; an empty one selects all."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(expression_holds(expression, labels) for expression in selector.get("matchExpressions", ()))


def expression_holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """One requirement of a label selector or of node affinity. Raises ValueError for an operator that neither has."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values", ())
    have = labels.get(key)
    if operator == "In":
        return have in values
    if operator == "NotIn":
        return have not in values
    if operator == "Exists":
        return have is not None
    if operator == "DoesNotExist":
        return have is None
    if operator in ("Gt", "Lt"):
        if have is None or not have.lstrip("-").isdigit():
            return False
        return int(have) > int(values[0]) if operator == "Gt" else int(have) < int(values[0])
    raise ValueError(f"operator {operator!r} of {key}")


def _templates(value: Any, path: str) -> Iterator[tuple[str, Spec]]:
    """Every pod template at any depth, so that no kind can carry pods past the checks."""
    if isinstance(value, Mapping):
        spec = value.get("spec")
        if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list | tuple):
            yield path, dict(value)
            return
        for key, inner in value.items():
            yield from _templates(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _templates(inner, f"{path}[{index}]")


def _at_most(item: Object, path: str, scaled: int | None) -> int | None:
    """Pods of the template at `path`. Raises ValueError for a kind whose pods nobody has taught this function to count."""
    kind, spec = item["kind"], item.get("spec", {})
    if kind == "DaemonSet":
        return None
    if kind == "Pod":
        return 1
    if kind in ("Deployment", "StatefulSet", "ReplicaSet"):
        return int(scaled if scaled is not None else spec.get("replicas", 1))
    if kind == "Job":
        return int(spec.get("parallelism", 1))
    if kind == "CronJob":
        return int(spec["jobTemplate"]["spec"].get("parallelism", 1))
    if kind in ("RayJob", "RayCluster"):
        cluster = spec.get("rayClusterSpec", spec)
        for index, group in enumerate(cluster.get("workerGroupSpecs", ())):
            if f"workerGroupSpecs[{index}]" in path:
                return int(group.get("maxReplicas", group.get("replicas", 0))) * int(group.get("numOfHosts", 1))
        return 1
    if kind == "LeaderWorkerSet":
        group_template, groups = spec["leaderWorkerTemplate"], scaled if scaled is not None else spec.get("replicas", 1)
        size = int(group_template.get("size", 1))
        if "leaderTemplate" in path:
            return int(groups)
        return int(groups) * (size - 1 if "leaderTemplate" in group_template else size)
    raise ValueError(f"{where(item)} holds a pod template at {path}, and nobody counts the pods of its kind")
