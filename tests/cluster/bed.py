"""What the cluster tests share: a started control plane with an environment's nodes, and questions to ask it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from infra.catalog import CATALOG
from infra.catalog.daemonsets import DaemonSet
from infra.config.plan import Plan
from infra.local.kubernetes.api import Answer, Api, ApiFault, Object, serves, until
from infra.local.kubernetes.cluster import Cluster, ControllerValues, add
from infra.local.kubernetes.nodes import simulated_nodes
from infra.local.kubernetes.processes import Group
from k8s.checks.tree import BY_HAND, Pods
from k8s.controllers import CONTROLLER_VALUES
from k8s.manifest import ManifestFile
from k8s.names import RUN_NAMESPACE
from tests.k8s.schema_files import schemas

PLACED_SECONDS = 90.0
BROUGHT = frozenset({"ray.io", "kueue.x-k8s.io", "leaderworkerset.x-k8s.io"})
"""API groups whose definitions the real controllers bring."""
ADDON_NAMESPACE = "kube-system"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
PAUSE = "registry.k8s.io/pause@sha256:" + "0" * 64


@dataclass
class Tally:
    """Counted over the whole test run, for the report at its end."""

    objects_applied: int = 0
    pods_placed: int = 0
    starts: list[float] = field(default_factory=list)
    """Seconds that each start of a control plane took."""
    unknown_kinds: set[str] = field(default_factory=set)
    """Not applied: nobody runs their controller here, and their definition could not be had."""


@dataclass(frozen=True)
class Bed:
    """One control plane."""

    cluster: Cluster
    group: Group
    api: Api
    tally: Tally

    def define(self) -> None:
        """CustomResourceDefinitions of the projects that run no controller here, as `schemas.lock` names them."""
        found = schemas()
        self.tally.unknown_kinds |= {kind for kind in found.missing if kind.partition("/")[0] not in BROUGHT}
        definitions = [
            yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - both are safe loaders
            for kind, path in found.files.items()
            if kind.partition("/")[0] not in BROUGHT
        ]
        add(self.api, definitions)
        until("definitions served", lambda: serves(self.api, definitions), PLACED_SECONDS)

    def knows(self, item: Object) -> bool:
        """Whether the API server has a definition of the object's kind."""
        return f"{item['apiVersion'].partition('/')[0]}/{item['kind']}" not in self.tally.unknown_kinds

    def apply(self, items: Iterable[Object]) -> list[Answer]:
        """Server-side apply in order, strictly, of every object whose kind the server knows."""
        answers = []
        for item in items:
            if self.knows(item):
                answers.append(self.api.apply(item))
                self.tally.objects_applied += 1
        return answers

    def add_nodes(self, plan: Plan, counts: Mapping[str, int] | None = None) -> list[Object]:
        """Simulated nodes of the plan, each Ready."""
        nodes = simulated_nodes(plan, counts)
        add(self.api, nodes)
        until("nodes ready", lambda: len(self.ready_nodes()) >= len(nodes), PLACED_SECONDS)
        return list(nodes)

    def ready_nodes(self) -> list[Object]:
        """Nodes that are Ready and carry no taint of the node lifecycle controller."""
        return [
            node
            for node in self.api.list("v1", "Node")
            if any(
                item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", ())
            )
            and not any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", ()))
        ]

    def pods(self, namespace: str = RUN_NAMESPACE, selector: str = "") -> list[Object]:
        """Pods that are not on their way out."""
        found = self.api.list("v1", "Pod", namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self, namespace: str = RUN_NAMESPACE, selector: str = "") -> list[Object]:
        return [pod for pod in self.pods(namespace, selector) if pod["status"].get("phase") == "Running"]

    def until(self, what: str, ask: Callable[[], Any], seconds: float = PLACED_SECONDS) -> Any:
        """As `api.until`; a program that has ended fails at once."""

        def checked() -> Any:
            self.group.check()
            return ask()

        return until(what, checked, seconds)


def controller_values(plan: Plan) -> ControllerValues:
    return ControllerValues(
        kueue=CONTROLLER_VALUES["kueue"](plan),
        lws=CONTROLLER_VALUES["lws"](plan),
        kuberay=CONTROLLER_VALUES["kuberay-operator"](plan),
    )


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


def applied(files: Iterable[ManifestFile]) -> list[Object]:
    """What `kubectl apply` gets, in its order."""
    return [item for file in files if not file.name.startswith(BY_HAND) for item in file.objects]


def created(files: Iterable[ManifestFile]) -> list[Object]:
    """What people create: the trainer and jobs."""
    return [item for file in files if file.name.startswith(BY_HAND) for item in file.objects]


def as_pod(pods: Pods) -> Object:
    """A template, lifted out of its object, as a Pod: the API server looks into no custom resource's pods."""
    metadata = {**pods.template.get("metadata", {}), "name": "lifted", "namespace": pods.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pods.spec}


def pools_of(pods: Iterable[Object], nodes: Iterable[Object]) -> Counter[str]:
    """Pool to number of pods on its nodes; pods without a node count as ''."""
    pool = {node["metadata"]["name"]: node["metadata"]["labels"]["moerl.io/pool"] for node in nodes}
    return Counter(pool.get(pod["spec"].get("nodeName", ""), "") for pod in pods)


def why_pending(pod: Object) -> str:
    """The scheduler's words."""
    reasons = [
        item.get("message", "") for item in pod["status"].get("conditions", ()) if item["type"] == "PodScheduled"
    ]
    return " ".join(reasons)


def refusal(call: Callable[[], object]) -> ApiFault | None:
    """The fault of a call that the API server refuses, None when it does not."""
    try:
        call()
    except ApiFault as fault:
        return fault
    return None
