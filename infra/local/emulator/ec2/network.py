"""VPC, subnets, route tables and internet gateways."""

from __future__ import annotations

import ipaddress
from typing import Any

from .. import shapes, state
from ..errors import ServiceError
from ..registry import Created, Params, by_service, call, operation, resource
from . import common

VPCS = common.store("vpc")
SUBNETS = common.store("subnet")
ROUTE_TABLES = common.store("rtb")
INTERNET_GATEWAYS = common.store("igw")

VPC_MISSING = "InvalidVpcID.NotFound"
SUBNET_MISSING = "InvalidSubnetID.NotFound"
ROUTE_TABLE_MISSING = "InvalidRouteTableID.NotFound"

_VPC_SWITCHES = {"EnableDnsSupport": True, "EnableDnsHostnames": False, "EnableNetworkAddressUsageMetrics": False}


@operation("ec2", "CreateVpc")
def create_vpc(params: Params) -> Params:
    cidr = ipaddress.ip_network(params["CidrBlock"])
    if not 16 <= cidr.prefixlen <= 28:
        raise ServiceError("InvalidVpc.Range", f"The CIDR '{cidr}' is invalid: a VPC is between /16 and /28")
    vpc_id = state.hex_id("vpc")
    vpc = {
        "VpcId": vpc_id,
        "OwnerId": state.account(),
        "CidrBlock": str(cidr),
        "CidrBlockAssociationSet": [
            {
                "AssociationId": state.hex_id("vpc-cidr-assoc"),
                "CidrBlock": str(cidr),
                "CidrBlockState": {"State": "associated"},
            }
        ],
        "InstanceTenancy": params.get("InstanceTenancy", "default"),
        "IsDefault": False,
        "State": "available",
        "DhcpOptionsId": "dopt-00000000",
        "Tags": common.new_tags(params, "vpc"),
    }
    VPCS[vpc_id] = vpc
    _SWITCHES[vpc_id] = dict(_VPC_SWITCHES)
    own = {"GroupName": "default", "Description": "default VPC security group", "VpcId": vpc_id}
    with by_service("ec2.amazonaws.com"):
        _DEFAULT_GROUPS[vpc_id] = call("ec2", "CreateSecurityGroup", own)["GroupId"]
    return {"Vpc": vpc}


_SWITCHES = state.Store()  # vpc id -> the attributes that DescribeVpcAttribute returns
_DEFAULT_GROUPS = state.Store()  # vpc id -> id of its default security group

common.describe("DescribeVpcs", "Vpcs", VPCS, ids="VpcIds", id_field="VpcId", missing=VPC_MISSING)


@operation("ec2", "ModifyVpcAttribute")
def modify_vpc_attribute(params: Params) -> None:
    common.require(VPCS, params["VpcId"], VPC_MISSING, "vpc")
    for name in _VPC_SWITCHES:
        if name in params:
            _SWITCHES[params["VpcId"]][name] = params[name]["Value"]


@operation("ec2", "DescribeVpcAttribute")
def describe_vpc_attribute(params: Params) -> Params:
    common.require(VPCS, params["VpcId"], VPC_MISSING, "vpc")
    name = params["Attribute"][0].upper() + params["Attribute"][1:]
    return {"VpcId": params["VpcId"], name: {"Value": _SWITCHES[params["VpcId"]][name]}}


