"""The policies let through what a run needs and nothing else, flow by flow."""

from __future__ import annotations

import pytest

from k8s.charts import network_policies
from tests.k8s.flows import ENDPOINTS, FLOWS, Flow
from tests.k8s.network import Endpoint, allowed
from tests.shipped import SHIPPED, plan_of


def cases() -> list[object]:
    return [pytest.param(name, flow, id=f"{name}-{flow}") for flow in FLOWS for name in flow.when]


@pytest.mark.parametrize(("name", "flow"), cases())
def test_flow_passes_or_not_as_the_table_says(name: str, flow: Flow) -> None:
    source, target = ENDPOINTS[flow.source], ENDPOINTS[flow.target]
    policies = network_policies.objects(plan_of(name))
    assert allowed(policies, source, target, flow.protocol, flow.port) == flow.passes, flow.why


@pytest.mark.parametrize("name", SHIPPED)
def test_every_opening_is_needed_by_a_flow_of_the_table(name: str) -> None:
    policies = network_policies.objects(plan_of(name))
    needed = [flow for flow in FLOWS if flow.passes and name in flow.when]
    for left_out in policies:
        rest = [policy for policy in policies if policy is not left_out]
        changed = [
            flow
            for flow in needed
            if not allowed(rest, ENDPOINTS[flow.source], ENDPOINTS[flow.target], flow.protocol, flow.port)
        ]
        assert bool(changed) == (left_out["metadata"]["name"] != "default-deny"), left_out["metadata"]["name"]


def test_default_closes_both_directions_by_itself() -> None:
    (default,) = (
        item for item in network_policies.objects(plan_of("p5")) if item["metadata"]["name"] == "default-deny"
    )
    pod, outside = ENDPOINTS["unlabelled"], Endpoint(address="203.0.113.1")
    assert not allowed([default], pod, outside, "TCP", 443)
    assert not allowed([default], outside, pod, "TCP", 443)


def test_the_api_server_is_opened_where_its_addresses_are() -> None:
    plan = plan_of("starter-p5en", {"network.cidr": "172.20.0.0/16"})
    (policy,) = (item for item in network_policies.objects(plan) if item["metadata"]["name"] == "api-server")
    blocks = [peer["ipBlock"]["cidr"] for peer in policy["spec"]["egress"][0]["to"]]
    private = [subnet.cidr for subnet in plan.network.subnets if subnet.kind == "private"]
    assert blocks == [plan.kubernetes.service_cidr, *private]
    assert len(private) == 3


def test_every_policy_names_the_directions_it_governs() -> None:
    for policy in network_policies.objects(plan_of("reference-p5en")):
        spec = policy["spec"]
        assert spec["policyTypes"]
        governed = {kind.lower() for kind in spec["policyTypes"]}
        assert spec.keys() - {"podSelector", "policyTypes"} <= governed
        # The API server drops an empty list, and every later apply would look like a change.
        assert all(spec[direction] for direction in governed & spec.keys())
