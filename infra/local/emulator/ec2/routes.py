"""Route tables, routes and their subnet associations."""

from __future__ import annotations

from typing import Any

from .. import state
from ..errors import ServiceError
from ..registry import Created, Params, call, operation, resource
from . import common
from .network import ROUTE_TABLE_MISSING, ROUTE_TABLES, SUBNET_MISSING, SUBNETS, VPC_MISSING, VPCS

_TARGETS = ("GatewayId", "NatGatewayId", "VpcEndpointId", "NetworkInterfaceId", "TransitGatewayId")


@operation("ec2", "CreateRouteTable")
def create_route_table(params: Params) -> Params:
    vpc = common.require(VPCS, params["VpcId"], VPC_MISSING, "vpc")
    table_id = state.hex_id("rtb")
    local = {
        "DestinationCidrBlock": vpc["CidrBlock"],
        "GatewayId": "local",
        "Origin": "CreateRouteTable",
        "State": "active",
    }
    ROUTE_TABLES[table_id] = table = {
        "RouteTableId": table_id,
        "VpcId": vpc["VpcId"],
        "OwnerId": state.account(),
        "Routes": [local],
        "Associations": [],
        "Tags": common.new_tags(params, "route-table"),
    }
    return {"RouteTable": table}


common.describe(
    "DescribeRouteTables",
    "RouteTables",
    ROUTE_TABLES,
    ids="RouteTableIds",
    id_field="RouteTableId",
    missing=ROUTE_TABLE_MISSING,
)


@operation("ec2", "DeleteRouteTable")
def delete_route_table(params: Params) -> None:
    table = _table(params["RouteTableId"])
    if table["Associations"]:
        raise ServiceError("DependencyViolation", f"The routeTable '{table['RouteTableId']}' has dependencies")
    ROUTE_TABLES.pop(table["RouteTableId"])


def _table(table_id: str) -> dict[str, Any]:
    return common.require(ROUTE_TABLES, table_id, ROUTE_TABLE_MISSING, "routeTable")


def _destination(params: Params) -> tuple[str, str]:
    for name in ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId"):
        if params.get(name):
            return name, params[name]
    raise ServiceError("MissingParameter", "The request must contain a destination")


def _check_target(params: Params) -> None:
    for name, prefix in (("NatGatewayId", "nat"), ("VpcEndpointId", "vpce"), ("GatewayId", "igw")):
        target = params.get(name)
        if target and target != "local" and common.store(prefix).get(target) is None:
            raise ServiceError(f"Invalid{name}.NotFound", f"The {name} '{target}' does not exist")


@operation("ec2", "CreateRoute")
def create_route(params: Params) -> Params:
    table, (name, value) = _table(params["RouteTableId"]), _destination(params)
    if any(route.get(name) == value for route in table["Routes"]):
        raise ServiceError("RouteAlreadyExists", f"The route identified by {value} already exists.")
    _check_target(params)
    target = {key: params[key] for key in _TARGETS if key in params}
    table["Routes"].append({name: value, **target, "Origin": "CreateRoute", "State": "active"})
    return {"Return": True}


@operation("ec2", "ReplaceRoute")
def replace_route(params: Params) -> None:
    delete_route(params)
    create_route(params)


@operation("ec2", "DeleteRoute")
def delete_route(params: Params) -> None:
    table, (name, value) = _table(params["RouteTableId"]), _destination(params)
    kept = [route for route in table["Routes"] if route.get(name) != value]
    if len(kept) == len(table["Routes"]):
        raise ServiceError("InvalidRoute.NotFound", f"no route with destination {value} in {table['RouteTableId']}")
    table["Routes"] = kept


@operation("ec2", "AssociateRouteTable")
def associate_route_table(params: Params) -> Params:
    table = _table(params["RouteTableId"])
    subnet = common.require(SUBNETS, params.get("SubnetId"), SUBNET_MISSING, "subnet")
    taken = [one for other in ROUTE_TABLES.values() for one in other["Associations"]]
    if any(one["SubnetId"] == subnet["SubnetId"] for one in taken):
        raise ServiceError("Resource.AlreadyAssociated", f"{subnet['SubnetId']} is already associated")
    association = {
        "RouteTableAssociationId": state.hex_id("rtbassoc"),
        "RouteTableId": table["RouteTableId"],
        "SubnetId": subnet["SubnetId"],
        "Main": False,
        "AssociationState": {"State": "associated"},
    }
    table["Associations"].append(association)
    return {"AssociationId": association["RouteTableAssociationId"]}


@operation("ec2", "DisassociateRouteTable")
def disassociate_route_table(params: Params) -> None:
    for table in ROUTE_TABLES.values():
        kept = [one for one in table["Associations"] if one["RouteTableAssociationId"] != params["AssociationId"]]
        if len(kept) != len(table["Associations"]):
            table["Associations"] = kept
            return
    raise ServiceError(
        "InvalidAssociationID.NotFound", f"The association ID '{params['AssociationId']}' does not exist"
    )


def _table_create(_name: str, props: Params) -> Created:
    sent = {"VpcId": props["VpcId"], "TagSpecifications": common.tag_specification(props, "route-table")}
    table_id = call("ec2", "CreateRouteTable", sent)["RouteTable"]["RouteTableId"]
    return table_id, {"RouteTableId": table_id}


def _table_update(table_id: str, old: Params, new: Params) -> dict[str, Any]:
    common.retag(table_id, old, new)
    return {"RouteTableId": table_id}


resource(
    "AWS::EC2::RouteTable",
    create=_table_create,
    update=_table_update,
    delete=lambda table_id, _props: call("ec2", "DeleteRouteTable", {"RouteTableId": table_id}),
    properties="VpcId Tags",
    replaces="VpcId",
)


def _route_create(_name: str, props: Params) -> Created:
    call("ec2", "CreateRoute", props)
    _, destination = _destination(props)
    return f"{props['RouteTableId']}|{destination}", {"CidrBlock": destination}


def _route_update(_id: str, _old: Params, new: Params) -> dict[str, Any]:
    call("ec2", "ReplaceRoute", new)
    return {"CidrBlock": _destination(new)[1]}


def _route_delete(_id: str, props: Params) -> None:
    name, value = _destination(props)
    call("ec2", "DeleteRoute", {"RouteTableId": props["RouteTableId"], name: value})


resource(
    "AWS::EC2::Route",
    create=_route_create,
    update=_route_update,
    delete=_route_delete,
    properties="RouteTableId DestinationCidrBlock GatewayId NatGatewayId",
    replaces="RouteTableId DestinationCidrBlock",
    tags=None,
)


def _association_create(_name: str, props: Params) -> Created:
    association_id = call("ec2", "AssociateRouteTable", props)["AssociationId"]
    return association_id, {"Id": association_id}


resource(
    "AWS::EC2::SubnetRouteTableAssociation",
    create=_association_create,
    delete=lambda association_id, _props: call("ec2", "DisassociateRouteTable", {"AssociationId": association_id}),
    properties="SubnetId RouteTableId",
    replaces="SubnetId RouteTableId",
    tags=None,
)
