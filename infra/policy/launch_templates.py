"""What every launch template of a node group must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.stacks import Resource, Stack, resources

HOP_LIMIT = 2
LAST_DEVICE = 1


def launch_templates(stack: Stack, plan: Plan) -> Iterator[Finding]:
    del plan
    for template in resources(stack, "AWS::EC2::LaunchTemplate"):
        data = template.properties.get("LaunchTemplateData", {})
        if "LaunchTemplateName" in template.properties:
            yield _fault(
                template,
                "name",
                "LaunchTemplateName",
                template.properties["LaunchTemplateName"],
                "a replacement would meet its own name",
                "Leave the name to CloudFormation.",
            )
        yield from _interfaces(template, data)
        yield from _metadata(template, data)
        yield from _volumes(template, data)
        yield from _capacity(template, data)


def _interfaces(template: Resource, data: Mapping[str, Any]) -> Iterator[Finding]:
    interfaces = data.get("NetworkInterfaces", ())
    if not interfaces:
        return
    slots = [(one.get("NetworkCardIndex", 0), one.get("DeviceIndex", 0)) for one in interfaces]
    plain = [slot for slot, one in zip(slots, interfaces, strict=True) if one.get("InterfaceType") != "efa-only"]
    if (0, 0) not in plain or slots.count((0, 0)) != 1:
        yield _fault(
            template,
            "primary",
            "NetworkInterfaces",
            slots,
            "the primary interface, card 0 device 0, carries IP and cannot be EFA-only; there is one",
            "Write it once, as a plain interface.",
        )
    twice = [slot for slot, count in Counter(slots).items() if count > 1]
    if twice:
        yield _fault(
            template,
            "slots",
            "NetworkInterfaces",
            twice,
            "two interfaces share a card and a device index",
            "Give each its own.",
        )
    high = [slot for slot in slots if slot[1] > LAST_DEVICE]
    if high:
        yield _fault(
            template,
            "device-index",
            "NetworkInterfaces",
            high,
            "a device index counts within its card, and these cards take 0 and 1",
            "Start again at each card.",
        )
    if data.get("SecurityGroupIds") or data.get("SecurityGroups"):
        yield _fault(
            template,
            "security-groups",
            "SecurityGroupIds",
            data.get("SecurityGroupIds"),
            "EC2 refuses them beside interfaces",
            "Put them on the interfaces.",
        )
    for index, one in enumerate(interfaces):
        yield from _interface(template, f"NetworkInterfaces.{index}", one)


def _interface(template: Resource, path: str, interface: Mapping[str, Any]) -> Iterator[Finding]:
    if "SubnetId" in interface:
        yield _fault(
            template,
            "subnet",
            f"{path}.SubnetId",
            interface["SubnetId"],
            "a managed node group sets the subnet itself and refuses one here",
            "Leave it out.",
        )
    if "AssociatePublicIpAddress" in interface:
        yield _fault(
            template,
            "public-ip",
            f"{path}.AssociatePublicIpAddress",
            interface["AssociatePublicIpAddress"],
            "nodes are private, and EC2 refuses the flag with several interfaces",
            "Leave it out.",
        )
    if not interface.get("Groups"):
        yield _fault(
            template,
            "security-groups",
            f"{path}.Groups",
            interface.get("Groups"),
            "the interface would land in the VPC's default group",
            "Name the group.",
        )
    if interface.get("DeleteOnTermination") is not True:
        yield _fault(
            template,
            "leftovers",
            f"{path}.DeleteOnTermination",
            interface.get("DeleteOnTermination"),
            "interfaces of dead nodes would hold their addresses",
            "Set it to true.",
        )


def _metadata(template: Resource, data: Mapping[str, Any]) -> Iterator[Finding]:
    options = data.get("MetadataOptions", {})
    if options.get("HttpTokens") != "required":
        yield _fault(
            template,
            "imds-tokens",
            "MetadataOptions.HttpTokens",
            options.get("HttpTokens"),
            "one forged request reads the node's credentials",
            "Set it to required.",
        )
    if options.get("HttpPutResponseHopLimit") != HOP_LIMIT:
        yield _fault(
            template,
            "imds-hops",
            "MetadataOptions.HttpPutResponseHopLimit",
            options.get("HttpPutResponseHopLimit"),
            "pods that read region and zone from the metadata service are one hop away",
            f"Set it to {HOP_LIMIT}.",
        )


def _volumes(template: Resource, data: Mapping[str, Any]) -> Iterator[Finding]:
    mappings = data.get("BlockDeviceMappings", ())
    if not mappings:
        yield _fault(
            template,
            "root-volume",
            "BlockDeviceMappings",
            None,
            "the root volume would have the image's size and no encryption of its own",
            "Write it.",
        )
    for index, mapping in enumerate(mappings):
        volume, path = mapping.get("Ebs", {}), f"BlockDeviceMappings.{index}.Ebs"
        if volume.get("Encrypted") is not True:
            yield _fault(
                template,
                "volume-encryption",
                f"{path}.Encrypted",
                volume.get("Encrypted"),
                "images and logs would lie on the volume in the clear",
                "Set it to true.",
            )
        if volume.get("DeleteOnTermination") is not True:
            yield _fault(
                template,
                "leftovers",
                f"{path}.DeleteOnTermination",
                volume.get("DeleteOnTermination"),
                "volumes of dead nodes would be paid for",
                "Set it to true.",
            )


def _capacity(template: Resource, data: Mapping[str, Any]) -> Iterator[Finding]:
    market = data.get("InstanceMarketOptions", {})
    if market and market.get("MarketType") != "capacity-block":
        yield _fault(
            template,
            "market",
            "InstanceMarketOptions.MarketType",
            market.get("MarketType"),
            "a managed node group asks for Spot by its capacity type and refuses it here",
            "Leave it out; capacity-block alone is written here.",
        )
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    group = data.get("Placement", {}).get("GroupName")
    if market.get("MarketType") == "capacity-block" and not target.get("CapacityReservationId"):
        yield _fault(
            template,
            "market",
            "CapacityReservationSpecification",
            target or None,
            "a capacity block launches into one reservation",
            "Name its id.",
        )
    # A group by literal name is the one that the reservation was made in; one that the stack makes never is.
    if target and isinstance(group, Mapping):
        yield _fault(
            template,
            "placement",
            "Placement.GroupName",
            group,
            "reserved capacity lies where it lies, and a new placement group leaves part of it out of reach",
            "Leave the group out, or name the one that the reservation was made in.",
        )
    if market.get("MarketType") == "capacity-block" and group:
        yield _fault(
            template,
            "placement",
            "Placement.GroupName",
            group,
            "a capacity block is placed by EC2 itself",
            "Leave the group out.",
        )


def _fault(template: Resource, rule: str, path: str, value: object, why: str, fix: str) -> Finding:
    return template.finding(f"launch-template.{rule}", path, value, why, fix)