@operation("ec2", "DeleteVpc")
def delete_vpc(params: Params) -> None:
    vpc_id = params["VpcId"]
    common.require(VPCS, vpc_id, VPC_MISSING, "vpc")
    users = [item for kept in (SUBNETS, ROUTE_TABLES, common.store("vpce")) for item in kept.values()]
    users += [group for group in common.store("sg").values() if group["GroupName"] != "default"]
    attached = [one for gateway in INTERNET_GATEWAYS.values() for one in gateway["Attachments"]]
    if any(item["VpcId"] == vpc_id for item in users + attached):
        raise ServiceError("DependencyViolation", f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")
    common.store("sg").pop(_DEFAULT_GROUPS.pop(vpc_id), None)
    VPCS.pop(vpc_id)


def _vpc_create(_name: str, props: Params) -> Created:
    sent = {"CidrBlock": props["CidrBlock"], "InstanceTenancy": props.get("InstanceTenancy")}
    vpc = call("ec2", "CreateVpc", {**sent, "TagSpecifications": common.tag_specification(props, "vpc")})["Vpc"]
    _vpc_switches(vpc["VpcId"], {}, props)
    return vpc["VpcId"], _vpc_attributes(vpc["VpcId"])


def _vpc_attributes(vpc_id: str) -> dict[str, Any]:
    return {
        "VpcId": vpc_id,
        "CidrBlock": VPCS[vpc_id]["CidrBlock"],
        "CidrBlockAssociations": [one["AssociationId"] for one in VPCS[vpc_id]["CidrBlockAssociationSet"]],
        "DefaultSecurityGroup": _DEFAULT_GROUPS[vpc_id],
        "DefaultNetworkAcl": f"acl-{vpc_id.removeprefix('vpc-')}",
    }


def _vpc_switches(vpc_id: str, old: Params, new: Params) -> None:
    for name in ("EnableDnsSupport", "EnableDnsHostnames"):
        if old.get(name) != new.get(name):
            value = shapes.is_true(new.get(name, _VPC_SWITCHES[name]))
            call("ec2", "ModifyVpcAttribute", {"VpcId": vpc_id, name: {"Value": value}})


def _vpc_update(vpc_id: str, old: Params, new: Params) -> dict[str, Any]:
    _vpc_switches(vpc_id, old, new)
    common.retag(vpc_id, old, new)
    return _vpc_attributes(vpc_id)


resource(
    "AWS::EC2::VPC",
    create=_vpc_create,
    update=_vpc_update,
    delete=lambda vpc_id, _props: call("ec2", "DeleteVpc", {"VpcId": vpc_id}),
    properties="CidrBlock InstanceTenancy EnableDnsSupport EnableDnsHostnames Tags",
    replaces="CidrBlock InstanceTenancy",
)


# ---- subnets ----------------------------------------------------------------------------------------------------


@operation("ec2", "CreateSubnet")
def create_subnet(params: Params) -> Params:
    vpc = common.require(VPCS, params["VpcId"], VPC_MISSING, "vpc")
    cidr = ipaddress.ip_network(params["CidrBlock"])
    if not cidr.subnet_of(ipaddress.ip_network(vpc["CidrBlock"])):  # type: ignore[arg-type]
        raise ServiceError("InvalidSubnet.Range", f"The CIDR '{cidr}' is invalid.")
    for other in SUBNETS.values():
        if other["VpcId"] == vpc["VpcId"] and cidr.overlaps(ipaddress.ip_network(other["CidrBlock"])):
            raise ServiceError("InvalidSubnet.Conflict", f"The CIDR '{cidr}' conflicts with another subnet")
    zone = params.get("AvailabilityZone", f"{state.region()}a")
    if zone[:-1] != state.region():
        raise ServiceError("InvalidParameterValue", f"Value ({zone}) for parameter availabilityZone is invalid.")
    subnet_id = state.hex_id("subnet")
    SUBNETS[subnet_id] = subnet = {
        "SubnetId": subnet_id,
        "SubnetArn": state.arn("ec2", f"subnet/{subnet_id}"),
        "VpcId": vpc["VpcId"],
        "OwnerId": state.account(),
        "CidrBlock": str(cidr),
        "AvailabilityZone": zone,
        "AvailabilityZoneId": f"{state.region()}-az{ord(zone[-1]) - 96}",
        "AvailableIpAddressCount": cidr.num_addresses - 5,
        "MapPublicIpOnLaunch": False,
        "DefaultForAz": False,
        "AssignIpv6AddressOnCreation": False,
        "State": "available",
        "Tags": common.new_tags(params, "subnet"),
    }
    return {"Subnet": subnet}


common.describe("DescribeSubnets", "Subnets", SUBNETS, ids="SubnetIds", id_field="SubnetId", missing=SUBNET_MISSING)


@operation("ec2", "ModifySubnetAttribute")
def modify_subnet_attribute(params: Params) -> None:
    subnet = common.require(SUBNETS, params["SubnetId"], SUBNET_MISSING, "subnet")
    if "MapPublicIpOnLaunch" in params:
        subnet["MapPublicIpOnLaunch"] = params["MapPublicIpOnLaunch"]["Value"]


@operation("ec2", "DeleteSubnet")
def delete_subnet(params: Params) -> None:
    subnet_id = params["SubnetId"]
    common.require(SUBNETS, subnet_id, SUBNET_MISSING, "subnet")
    users = [gateway["SubnetId"] for gateway in common.store("nat").values()]
    users += [interface["SubnetId"] for interface in common.store("eni").values()]
    if subnet_id in users:
        raise ServiceError("DependencyViolation", f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")
    SUBNETS.pop(subnet_id)
    for table in ROUTE_TABLES.values():
        table["Associations"] = [one for one in table["Associations"] if one["SubnetId"] != subnet_id]


def _subnet_create(_name: str, props: Params) -> Created:
    sent = {key: props.get(key) for key in ("VpcId", "CidrBlock", "AvailabilityZone")}
    subnet = call("ec2", "CreateSubnet", {**sent, "TagSpecifications": common.tag_specification(props, "subnet")})[
        "Subnet"
    ]
    if shapes.is_true(props.get("MapPublicIpOnLaunch", False)):
        _map_public_ip(subnet["SubnetId"], value=True)
    return subnet["SubnetId"], _subnet_attributes(subnet)


def _map_public_ip(subnet_id: str, *, value: bool) -> None:
    call("ec2", "ModifySubnetAttribute", {"SubnetId": subnet_id, "MapPublicIpOnLaunch": {"Value": value}})


def _subnet_attributes(subnet: Params) -> dict[str, Any]:
    names = ("SubnetId", "VpcId", "AvailabilityZone", "AvailabilityZoneId", "CidrBlock")
    return {name: subnet[name] for name in names}


def _subnet_update(subnet_id: str, old: Params, new: Params) -> dict[str, Any]:
    if old.get("MapPublicIpOnLaunch") != new.get("MapPublicIpOnLaunch"):
        _map_public_ip(subnet_id, value=shapes.is_true(new.get("MapPublicIpOnLaunch", False)))
    common.retag(subnet_id, old, new)
    return _subnet_attributes(SUBNETS[subnet_id])


resource(
    "AWS::EC2::Subnet",
    create=_subnet_create,
    update=_subnet_update,
    delete=lambda subnet_id, _props: call("ec2", "DeleteSubnet", {"SubnetId": subnet_id}),
    properties="VpcId CidrBlock AvailabilityZone MapPublicIpOnLaunch Tags",
    replaces="VpcId CidrBlock AvailabilityZone",
)


# ---- internet gateways ------------------------------------------------------------------------------------------

_IGW_MISSING = "InvalidInternetGatewayID.NotFound"


@operation("ec2", "CreateInternetGateway")
def create_internet_gateway(params: Params) -> Params:
    gateway_id = state.hex_id("igw")
    tags = common.new_tags(params, "internet-gateway")
    INTERNET_GATEWAYS[gateway_id] = gateway = {
        "InternetGatewayId": gateway_id,
        "OwnerId": state.account(),
        "Attachments": [],
        "Tags": tags,
    }
    return {"InternetGateway": gateway}


common.describe(
    "DescribeInternetGateways",
    "InternetGateways",
    INTERNET_GATEWAYS,
    ids="InternetGatewayIds",
    id_field="InternetGatewayId",
    missing=_IGW_MISSING,
)


@operation("ec2", "AttachInternetGateway")
def attach_internet_gateway(params: Params) -> None:
    gateway = common.require(INTERNET_GATEWAYS, params["InternetGatewayId"], _IGW_MISSING, "internetGateway")
    common.require(VPCS, params["VpcId"], VPC_MISSING, "vpc")
    if gateway["Attachments"]:
        raise ServiceError("Resource.AlreadyAssociated", f"{params['InternetGatewayId']} is already attached")
    gateway["Attachments"] = [{"VpcId": params["VpcId"], "State": "available"}]


@operation("ec2", "DetachInternetGateway")
def detach_internet_gateway(params: Params) -> None:
    gateway = common.require(INTERNET_GATEWAYS, params["InternetGatewayId"], _IGW_MISSING, "internetGateway")
    gateway["Attachments"] = [one for one in gateway["Attachments"] if one["VpcId"] != params["VpcId"]]


@operation("ec2", "DeleteInternetGateway")
def delete_internet_gateway(params: Params) -> None:
    gateway = common.require(INTERNET_GATEWAYS, params["InternetGatewayId"], _IGW_MISSING, "internetGateway")
    if gateway["Attachments"]:
        raise ServiceError("DependencyViolation", f"{params['InternetGatewayId']} is attached and cannot be deleted")
    INTERNET_GATEWAYS.pop(params["InternetGatewayId"])


def _igw_create(_name: str, props: Params) -> Created:
    specs = common.tag_specification(props, "internet-gateway")
    gateway = call("ec2", "CreateInternetGateway", {"TagSpecifications": specs})["InternetGateway"]
    return gateway["InternetGatewayId"], {"InternetGatewayId": gateway["InternetGatewayId"]}


def _igw_update(gateway_id: str, old: Params, new: Params) -> dict[str, Any]:
    common.retag(gateway_id, old, new)
    return {"InternetGatewayId": gateway_id}


resource(
    "AWS::EC2::InternetGateway",
    create=_igw_create,
    update=_igw_update,
    delete=lambda gateway_id, _props: call("ec2", "DeleteInternetGateway", {"InternetGatewayId": gateway_id}),
    properties="Tags",
)


def _attachment_create(_name: str, props: Params) -> Created:
    call("ec2", "AttachInternetGateway", props)
    return f"IGW|{props['VpcId']}", {"AttachmentType": "IGW"}


def _attachment_update(_id: str, old: Params, new: Params) -> dict[str, Any]:
    call("ec2", "DetachInternetGateway", old)
    call("ec2", "AttachInternetGateway", new)
    return {"AttachmentType": "IGW"}


resource(
    "AWS::EC2::VPCGatewayAttachment",
    create=_attachment_create,
    update=_attachment_update,
    delete=lambda _id, props: call("ec2", "DetachInternetGateway", props),
    properties="VpcId InternetGatewayId",
    replaces="VpcId",
    tags=None,
)
