"""Network policies: every pod of the run is under one in both directions, each selects somebody, and their values parse."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.plan import Plan
from k8s.checks.selectors import is_of_absent
from k8s.checks.tree import Problem, Tree, matches, where
from k8s.manifest import Object
from k8s.names import RUN_NAMESPACE

DIRECTIONS = {"Ingress": "ingress", "Egress": "egress"}
PROTOCOLS = frozenset({"TCP", "UDP", "SCTP"})


def run_pods_have_a_policy(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Each pod of the run is selected by a policy of each direction, and by one that opens something to the outside: a pod
    that may reach nothing cannot even resolve a name."""
    policies = [item for item in tree.of_kind("NetworkPolicy") if item["metadata"]["namespace"] == RUN_NAMESPACE]
    for pods in tree.pods:
        if pods.namespace != RUN_NAMESPACE:
            continue
        selecting = [item["spec"] for item in policies if matches(item["spec"]["podSelector"], pods.labels)]
        for direction in DIRECTIONS:
            if not any(direction in spec.get("policyTypes", ()) for spec in selecting):
                yield _problem(pods.where, direction, "no policy selects this pod, so everything is open to it")
        if selecting and not any(spec.get("egress") for spec in selecting):
            yield _problem(pods.where, "Egress", "no policy opens anything for this pod, DNS included")


def policies_select_pods(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """A policy that selects pods by label selects some, and so does each peer inside the same namespace: a typo opens nothing
    and nobody is told."""
    if not tree.complete:
        return
    for item in tree.of_kind("NetworkPolicy"):
        namespace, spec = item["metadata"]["namespace"], item["spec"]
        labels = [pods.labels for pods in tree.pods if pods.namespace == namespace]
        wanted = [spec["podSelector"]] + [
            peer["podSelector"] for peer in _peers(item) if "podSelector" in peer and "namespaceSelector" not in peer
        ]
        for index, selector in enumerate(wanted):
            if (
                selector
                and selector not in wanted[:index]
                and not is_of_absent(selector, plan)
                and not any(matches(selector, one) for one in labels)
            ):
                yield _problem(where(item), selector, "selects no pod of the render")


def policy_values_parse(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Networks, ports and port ranges that the API server takes; a direction with rules is one of the policy's types."""
    for item in tree.of_kind("NetworkPolicy"):
        spec = item["spec"]
        for direction, key in DIRECTIONS.items():
            if spec.get(key) and direction not in spec.get("policyTypes", ()):
                yield _problem(where(item), key, f"has rules, but {direction} is not among policyTypes")
            for rule in spec.get(key, ()):
                for port in rule.get("ports", ()):
                    if why := _port_fault(port):
                        yield _problem(where(item), port, why)
        for peer in _peers(item):
            block = peer.get("ipBlock")
            if block and not _is_inside(block):
                yield _problem(where(item), block, "is not a network with exceptions inside it")


def _peers(item: Object) -> Iterator[Mapping[str, Any]]:
    for key, side in (("ingress", "from"), ("egress", "to")):
        for rule in item["spec"].get(key, ()):
            yield from rule.get(side, ())


def _port_fault(port: Mapping[str, Any]) -> str | None:
    first, last = port.get("port"), port.get("endPort")
    if port.get("protocol", "TCP") not in PROTOCOLS:
        return "has a protocol that policies do not know"
    if isinstance(first, int) and not 1 <= first <= 65535:
        return "is not a port"
    if last is not None and not (isinstance(first, int) and first <= last <= 65535):
        return "ends before it begins, or behind the last port"
    return None


def _is_inside(block: Mapping[str, Any]) -> bool:
    try:
        network = ipaddress.ip_network(block["cidr"])
        excepted = [ipaddress.ip_network(text) for text in block.get("except", ())]
    except ValueError:
        return False
    return all(
        one.version == network.version and one != network and one.subnet_of(network)  # type: ignore[arg-type]
        for one in excepted
    )


def _problem(place: str, value: object, why: str) -> Problem:
    return Problem(where=place, value=value, why=why, fix="Correct the network policies chart and its table of flows.")
