"""Nothing of the platform can be reached from the internet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.stacks import Resource, Stack, resources

ANYWHERE = frozenset({"0.0.0.0/0", "::/0"})


def exposure(stack: Stack, plan: Plan) -> Iterator[Finding]:
    del plan
    for group in resources(stack, "AWS::EC2::SecurityGroup"):
        for index, rule in enumerate(group.properties.get("SecurityGroupIngress", ())):
            yield from _ingress(group, f"SecurityGroupIngress.{index}", rule)
    for rule in resources(stack, "AWS::EC2::SecurityGroupIngress"):
        yield from _ingress(rule, "CidrIp", rule.properties)
    for subnet in resources(stack, "AWS::EC2::Subnet"):
        if subnet.properties.get("MapPublicIpOnLaunch") is not False:
            yield subnet.finding(
                "network.public-ip",
                "MapPublicIpOnLaunch",
                subnet.properties.get("MapPublicIpOnLaunch"),
                "whatever starts in the subnet would get a public address",
                "Set it to false.",
            )


def _ingress(resource: Resource, path: str, rule: Mapping[str, Any]) -> Iterator[Finding]:
    source = rule.get("CidrIp") or rule.get("CidrIpv6")
    if source in ANYWHERE:
        yield resource.finding(
            "network.open-ingress", path, source, "everybody may connect", "Name the network or the group that may."
        )
