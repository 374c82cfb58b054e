"""Every object that another one names is in the render, or a named controller or person makes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.catalog.controllers import CONTROLLERS
from infra.config.plan import Plan
from k8s.checks.tree import Pods, Problem, Tree, where
from k8s.manifest import Object
from k8s.pods import Spec

BUILT_IN_PRIORITIES = frozenset({"system-node-critical", "system-cluster-critical"})
GIVEN_CONFIG_MAPS = frozenset({"kube-root-ca.crt"})
MADE_ELSEWHERE: frozenset[tuple[str, str]] = frozenset()
"""(kind, name) that a person makes by the README's instructions."""
QUEUE_LABEL, WORKLOAD_PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


def service_accounts_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Each pod names its service account; `default` carries no AWS role and is nobody's choice."""
    controllers = {controller.namespace for controller in CONTROLLERS.values()} | {"kube-system"}
    for pods in tree.pods:
        name = pods.spec.get("serviceAccountName")
        if name is None or tree.find("ServiceAccount", pods.namespace, name) is None:
            yield _missing(pods.where, "ServiceAccount", name)
    for binding in tree.of_kind("RoleBinding", "ClusterRoleBinding"):
        for subject in binding.get("subjects", ()):
            namespace, name = subject.get("namespace"), subject["name"]
            if subject["kind"] != "ServiceAccount" or namespace in controllers:
                continue
            if tree.find("ServiceAccount", namespace, name) is None:
                yield _missing(where(binding), "ServiceAccount", f"{namespace}/{name}")


def roles_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A binding's role is rendered; `system:` and the API server's own aggregate roles are always there."""
    for binding in tree.of_kind("RoleBinding", "ClusterRoleBinding"):
        role = binding["roleRef"]
        namespace = binding["metadata"].get("namespace") if role["kind"] == "Role" else None
        if not role["name"].startswith("system:") and tree.find(role["kind"], namespace, role["name"]) is None:
            yield _missing(where(binding), role["kind"], role["name"])


def config_maps_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    yield from _named_in_pods(tree, "ConfigMap", "configMap", "configMapKeyRef", "configMapRef", GIVEN_CONFIG_MAPS)


def secrets_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    yield from _named_in_pods(tree, "Secret", "secret", "secretKeyRef", "secretRef", frozenset())


def claims_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A pod's claim is rendered, and the volume that a claim names too."""
    for pods in tree.pods:
        for volume in pods.spec.get("volumes", ()):
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim is not None and tree.find("PersistentVolumeClaim", pods.namespace, claim) is None:
                yield _missing(pods.where, "PersistentVolumeClaim", claim)
    for item in tree.of_kind("PersistentVolumeClaim"):
        volume = item["spec"].get("volumeName")
        if volume is not None and tree.find("PersistentVolume", None, volume) is None:
            yield _missing(where(item), "PersistentVolume", volume)


def priorities_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Each pod names its priority class: without one, a trainer is the first to be preempted."""
    for pods in tree.pods:
        name = pods.spec.get("priorityClassName")
        if name not in BUILT_IN_PRIORITIES and (name is None or tree.find("PriorityClass", None, name) is None):
            yield _missing(pods.where, "PriorityClass", name)


def queues_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Queue label to LocalQueue to ClusterQueue to ResourceFlavors, and the workload priority class beside it."""
    for item in tree.objects:
        labels, namespace = item["metadata"].get("labels", {}), item["metadata"].get("namespace")
        queue, priority = labels.get(QUEUE_LABEL), labels.get(WORKLOAD_PRIORITY_LABEL)
        if queue is not None and tree.find("LocalQueue", namespace, queue) is None:
            yield _missing(where(item), "LocalQueue", queue)
        if priority is not None and tree.find("WorkloadPriorityClass", None, priority) is None:
            yield _missing(where(item), "WorkloadPriorityClass", priority)
    for item in tree.of_kind("LocalQueue"):
        if tree.find("ClusterQueue", None, item["spec"]["clusterQueue"]) is None:
            yield _missing(where(item), "ClusterQueue", item["spec"]["clusterQueue"])
    for item in tree.of_kind("ClusterQueue"):
        for group in item["spec"].get("resourceGroups", ()):
            for flavor in group["flavors"]:
                if tree.find("ResourceFlavor", None, flavor["name"]) is None:
                    yield _missing(where(item), "ResourceFlavor", flavor["name"])


def scale_targets_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A ScaledObject's target and the authentication of its triggers."""
    for item in tree.of_kind("ScaledObject"):
        namespace, target = item["metadata"]["namespace"], item["spec"]["scaleTargetRef"]
        kind = target.get("kind", "Deployment")
        if tree.find(kind, namespace, target["name"]) is None:
            yield _missing(where(item), kind, target["name"])
        for trigger in item["spec"].get("triggers", ()):
            reference = trigger.get("authenticationRef")
            if reference is None:
                continue
            kind = reference.get("kind", "TriggerAuthentication")
            scope = None if kind == "ClusterTriggerAuthentication" else namespace
            if tree.find(kind, scope, reference["name"]) is None:
                yield _missing(where(item), kind, reference["name"])


def _named_in_pods(
    tree: Tree, kind: str, volume_key: str, value_key: str, from_key: str, given: frozenset[str]
) -> Iterator[Problem]:
    for pods in tree.pods:
        for name in dict.fromkeys(_names(pods, volume_key, value_key, from_key)):
            if name not in given and (kind, name) not in MADE_ELSEWHERE:
                found: Object | None = tree.find(kind, pods.namespace, name)
                if found is None:
                    yield _missing(pods.where, kind, name)


def _names(pods: Pods, volume_key: str, value_key: str, from_key: str) -> Iterator[str]:
    for volume in pods.spec.get("volumes", ()):
        sources: list[Spec] = [volume, *(volume.get("projected") or {}).get("sources", ())]
        for source in sources:
            reference: Any = source.get(volume_key) or {}
            name = reference.get("secretName") if "secretName" in reference else reference.get("name")
            if name is not None:
                yield name
    for _, container in pods.containers():
        for variable in container.get("env", ()):
            reference = (variable.get("valueFrom") or {}).get(value_key)
            if reference:
                yield reference["name"]
        for source in container.get("envFrom", ()):
            if source.get(from_key):
                yield source[from_key]["name"]


def _missing(place: str, kind: str, name: object) -> Problem:
    return Problem(
        where=place,
        value=name,
        why=f"no {kind} of that name is rendered, so what names it would wait or run without it"
        if name is not None
        else f"names no {kind}, and what it would get then is nobody's choice",
        fix=f"Name a rendered {kind}, or add one to the chart that owns it.",
    )
