"""Elastic IPs, NAT gateways, VPC endpoints and flow logs."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from .. import shapes, state
from ..errors import ServiceError
from ..registry import Created, Params, call, operation, resource
from . import common, interfaces
from .network import ROUTE_TABLE_MISSING, ROUTE_TABLES, SUBNET_MISSING, SUBNETS, VPC_MISSING, VPCS
from .security_groups import GROUP_MISSING, GROUPS

ADDRESSES = common.store("eipalloc")
NAT_GATEWAYS = common.store("nat")
ENDPOINTS = common.store("vpce")
FLOW_LOGS = common.store("fl")

_ADDRESS_MISSING = "InvalidAllocationID.NotFound"

# TEST-NET-2 and TEST-NET-3 (RFC 5737): addresses that no one owns
_PUBLIC_IPS = tuple(
    str(ip) for net in ("198.51.100.0/24", "203.0.113.0/24") for ip in ipaddress.ip_network(net).hosts()
)


# ---- Elastic IPs ------------------------------------------------------------------------------------------------


@operation("ec2", "AllocateAddress")
def allocate_address(params: Params) -> Params:
    allocation_id = state.hex_id("eipalloc")
    taken = {address["PublicIp"] for address in ADDRESSES.values()}
    free = next((ip for ip in _PUBLIC_IPS if ip not in taken), None)
    if free is None:
        raise ServiceError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    address = {
        "AllocationId": allocation_id,
        "PublicIp": free,
        "Domain": params.get("Domain", "vpc"),
        "Tags": common.new_tags(params, "elastic-ip"),
    }
    ADDRESSES[allocation_id] = address
    return {key: address[key] for key in ("AllocationId", "PublicIp", "Domain")}


common.describe(
    "DescribeAddresses",
    "Addresses",
    ADDRESSES,
    ids="AllocationIds",
    id_field="AllocationId",
    missing=_ADDRESS_MISSING,
)


@operation("ec2", "ReleaseAddress")
def release_address(params: Params) -> None:
    address = common.require(ADDRESSES, params.get("AllocationId"), _ADDRESS_MISSING, "allocation")
    if address.get("AssociationId"):
        raise ServiceError("InvalidIPAddress.InUse", f"Address {address['PublicIp']} is in use.")
    ADDRESSES.pop(address["AllocationId"])


def _eip_create(_name: str, props: Params) -> Created:
    sent = {"Domain": props.get("Domain", "vpc"), "TagSpecifications": common.tag_specification(props, "elastic-ip")}
    address = call("ec2", "AllocateAddress", sent)
    return address["PublicIp"], {"AllocationId": address["AllocationId"], "PublicIp": address["PublicIp"]}


def _allocation_of(public_ip: str) -> str:
    for allocation_id, address in ADDRESSES.items():
        if address["PublicIp"] == public_ip:
            return str(allocation_id)
    raise ServiceError("InvalidAddress.NotFound", f"Address {public_ip} not found.")


def _eip_update(public_ip: str, old: Params, new: Params) -> dict[str, Any]:
    allocation_id = _allocation_of(public_ip)
    common.retag(allocation_id, old, new)
    return {"AllocationId": allocation_id, "PublicIp": public_ip}


resource(
    "AWS::EC2::EIP",
    create=_eip_create,
    update=_eip_update,
    delete=lambda ip, _props: call("ec2", "ReleaseAddress", {"AllocationId": _allocation_of(ip)}),
    properties="Domain Tags",
    replaces="Domain",
)


# ---- NAT gateways -----------------------------------------------------------------------------------------------

_NAT_MISSING = "NatGatewayNotFound"


@operation("ec2", "CreateNatGateway")
def create_nat_gateway(params: Params) -> Params:
    subnet = common.require(SUBNETS, params.get("SubnetId"), SUBNET_MISSING, "subnet")
    kind = params.get("ConnectivityType", "public")
    gateway_id = state.hex_id("nat")
    addresses = []
    if kind == "public":
        address = common.require(ADDRESSES, params.get("AllocationId"), _ADDRESS_MISSING, "allocation")
        if address.get("AssociationId"):
            raise ServiceError("Resource.AlreadyAssociated", f"{address['AllocationId']} is already associated")
        address["AssociationId"] = state.hex_id("eipassoc")
        addresses = [{"AllocationId": address["AllocationId"], "PublicIp": address["PublicIp"], "IsPrimary": True}]
    NAT_GATEWAYS[gateway_id] = gateway = {
        "NatGatewayId": gateway_id,
        "SubnetId": subnet["SubnetId"],
        "VpcId": subnet["VpcId"],
        "ConnectivityType": kind,
        "NatGatewayAddresses": addresses,
        "State": "available",
        "CreateTime": state.now(),
        "Tags": common.new_tags(params, "natgateway"),
    }
    return {"NatGateway": gateway}


common.describe(
    "DescribeNatGateways",
    "NatGateways",
    NAT_GATEWAYS,
    ids="NatGatewayIds",
    id_field="NatGatewayId",
    missing=_NAT_MISSING,
)


@operation("ec2", "DeleteNatGateway")
def delete_nat_gateway(params: Params) -> Params:
    gateway = common.require(NAT_GATEWAYS, params["NatGatewayId"], _NAT_MISSING, "natGateway")
    for one in gateway["NatGatewayAddresses"]:
        ADDRESSES[one["AllocationId"]].pop("AssociationId", None)
    NAT_GATEWAYS.pop(gateway["NatGatewayId"])
    return {"NatGatewayId": gateway["NatGatewayId"]}


def _nat_create(_name: str, props: Params) -> Created:
    sent = {key: props.get(key) for key in ("SubnetId", "AllocationId", "ConnectivityType")}
    sent["TagSpecifications"] = common.tag_specification(props, "natgateway")
    gateway_id = call("ec2", "CreateNatGateway", sent)["NatGateway"]["NatGatewayId"]
    return gateway_id, {"NatGatewayId": gateway_id}


def _nat_update(gateway_id: str, old: Params, new: Params) -> dict[str, Any]:
    common.retag(gateway_id, old, new)
    return {"NatGatewayId": gateway_id}


resource(
    "AWS::EC2::NatGateway",
    create=_nat_create,
    update=_nat_update,
    delete=lambda gateway_id, _props: call("ec2", "DeleteNatGateway", {"NatGatewayId": gateway_id}),
    properties="SubnetId AllocationId ConnectivityType Tags",
    replaces="SubnetId AllocationId ConnectivityType",
)


# ---- VPC endpoints ----------------------------------------------------------------------------------------------

_ENDPOINT_MISSING = "InvalidVpcEndpointId.NotFound"
_FULL_ACCESS = json.dumps(
    {"Version": "2008-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}
)


@operation("ec2", "CreateVpcEndpoint")
def create_vpc_endpoint(params: Params) -> Params:
    common.require(VPCS, params["VpcId"], VPC_MISSING, "vpc")
    kind = params.get("VpcEndpointType", "Gateway")
    service = params.get("ServiceName", "")
    if kind == "Gateway" and not service.endswith((".s3", ".dynamodb")):
        raise ServiceError(
            "InvalidParameter", f"Endpoint type (Gateway) does not match available service types of {service}"
        )
    for table_id in params.get("RouteTableIds", []):
        common.require(ROUTE_TABLES, table_id, ROUTE_TABLE_MISSING, "routeTable")
    for subnet_id in params.get("SubnetIds", []):
        common.require(SUBNETS, subnet_id, SUBNET_MISSING, "subnet")
    for group_id in params.get("SecurityGroupIds", []):
        common.require(GROUPS, group_id, GROUP_MISSING, "security group")
    private_dns = params.get("PrivateDnsEnabled", kind == "Interface")
    if private_dns and kind == "Interface":
        for other in ENDPOINTS.values():
            if (other["VpcId"], other["ServiceName"], other["PrivateDnsEnabled"]) == (params["VpcId"], service, True):
                raise ServiceError(
                    "InvalidParameter",
                    f"private-dns-enabled cannot be set because there is already a conflicting DNS domain "
                    f"for {service} in the VPC {params['VpcId']}",
                )
    endpoint_id = state.hex_id("vpce")
    ENDPOINTS[endpoint_id] = endpoint = {
        "VpcEndpointId": endpoint_id,
        "VpcEndpointType": kind,
        "VpcId": params["VpcId"],
        "ServiceName": service,
        "State": "available",
        "PolicyDocument": params.get("PolicyDocument", _FULL_ACCESS),
        "RouteTableIds": list(params.get("RouteTableIds", [])),
        "SubnetIds": list(params.get("SubnetIds", [])),
        "Groups": interfaces.references(params.get("SecurityGroupIds", [])),
        "PrivateDnsEnabled": private_dns,
        "RequesterManaged": False,
        "NetworkInterfaceIds": [],
        "CreationTimestamp": state.now(),
        "OwnerId": state.account(),
        "Tags": common.new_tags(params, "vpc-endpoint"),
    }
    _place(endpoint)
    return {"VpcEndpoint": endpoint}


def _place(endpoint: dict[str, Any]) -> None:
    """Give the endpoint one interface in each of its subnets, in place of those it had."""
    interfaces.detach(endpoint["NetworkInterfaceIds"])
    groups = [one["GroupId"] for one in endpoint["Groups"]]
    owner = f"VPC Endpoint Interface {endpoint['VpcEndpointId']}"
    endpoint["NetworkInterfaceIds"] = [interfaces.attach(one, groups, owner) for one in endpoint["SubnetIds"]]


common.describe(
    "DescribeVpcEndpoints",
    "VpcEndpoints",
    ENDPOINTS,
    ids="VpcEndpointIds",
    id_field="VpcEndpointId",
    missing=_ENDPOINT_MISSING,
)


@operation("ec2", "ModifyVpcEndpoint")
def modify_vpc_endpoint(params: Params) -> Params:
    endpoint = common.require(ENDPOINTS, params["VpcEndpointId"], _ENDPOINT_MISSING, "vpcEndpoint")
    if params.get("ResetPolicy"):
        endpoint["PolicyDocument"] = _FULL_ACCESS
    for name in ("PolicyDocument", "PrivateDnsEnabled"):
        if name in params:
            endpoint[name] = params[name]
    for field in ("RouteTableIds", "SubnetIds"):
        removed = params.get(f"Remove{field}", [])
        endpoint[field] = [one for one in endpoint[field] if one not in removed] + params.get(f"Add{field}", [])
    removed = params.get("RemoveSecurityGroupIds", [])
    kept = [one["GroupId"] for one in endpoint["Groups"] if one["GroupId"] not in removed]
    endpoint["Groups"] = interfaces.references(kept + params.get("AddSecurityGroupIds", []))
    _place(endpoint)
    return {"Return": True}


@operation("ec2", "DeleteVpcEndpoints")
def delete_vpc_endpoints(params: Params) -> Params:
    for endpoint_id in params["VpcEndpointIds"]:
        endpoint = common.require(ENDPOINTS, endpoint_id, _ENDPOINT_MISSING, "vpcEndpoint")
        interfaces.detach(endpoint["NetworkInterfaceIds"])
        ENDPOINTS.pop(endpoint_id)
    return {"Unsuccessful": []}


_ENDPOINT_LISTS = ("RouteTableIds", "SubnetIds", "SecurityGroupIds")


def _endpoint_create(_name: str, props: Params) -> Created:
    sent = shapes.to_api("ec2", "CreateVpcEndpointRequest", {k: v for k, v in props.items() if k != "Tags"})
    sent["TagSpecifications"] = common.tag_specification(props, "vpc-endpoint")
    endpoint_id = call("ec2", "CreateVpcEndpoint", sent)["VpcEndpoint"]["VpcEndpointId"]
    return endpoint_id, _endpoint_attributes(endpoint_id)


def _endpoint_attributes(endpoint_id: str) -> dict[str, Any]:
    endpoint = ENDPOINTS[endpoint_id]
    service = endpoint["ServiceName"].rpartition(".")[2]
    names = [f"Z00000000EMULATOR:{endpoint_id}.{service}.{state.region()}.vpce.amazonaws.com"]
    return {
        "Id": endpoint_id,
        "CreationTimestamp": str(endpoint["CreationTimestamp"]),
        "NetworkInterfaceIds": endpoint["NetworkInterfaceIds"],
        "DnsEntries": names if endpoint["VpcEndpointType"] == "Interface" else [],
    }


def _endpoint_update(endpoint_id: str, old: Params, new: Params) -> dict[str, Any]:
    sent: Params = {}
    for name in _ENDPOINT_LISTS:
        before, after = old.get(name) or [], new.get(name) or []
        if set(before) != set(after):
            added, removed = [one for one in after if one not in before], [one for one in before if one not in after]
            sent |= ({f"Add{name}": added} if added else {}) | ({f"Remove{name}": removed} if removed else {})
    if old.get("PolicyDocument") != new.get("PolicyDocument"):
        document = new.get("PolicyDocument")
        sent |= {"ResetPolicy": True} if document is None else {"PolicyDocument": _text(document)}
    if old.get("PrivateDnsEnabled") != new.get("PrivateDnsEnabled"):
        sent["PrivateDnsEnabled"] = shapes.is_true(new.get("PrivateDnsEnabled", False))
    if sent:
        call("ec2", "ModifyVpcEndpoint", {"VpcEndpointId": endpoint_id, **sent})
    common.retag(endpoint_id, old, new)
    return _endpoint_attributes(endpoint_id)


def _text(document: Any) -> str:
    return document if isinstance(document, str) else json.dumps(document)


resource(
    "AWS::EC2::VPCEndpoint",
    create=_endpoint_create,
    update=_endpoint_update,
    delete=lambda endpoint_id, _props: call("ec2", "DeleteVpcEndpoints", {"VpcEndpointIds": [endpoint_id]}),
    properties="VpcId ServiceName VpcEndpointType RouteTableIds SubnetIds SecurityGroupIds PolicyDocument"
    " PrivateDnsEnabled Tags",
    replaces="ServiceName VpcEndpointType VpcId",
)


# ---- flow logs --------------------------------------------------------------------------------------------------


@operation("ec2", "CreateFlowLogs")
def create_flow_logs(params: Params) -> Params:
    kinds = {"VPC": (VPCS, VPC_MISSING), "Subnet": (SUBNETS, SUBNET_MISSING)}
    made = []
    for resource_id in params["ResourceIds"]:
        kept, missing = kinds[params["ResourceType"]]
        common.require(kept, resource_id, missing, params["ResourceType"].lower())
        flow_log_id = state.hex_id("fl")
        FLOW_LOGS[flow_log_id] = {
            "FlowLogId": flow_log_id,
            "ResourceId": resource_id,
            "FlowLogStatus": "ACTIVE",
            "DeliverLogsStatus": "SUCCESS",
            "CreationTime": state.now(),
            "LogDestinationType": params.get("LogDestinationType", "cloud-watch-logs"),
            "MaxAggregationInterval": params.get("MaxAggregationInterval", 600),
            "Tags": common.new_tags(params, "vpc-flow-log"),
            **{key: params[key] for key in _FLOW_LOG_FIELDS if key in params},
        }
        made.append(flow_log_id)
    return {"FlowLogIds": made, "Unsuccessful": []}


_FLOW_LOG_FIELDS = (
    "TrafficType",
    "LogGroupName",
    "LogDestination",
    "LogFormat",
    "DeliverLogsPermissionArn",
    "DestinationOptions",
)

common.describe(
    "DescribeFlowLogs",
    "FlowLogs",
    FLOW_LOGS,
    ids="FlowLogIds",
    id_field="FlowLogId",
    missing="InvalidFlowLogId.NotFound",
)


@operation("ec2", "DeleteFlowLogs")
def delete_flow_logs(params: Params) -> Params:
    for flow_log_id in params["FlowLogIds"]:
        common.require(FLOW_LOGS, flow_log_id, "InvalidFlowLogId.NotFound", "flow log")
        FLOW_LOGS.pop(flow_log_id)
    return {"Unsuccessful": []}


def _flow_log_create(_name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key not in ("ResourceId", "Tags")}
    sent = shapes.to_api("ec2", "CreateFlowLogsRequest", own)
    sent |= {"ResourceIds": [props["ResourceId"]], "TagSpecifications": common.tag_specification(props, "vpc-flow-log")}
    flow_log_id = call("ec2", "CreateFlowLogs", sent)["FlowLogIds"][0]
    return flow_log_id, {"Id": flow_log_id}


def _flow_log_update(flow_log_id: str, old: Params, new: Params) -> dict[str, Any]:
    common.retag(flow_log_id, old, new)
    return {"Id": flow_log_id}


_FLOW_LOG_REPLACES = (*_FLOW_LOG_FIELDS, "ResourceId", "ResourceType", "LogDestinationType", "MaxAggregationInterval")

resource(
    "AWS::EC2::FlowLog",
    create=_flow_log_create,
    update=_flow_log_update,
    delete=lambda flow_log_id, _props: call("ec2", "DeleteFlowLogs", {"FlowLogIds": [flow_log_id]}),
    properties=frozenset((*_FLOW_LOG_REPLACES, "Tags")),
    replaces=frozenset(_FLOW_LOG_REPLACES),
)
