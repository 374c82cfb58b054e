"""What selects pods selects some: workloads, services, disruption budgets, monitors, and the ports that these name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.plan import Plan
from k8s.checks.scheduling import reached
from k8s.checks.tree import COMPONENT_LABEL, Pods, Problem, Tree, matches, where
from k8s.manifest import Object
from k8s.names import BUFFER, ENVIRONMENT, TRAINER

ROUTER = "router"
_OWN_SELECTOR = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")


def workloads_select_their_pods(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A workload's selector matches its own template and no other workload's in the namespace."""
    for pods in tree.pods:
        if pods.kind not in _OWN_SELECTOR:
            continue
        selector = pods.owner["spec"].get("selector") or {}
        others = [other.where for other in _selected(tree, pods.namespace, selector) if other.owner is not pods.owner]
        if not selector or not matches(selector, pods.labels):
            yield _problem(pods.where, selector, "does not match the labels of its own pods")
        elif others:
            yield _problem(pods.where, selector, f"also matches the pods of {', '.join(others)}")


def services_select_pods(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A service's selector matches rendered pods, and its target ports are theirs."""
    for service in tree.of_kind("Service"):
        selector = service["spec"].get("selector")
        if selector is None or _made_by_controller(selector):
            continue
        selected = _selected(tree, service["metadata"]["namespace"], {"matchLabels": selector})
        if not selected:
            yield _problem(where(service), selector, "matches no pod of the render")
        for port in service["spec"].get("ports", ()) if selected else ():
            target = port.get("targetPort", port.get("port"))
            if not any(target in _ports(pods) for pods in selected):
                yield _problem(where(service), target, "is a port that none of the selected pods declares")


def disruption_budgets_select_pods(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A disruption budget has exactly one bound and matches rendered pods."""
    for budget in tree.of_kind("PodDisruptionBudget"):
        spec = budget["spec"]
        if ("minAvailable" in spec) == ("maxUnavailable" in spec):
            yield _problem(where(budget), "minAvailable and maxUnavailable", "must be there one without the other")
        if not spec.get("selector") or not _selected(tree, budget["metadata"]["namespace"], spec["selector"]):
            yield _problem(where(budget), spec.get("selector"), "matches no pod of the render")


def trainers_are_not_disrupted(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Every trainer pod is under a budget that needs all of them: losing one ends the step of all."""
    needed = plan.workload.trainer.pods_running
    budgets = [budget for budget in tree.of_kind("PodDisruptionBudget") if budget["spec"].get("minAvailable") == needed]
    for pods in tree.pods:
        if pods.component == TRAINER and not any(_covers(budget, pods) for budget in budgets):
            yield Problem(
                where=pods.where,
                value=pods.component,
                why=f"no disruption budget with minAvailable {needed} selects this pod, so a node drain would evict it",
                fix="Let the trainer's PodDisruptionBudget select it.",
            )


def spot_pods_have_no_budget(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """A budget over pods on Spot blocks the node group's own drain, and no budget stops a reclaim."""
    spot = {pool.name for pool in plan.pools if pool.capacity.type == "spot"}
    for budget in tree.of_kind("PodDisruptionBudget"):
        for pods in _selected(tree, budget["metadata"]["namespace"], budget["spec"].get("selector") or {}):
            if not pods.is_daemon and spot & set(reached(pods.spec, plan)):
                yield _problem(where(budget), pods.where, "stands on Spot, where a budget blocks the node's own drain")


def monitors_find_metrics(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """A PodMonitor matches pods that have the port it scrapes; a ServiceMonitor services that have it."""
    if not tree.complete:
        return
    for monitor in tree.of_kind("PodMonitor"):
        spec, names = monitor["spec"], _namespaces(monitor, tree)
        if is_of_absent(spec["selector"], plan):
            continue
        selected = [pods for name in sorted(names) for pods in _selected(tree, name, spec["selector"])]
        for endpoint in spec.get("podMetricsEndpoints", ()):
            if not any(endpoint.get("port") in _ports(pods) for pods in selected):
                yield _problem(where(monitor), endpoint.get("port"), "is a port of no pod that the monitor selects")
    for monitor in tree.of_kind("ServiceMonitor"):
        spec, names = monitor["spec"], _namespaces(monitor, tree)
        services = [
            service
            for service in tree.of_kind("Service")
            if service["metadata"]["namespace"] in names
            and matches(spec["selector"], service["metadata"].get("labels", {}))
        ]
        ports = {port.get("name") for service in services for port in service["spec"].get("ports", ())}
        for endpoint in spec.get("endpoints", ()):
            if endpoint.get("port") not in ports:
                yield _problem(where(monitor), endpoint.get("port"), "is a port of no service that the monitor selects")


def is_of_absent(selector: Mapping[str, Any], plan: Plan) -> bool:
    """Whether a selector goes by component and names only components that this plan has no pods of: workers without a pool,
    and the router of broadcast mode."""
    present = {worker.role for worker in plan.workload.cpu_workers} | ({ROUTER} if plan.workload.router else set())
    absent = {ENVIRONMENT, BUFFER, ROUTER} - present
    named = set(filter(None, [selector.get("matchLabels", {}).get(COMPONENT_LABEL)]))
    for expression in selector.get("matchExpressions", ()):
        if expression["key"] == COMPONENT_LABEL and expression["operator"] == "In":
            named |= set(expression["values"])
    return bool(named) and named <= absent


def _selected(tree: Tree, namespace: str, selector: Mapping[str, Any]) -> list[Pods]:
    return [pods for pods in tree.pods if pods.namespace == namespace and matches(selector, pods.labels)]


def _covers(budget: Object, pods: Pods) -> bool:
    return budget["metadata"]["namespace"] == pods.namespace and matches(budget["spec"]["selector"], pods.labels)


def _ports(pods: Pods) -> set[object]:
    declared = [port for _, container in pods.containers() for port in container.get("ports", ())]
    return {port.get("name") for port in declared} | {port["containerPort"] for port in declared}


def _namespaces(monitor: Object, tree: Tree) -> set[str]:
    wanted = monitor["spec"].get("namespaceSelector") or {}
    if wanted.get("any"):
        return {pods.namespace for pods in tree.pods}
    return set(wanted.get("matchNames") or [monitor["metadata"]["namespace"]])


def _made_by_controller(selector: Mapping[str, str]) -> bool:
    """Labels that KubeRay and LeaderWorkerSet put on their pods; no template has them."""
    return any(key.startswith(("ray.io/", "leaderworkerset.sigs.k8s.io/")) for key in selector)


def _problem(place: str, value: object, why: str) -> Problem:
    return Problem(where=place, value=value, why=why, fix="Use the labels that k8s.manifest.component gives.")
