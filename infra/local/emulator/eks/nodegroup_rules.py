"""What EKS refuses when a managed node group is created or moved to another launch template version."""

from __future__ import annotations

from typing import Any

from ..ec2 import launch_templates
from ..ec2.network import SUBNETS
from ..ec2.security_groups import GROUPS
from ..errors import ServiceError
from ..registry import Params
from .common import invalid


def resolve_template(spec: Params) -> tuple[dict[str, str], dict[str, Any]]:
    """(what DescribeNodegroup shows of the launch template, its data). Raises when the template or version is unknown."""
    try:
        template = launch_templates.find(spec.get("id"), spec.get("name"))
        version = launch_templates.version_of(template, spec.get("version"))
    except ServiceError as error:
        raise invalid(f"{error.message} ({error.code})") from error
    shown = {
        "id": template["LaunchTemplateId"],
        "name": template["LaunchTemplateName"],
        "version": str(version["VersionNumber"]),
    }
    return shown, version["LaunchTemplateData"]


def check_sizes(scaling: dict[str, int]) -> None:
    low, want, high = scaling["minSize"], scaling["desiredSize"], scaling["maxSize"]
    if high < 1:
        raise invalid(f"maxSize can't be less than 1: {high}")
    if low > high:
        raise invalid(f"Minimum capacity {low} can't be greater than maximum size {high}")
    if want < low:
        raise invalid(f"Minimum capacity {low} can't be greater than desired size {want}")
    if want > high:
        raise invalid(f"desired capacity {want} can't be greater than max size {high}")


def check_subnets(subnet_ids: list[str]) -> list[dict[str, Any]]:
    """The node group's subnets. Raises when one does not exist."""
    for subnet_id in subnet_ids:
        if subnet_id not in SUBNETS:
            raise invalid(f"The subnet ID '{subnet_id}' does not exist")
    return [SUBNETS[one] for one in subnet_ids]


def check_template(group: Params, data: dict[str, Any] | None) -> None:
    """Raises InvalidParameterException for what EKS refuses in a node group with this launch template data (None: no template).

    group: parameters of CreateNodegroup, or the node group as stored.
    """
    if data is None:
        if group.get("capacityType") == "CAPACITY_BLOCK":
            raise invalid("Capacity Block node groups must be created with a launch template")
        if group.get("amiType") == "CUSTOM":
            raise invalid("AMI type CUSTOM needs a launch template that specifies an image id")
        return
    _check_what_belongs_to_the_group(group, data)
    _check_image(group, data)
    _check_market(group, data)
    _check_references(data)
    problems = launch_templates.interface_problems(data)
    if problems:
        raise invalid(f"Launch template is not valid: {'; '.join(problems)}")


def _check_what_belongs_to_the_group(group: Params, data: dict[str, Any]) -> None:
    if group.get("instanceTypes") and data.get("InstanceType"):
        raise invalid(
            "You cannot specify instance types in both the node group and its launch template: "
            f"{', '.join(group['instanceTypes'])} and {data['InstanceType']}"
        )
    if group.get("diskSize") is not None:
        raise invalid("Disk size must be specified within the launch template")
    if any("SubnetId" in one for one in data.get("NetworkInterfaces") or []):
        raise invalid(
            "Launch template must not specify a subnet id in its network interfaces; set the node group's subnets"
        )
    for name in ("IamInstanceProfile", "HibernationOptions"):
        if data.get(name):
            raise invalid(f"Launch template must not specify {name} for a managed node group")
    if (data.get("InstanceInitiatedShutdownBehavior") or "terminate") != "terminate":
        raise invalid("Launch template must not specify InstanceInitiatedShutdownBehavior for a managed node group")


def _check_image(group: Params, data: dict[str, Any]) -> None:
    if not data.get("ImageId"):
        if group.get("amiType") == "CUSTOM":
            raise invalid("AMI type CUSTOM needs an image id in the launch template")
        return
    if group.get("amiType") not in (None, "CUSTOM"):
        raise invalid(
            "You cannot specify an AMI Type other than CUSTOM, when specifying an image id in your launch template: "
            f"{group['amiType']} and {data['ImageId']}"
        )
    for name in ("releaseVersion", "version"):
        if group.get(name):
            raise invalid(f"You cannot specify the field {name} when using custom AMIs")


def _check_market(group: Params, data: dict[str, Any]) -> None:
    market = (data.get("InstanceMarketOptions") or {}).get("MarketType")
    block = group.get("capacityType") == "CAPACITY_BLOCK"
    if market == "spot":
        raise invalid(
            "Launch template must not request Spot Instances: InstanceMarketOptions spot is refused for a managed "
            "node group; set the node group's capacity type to SPOT"
        )
    if block and market != "capacity-block":
        raise invalid("A CAPACITY_BLOCK node group needs market type capacity-block in its launch template")
    if market == "capacity-block" and not block:
        raise invalid("Market type capacity-block in the launch template needs capacity type CAPACITY_BLOCK")
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    if block and not target.get("CapacityReservationId"):
        raise invalid("A CAPACITY_BLOCK node group needs the reservation id of its block in the launch template")
    if block and not data.get("InstanceType"):
        raise invalid("A CAPACITY_BLOCK node group needs the instance type in its launch template")


def _check_references(data: dict[str, Any]) -> None:
    groups = list(data.get("SecurityGroupIds") or [])
    groups += [one for interface in data.get("NetworkInterfaces") or [] for one in interface.get("Groups", [])]
    for group_id in groups:
        if group_id not in GROUPS:
            raise invalid(f"The security group '{group_id}' does not exist")
    placement = (data.get("Placement") or {}).get("GroupName")
    if placement:
        try:
            launch_templates.placement_group(placement)
        except ServiceError as error:
            raise invalid(error.message) from error
