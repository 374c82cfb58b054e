"""What the cluster tests share: a started control plane with an environment's nodes, and questions to ask it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.config.plan import Plan
from infra.local.kubernetes import fleet
from infra.local.kubernetes.api import Answer, Api, ApiFault, Object, until
from infra.local.kubernetes.cluster import Cluster, add
from infra.local.kubernetes.fleet import PLACED_SECONDS
from infra.local.kubernetes.nodes import simulated_nodes
from infra.local.kubernetes.processes import Group
from infra.local.schemas import local_schemas
from k8s.checks.tree import Pods
from k8s.names import RUN_NAMESPACE


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
        self.tally.unknown_kinds |= fleet.define(self.api, local_schemas(os.environ))

    def knows(self, item: Object) -> bool:
        """Whether the API server has a definition of the object's kind."""
        return fleet.known(item, self.tally.unknown_kinds)

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
        return fleet.ready_nodes(self.api)

    def pods(self, namespace: str = RUN_NAMESPACE, selector: str = "") -> list[Object]:
        """Pods that are not on their way out."""
        found = self.api.list("v1", "Pod", namespace, selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self, namespace: str = RUN_NAMESPACE, selector: str = "") -> list[Object]:
        return fleet.running(self.pods(namespace, selector))

    def until(self, what: str, ask: Callable[[], Any], seconds: float = PLACED_SECONDS) -> Any:
        """As `api.until`; a program that has ended fails at once."""

        def checked() -> Any:
            self.group.check()
            return ask()

        return until(what, checked, seconds)


def as_pod(pods: Pods) -> Object:
    """A template, lifted out of its object, as a Pod: the API server looks into no custom resource's pods."""
    metadata = {**pods.template.get("metadata", {}), "name": "lifted", "namespace": pods.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pods.spec}


def pools_of(pods: Iterable[Object], nodes: Iterable[Object]) -> Counter[str]:
    """Pool to number of pods on its nodes; pods without a node count as ''."""
    pool = {node["metadata"]["name"]: node["metadata"]["labels"]["moerl.io/pool"] for node in nodes}
    return Counter(pool.get(pod["spec"].get("nodeName", ""), "") for pod in pods)


def refusal(call: Callable[[], object]) -> ApiFault | None:
    """The fault of a call that the API server refuses, None when it does not."""
    try:
        call()
    except ApiFault as fault:
        return fault
    return None
