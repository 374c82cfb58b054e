"""Network interfaces that other services put into a subnet, such as those of an endpoint or a file system."""

from __future__ import annotations

from .. import state
from ..errors import ServiceError
from ..registry import Params, operation
from . import common
from .network import SUBNETS
from .security_groups import GROUPS

INTERFACES = common.store("eni")


def attach(subnet_id: str, group_ids: list[str], owner: str) -> str:
    """Put an interface into an existing subnet for `owner`, a description; returns its id."""
    interface_id = state.hex_id("eni")
    subnet = SUBNETS[subnet_id]
    INTERFACES[interface_id] = {
        "NetworkInterfaceId": interface_id,
        "SubnetId": subnet_id,
        "VpcId": subnet["VpcId"],
        "AvailabilityZone": subnet["AvailabilityZone"],
        "Description": owner,
        "OwnerId": state.account(),
        "Status": "in-use",
        "RequesterManaged": True,
        "Groups": references(group_ids),
    }
    return interface_id


def references(group_ids: list[str]) -> list[dict[str, str]]:
    """Security groups as EC2 refers to them."""
    return [{"GroupId": one, "GroupName": GROUPS[one]["GroupName"]} for one in group_ids]


def detach(interface_ids: list[str]) -> None:
    for interface_id in interface_ids:
        INTERFACES.pop(interface_id)


common.describe(
    "DescribeNetworkInterfaces",
    "NetworkInterfaces",
    INTERFACES,
    ids="NetworkInterfaceIds",
    id_field="NetworkInterfaceId",
    missing="InvalidNetworkInterfaceID.NotFound",
)


@operation("ec2", "DeleteNetworkInterface")
def delete_network_interface(params: Params) -> None:
    """Refused: every interface here belongs to a service, which takes it away itself."""
    interface_id = params["NetworkInterfaceId"]
    common.require(INTERFACES, interface_id, "InvalidNetworkInterfaceID.NotFound", "networkInterface")
    raise ServiceError("InvalidParameterValue", f"Network interface '{interface_id}' is currently in use.")
