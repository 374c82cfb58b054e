"""NetworkPolicy semantics over rendered objects: whether one endpoint may open a connection to another.

As Kubernetes defines them: a direction is closed to a pod once any policy of that direction selects it, and then open
to the union of their rules. Address blocks match every address, pods' too, which is the wider of the two readings.
Keys that are not known here raise, so that no new kind of rule passes unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A pod, or with `namespace` None an address outside the cluster's pods."""

    address: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Named container ports."""


def allowed(policies: Sequence[Object], source: Endpoint, target: Endpoint, protocol: str, port: int) -> bool:
    """Whether the policies let `source` reach `port` of `target`."""
    out = _direction(policies, source, target, target, protocol, port, "Egress", "to")
    return out and _direction(policies, target, source, target, protocol, port, "Ingress", "from")


def _direction(
    policies: Sequence[Object],
    governed: Endpoint,
    peer: Endpoint,
    target: Endpoint,
    protocol: str,
    port: int,
    direction: str,
    key: str,
) -> bool:
    mine = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == governed.namespace
        and _selects(policy["spec"]["podSelector"], governed.labels)
        and direction in policy["spec"]["policyTypes"]
    ]
    if not mine:
        return True
    rules = [rule for spec in mine for rule in spec.get(direction.lower(), ())]
    return any(_ports(rule, target, protocol, port) and _peers(rule, key, governed.namespace, peer) for rule in rules)


def _ports(rule: Object, target: Endpoint, protocol: str, port: int) -> bool:
    _known(rule, {"from", "to", "ports"})
    if not rule.get("ports"):
        return True
    for item in rule["ports"]:
        _known(item, {"protocol", "port", "endPort"})
        wanted = item.get("port")
        first = target.ports.get(wanted, -1) if isinstance(wanted, str) else wanted
        if item["protocol"] == protocol and (first is None or first <= port <= item.get("endPort", first)):
            return True
    return False


def _peers(rule: Object, key: str, namespace: str | None, peer: Endpoint) -> bool:
    if not rule.get(key):
        return True
    return any(_peer(item, namespace, peer) for item in rule[key])


def _peer(item: Object, namespace: str | None, peer: Endpoint) -> bool:
    _known(item, {"ipBlock", "podSelector", "namespaceSelector"})
    if "ipBlock" in item:
        block = item["ipBlock"]
        address = ip_address(peer.address)
        inside = address in ip_network(block["cidr"])
        return inside and not any(address in ip_network(cidr) for cidr in block.get("except", ()))
    if peer.namespace is None:
        return False
    if "namespaceSelector" in item:
        in_namespace = _selects(item["namespaceSelector"], {"kubernetes.io/metadata.name": peer.namespace})
    else:
        in_namespace = peer.namespace == namespace
    return in_namespace and _selects(item.get("podSelector", {}), peer.labels)


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    _known(selector, {"matchLabels", "matchExpressions"})
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def _known(item: Object, keys: set[str]) -> None:
    assert set(item) <= keys, f"unread keys {set(item) - keys}"
