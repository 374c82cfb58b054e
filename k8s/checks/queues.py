"""Kueue queues and namespace quotas take everything that their pods ask for: else a workload waits for ever, in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from infra.config.plan import Plan
from k8s.checks.quantities import pod_requests, quantity
from k8s.checks.references import QUEUE_LABEL
from k8s.checks.scheduling import Node, may_stand, nodes, reached
from k8s.checks.tree import Pods, Problem, Tree, expression_holds, where
from k8s.manifest import Object

_PLAIN = ("cpu", "memory", "ephemeral-storage")


def queued_work_starts_suspended(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Kueue's webhook suspends what it queues; suspended from the start, work waits even while the webhook is down."""
    for item in tree.objects:
        if QUEUE_LABEL in item["metadata"].get("labels", {}) and item["spec"].get("suspend") is not True:
            yield Problem(
                where=f"{where(item)}: spec.suspend",
                value=item["spec"].get("suspend"),
                why="work with a queue must start suspended, or it runs without having been admitted",
                fix="Write suspend: true.",
            )


def queues_cover_requests(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Every resource that queued pods request is covered by their ClusterQueue, in a flavor of a pool that they reach."""
    for item, queue, pods in _queued(tree):
        for one in pods:
            for resource in pod_requests(one.spec) if _reaches_some(one, plan) else ():
                flavors = _flavors(tree, queue, resource)
                if not flavors:
                    why = f"{where(queue)} does not cover it, so the workload is never admitted"
                elif not any(_leads_to(flavor, one, plan) for flavor, _ in flavors):
                    why = f"no flavor of {where(queue)} leads to a pool that the pod can reach"
                else:
                    continue
                yield Problem(where=f"{where(item)} ({one.where})", value=resource, why=why, fix=_FIX)


def queue_quota_is_enough(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """The nominal quota of each flavor takes a whole workload: Kueue admits all of it or none."""
    for item, queue, pods in _queued(tree):
        needs: dict[tuple[str, str], Fraction] = {}
        quota: dict[tuple[str, str], Fraction] = {}
        for one in pods:
            for resource, value in pod_requests(one.spec).items():
                usable = [entry for entry in _flavors(tree, queue, resource) if _leads_to(entry[0], one, plan)]
                if usable:
                    flavor, text = max(usable, key=lambda entry: quantity(entry[1]) or Fraction(0))
                    key = flavor["metadata"]["name"], resource
                    quota[key] = quantity(text) or Fraction(0)
                    needs[key] = needs.get(key, Fraction(0)) + value * (one.at_most or 0)
        for key, need in needs.items():
            if need > quota[key]:
                yield Problem(
                    where=where(item),
                    value=f"{key[1]}: {float(need):g}",
                    why=f"{where(queue)} has {float(quota[key]):g} of it in flavor {key[0]}, so the workload is never admitted",
                    fix=_FIX,
                )


def quotas_cover_requests(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A namespace's ResourceQuota takes all its standing pods at their most, or one started job; its LimitRange each pod."""
    groups: dict[str, list[Pods]] = {}
    for pods in tree.pods:
        groups.setdefault(pods.file if pods.by_hand else "the standing pods", []).append(pods)
    for item in tree.of_kind("ResourceQuota"):
        hard = item["spec"].get("hard", {})
        for name, group in groups.items():
            used = _used([pods for pods in group if _counts(item, pods)])
            for key, value in used.items():
                limit = quantity(hard.get(key))
                if limit is not None and value > limit:
                    yield Problem(
                        where=f"{where(item)}: spec.hard",
                        value=f"{key}: {hard[key]}",
                        why=f"{name} ask for {float(value):g}, and pods beyond the quota are refused",
                        fix="Compute the quota from the plan's pools at their maximum.",
                    )
    for item in tree.of_kind("LimitRange"):
        for limit_item in item["spec"].get("limits", ()):
            yield from _beyond(item, limit_item, tree)


def _counts(quota: Object, pods: Pods) -> bool:
    """Whether the quota counts these pods: its namespace, and its priority classes where it names any."""
    selected = quota["spec"].get("scopeSelector", {}).get("matchExpressions", ())
    return pods.namespace == quota["metadata"]["namespace"] and all(
        expression_holds({**item, "key": item["scopeName"]}, {"PriorityClass": pods.spec.get("priorityClassName", "")})
        for item in selected
    )


_FIX = "Compute covered resources and quotas from the plan's pods."


def _queued(tree: Tree) -> Iterator[tuple[Object, Object, list[Pods]]]:
    """(workload, its ClusterQueue, its pods), where the queue exists."""
    for item in tree.objects:
        name = item["metadata"].get("labels", {}).get(QUEUE_LABEL)
        local = name and tree.find("LocalQueue", item["metadata"].get("namespace"), name)
        queue = local and tree.find("ClusterQueue", None, local["spec"]["clusterQueue"])
        if queue:
            yield item, queue, [pods for pods in tree.pods if pods.owner is item]


def _flavors(tree: Tree, queue: Object, resource: str) -> list[tuple[Object, str]]:
    """(ResourceFlavor, nominal quota) of every flavor in which the queue has the resource."""
    found = []
    for group in queue["spec"].get("resourceGroups", ()):
        if resource not in group["coveredResources"]:
            continue
        for flavor in group["flavors"]:
            item = tree.find("ResourceFlavor", None, flavor["name"])
            found += [
                (item, entry["nominalQuota"]) for entry in flavor["resources"] if entry["name"] == resource and item
            ]
    return found


def _leads_to(flavor: Object, pods: Pods, plan: Plan) -> bool:
    """Whether a pool with the flavor's labels can take the pod with the tolerations that Kueue adds to it."""
    spec = flavor.get("spec", {})
    with_tolerations = {
        **pods.spec,
        "tolerations": [*pods.spec.get("tolerations", ()), *spec.get("tolerations", ())],
    }
    labels: Mapping[str, str] = spec.get("nodeLabels", {})
    return any(_has(node, labels) and may_stand(with_tolerations, node) for pool in plan.pools for node in nodes(pool))


def _reaches_some(pods: Pods, plan: Plan) -> bool:
    """Where no node takes a pod, `placement` says so, and the queue is not to blame."""
    return bool(reached(pods.spec, plan))


def _has(node: Node, labels: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in labels.items())


def _used(group: Iterable[Pods]) -> dict[str, Fraction]:
    """Quota keys to the sum over all pods."""
    used: dict[str, Fraction] = {}
    for pods in group:
        for resource, value in pod_requests(pods.spec).items():
            keys = [f"requests.{resource}"] + ([resource, f"limits.{resource}"] if resource in _PLAIN else [])
            for key in keys:
                used[key] = used.get(key, Fraction(0)) + value * (pods.at_most or 0)
        used["pods"] = used.get("pods", Fraction(0)) + (pods.at_most or 0)
    return used


def _beyond(item: Object, limit: Mapping[str, Any], tree: Tree) -> Iterator[Problem]:
    if limit["type"] != "Pod":
        return
    for pods in tree.pods:
        if pods.namespace != item["metadata"]["namespace"]:
            continue
        for resource, value in pod_requests(pods.spec).items():
            most = quantity(limit.get("max", {}).get(resource))
            if most is not None and value > most:
                yield Problem(
                    where=f"{where(item)}: spec.limits",
                    value=f"{resource}: {limit['max'][resource]}",
                    why=f"{pods.where} asks for {float(value):g}, and a pod beyond the range is refused",
                    fix="Compute the range from the largest node.",
                )
