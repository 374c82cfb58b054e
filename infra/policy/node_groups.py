"""What every managed node group must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.stacks import Resource, Stack, resources


def node_groups(stack: Stack, plan: Plan) -> Iterator[Finding]:
    del plan
    templates = {found.logical_id: found for found in resources(stack, "AWS::EC2::LaunchTemplate")}
    for group in resources(stack, "AWS::EKS::Nodegroup"):
        data = _template_data(group, templates)
        yield from _updates(group)
        yield from _types(group, data)
        yield from _sizes(group)
        yield from _image(group, data)
        interfaces = data.get("NetworkInterfaces", ())
        if any(str(one.get("InterfaceType", "")).startswith("efa") for one in interfaces):
            subnets = group.properties.get("Subnets", ())
            if len(subnets) != 1:
                yield group.finding(
                    "node-group.one-zone",
                    "Subnets",
                    f"{len(subnets)} subnets",
                    "EFA works within one zone, and a group over several splits a job",
                    "Give the group one subnet.",
                )


def _template_data(group: Resource, templates: Mapping[str, Resource]) -> Mapping[str, Any]:
    """The launch template's data, when the template is in the same stack."""
    named = group.properties.get("LaunchTemplate", {}).get("Id", {})
    found = templates.get(named.get("Ref", "")) if isinstance(named, Mapping) else None
    data: Mapping[str, Any] = found.properties.get("LaunchTemplateData", {}) if found else {}
    return data


def _updates(group: Resource) -> Iterator[Finding]:
    if group.properties.get("ForceUpdateEnabled") is not False:
        yield group.finding(
            "node-group.force-update",
            "ForceUpdateEnabled",
            group.properties.get("ForceUpdateEnabled"),
            "a forced update evicts past disruption budgets and ends a running job",
            "Set it to false.",
        )
    if "NodegroupName" in group.properties:
        yield group.finding(
            "node-group.name",
            "NodegroupName",
            group.properties["NodegroupName"],
            "a replacement is created before the old group goes, and meets its name",
            "Leave the name to CloudFormation.",
        )
    if group.properties.get("NodeRepairConfig", {}).get("Enabled") is not True:
        yield group.finding(
            "node-group.repair",
            "NodeRepairConfig",
            group.properties.get("NodeRepairConfig"),
            "what happens to a broken node is left to a default",
            "Enable it, with overrides where a repair would hurt a job.",
        )


def _types(group: Resource, data: Mapping[str, Any]) -> Iterator[Finding]:
    if bool(group.properties.get("InstanceTypes")) == bool(data.get("InstanceType")):
        yield group.finding(
            "node-group.instance-types",
            "InstanceTypes",
            group.properties.get("InstanceTypes"),
            "EKS takes the instance type from the group or from its launch template, exactly one of them",
            "Name it in the template for a capacity block, in the group otherwise.",
        )


def _sizes(group: Resource) -> Iterator[Finding]:
    scaling = group.properties.get("ScalingConfig", {})
    fixed = scaling.get("MinSize") == scaling.get("MaxSize")
    if "DesiredSize" in scaling and not fixed:
        yield group.finding(
            "node-group.desired-size",
            "ScalingConfig.DesiredSize",
            scaling["DesiredSize"],
            "the next deploy would set back what the autoscaler or the schedule has set",
            "Write it on fixed groups alone, where minimum and maximum are the same.",
        )
    if fixed and scaling.get("DesiredSize") != scaling.get("MaxSize"):
        yield group.finding(
            "node-group.desired-size",
            "ScalingConfig.DesiredSize",
            scaling.get("DesiredSize"),
            "a fixed group has exactly its maximum of nodes",
            "Set it to the maximum.",
        )


def _image(group: Resource, data: Mapping[str, Any]) -> Iterator[Finding]:
    properties = group.properties
    if data.get("ImageId"):
        for name in ("AmiType", "ReleaseVersion"):
            if name in properties:
                yield group.finding(
                    "node-group.image",
                    name,
                    properties[name],
                    "EKS refuses it beside the launch template's own image",
                    "Leave it out.",
                )
        return
    for name in ("AmiType", "ReleaseVersion"):
        if not properties.get(name):
            yield group.finding(
                "node-group.image",
                name,
                properties.get(name),
                "a deploy on another day would take another image and roll every node",
                "Pin the AMI type and its release.",
            )
