"""The evaluator reads NetworkPolicies as Kubernetes does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.k8s.network import Endpoint, allowed

A = Endpoint(address="10.0.0.1", namespace="a", labels={"app": "a"})
B = Endpoint(address="10.0.0.2", namespace="b", labels={"app": "b"}, ports={"web": 80})


def policy(namespace: str = "b", selector: Any = None, **spec: Any) -> dict[str, Any]:
    kinds = [kind for kind in ("Ingress", "Egress") if kind.lower() in spec]
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": selector or {}, "policyTypes": kinds, **spec}}


def peer(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


TCP_80 = [{"protocol": "TCP", "port": 80}]


@pytest.mark.parametrize(
    ("policies", "passes"),
    [
        ([], True),
        ([policy(ingress=[])], False),
        ([policy("c", ingress=[])], True),
        ([policy(selector={"matchLabels": {"app": "other"}}, ingress=[])], True),
        ([policy(egress=[])], True),
        ([policy("a", egress=[])], False),
        ([policy(ingress=[{}])], True),
        ([policy(ingress=[]), policy(ingress=[{"ports": TCP_80}])], True),
        ([policy(ingress=[{"from": [peer("a")]}])], True),
        ([policy(ingress=[{"from": [peer("c")]}])], False),
        ([policy(ingress=[{"from": [{"podSelector": {}}]}])], False),
        ([policy(ingress=[{"from": [peer("a") | {"podSelector": {"matchLabels": {"app": "x"}}}]}])], False),
        ([policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/24"}}]}])], True),
        ([policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.1/32"]}}]}])], False),
        ([policy(ingress=[{"ports": [{"protocol": "UDP", "port": 80}]}])], False),
        ([policy(ingress=[{"ports": [{"protocol": "TCP"}]}])], True),
        ([policy(ingress=[{"ports": [{"protocol": "TCP", "port": "web"}]}])], True),
        ([policy(ingress=[{"ports": [{"protocol": "TCP", "port": "metrics"}]}])], False),
        ([policy(ingress=[{"ports": [{"protocol": "TCP", "port": 70, "endPort": 90}]}])], True),
        ([policy(ingress=[{"ports": [{"protocol": "TCP", "port": 70, "endPort": 79}]}])], False),
        ([policy("a", egress=[{"to": [peer("b")], "ports": TCP_80}]), policy(ingress=[])], False),
    ],
)
def test_connection_from_a_to_port_80_of_b(policies: list[dict[str, Any]], passes: bool) -> None:
    assert allowed(policies, A, B, "TCP", 80) is passes


def test_a_rule_that_the_evaluator_cannot_read_is_not_passed_over() -> None:
    with pytest.raises(AssertionError, match="unread"):
        allowed([policy(ingress=[{"from": [{"service": "x"}]}])], A, B, "TCP", 80)
