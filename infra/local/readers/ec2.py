"""Readers for EC2."""

from __future__ import annotations

from typing import Any

from .base import Actual, NotThereError, Properties, Reader, Source, one, tag_list


def _described(source: Source, operation: str, result: str, **parameters: Any) -> dict[str, Any]:
    found: dict[str, Any] = one(getattr(source.client("ec2"), operation)(**parameters)[result], operation)
    return {**found, "Tags": tag_list(found.get("Tags"))}


def vpc(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_vpcs", "Vpcs", VpcIds=[physical_id])
    for name in ("EnableDnsSupport", "EnableDnsHostnames"):
        attribute = name[0].lower() + name[1:]
        reply = source.client("ec2").describe_vpc_attribute(VpcId=physical_id, Attribute=attribute)
        found[name] = reply[name]["Value"]
    of_vpc = [{"Name": "vpc-id", "Values": [physical_id]}, {"Name": "group-name", "Values": ["default"]}]
    group = one(source.client("ec2").describe_security_groups(Filters=of_vpc)["SecurityGroups"], "default group")
    return Actual(
        found, {"VpcId": physical_id, "CidrBlock": found["CidrBlock"], "DefaultSecurityGroup": group["GroupId"]}
    )


def subnet(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_subnets", "Subnets", SubnetIds=[physical_id])
    return Actual(found, found)


def route_table(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_route_tables", "RouteTables", RouteTableIds=[physical_id])
    return Actual(found, {"RouteTableId": physical_id})


def route(source: Source, physical_id: str, _props: Properties) -> Actual:
    table_id, _, destination = physical_id.partition("|")
    table = _described(source, "describe_route_tables", "RouteTables", RouteTableIds=[table_id])
    kinds = ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")
    found = one([row for row in table["Routes"] if destination in [row.get(kind) for kind in kinds]], physical_id)
    endpoint = {"VpcEndpointId": found["GatewayId"]} if found.get("GatewayId", "").startswith("vpce-") else {}
    return Actual({**found, **endpoint, "RouteTableId": table_id}, {"CidrBlock": destination})


def route_association(source: Source, physical_id: str, _props: Properties) -> Actual:
    filters = [{"Name": "association.route-table-association-id", "Values": [physical_id]}]
    table = one(source.client("ec2").describe_route_tables(Filters=filters)["RouteTables"], physical_id)
    found = one([row for row in table["Associations"] if row["RouteTableAssociationId"] == physical_id], physical_id)
    return Actual(found, {"Id": physical_id})


def internet_gateway(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_internet_gateways", "InternetGateways", InternetGatewayIds=[physical_id])
    return Actual(found, {"InternetGatewayId": physical_id})


def gateway_attachment(source: Source, physical_id: str, _props: Properties) -> Actual:
    filters = [{"Name": "attachment.vpc-id", "Values": [physical_id.rpartition("|")[2]]}]
    found = one(source.client("ec2").describe_internet_gateways(Filters=filters)["InternetGateways"], physical_id)
    return Actual({**found, "VpcId": found["Attachments"][0]["VpcId"]})


def elastic_ip(source: Source, physical_id: str, _props: Properties) -> Actual:
    filters = [{"Name": "public-ip", "Values": [physical_id]}]
    found = _described(source, "describe_addresses", "Addresses", Filters=filters)
    return Actual(found, {"AllocationId": found["AllocationId"], "PublicIp": found["PublicIp"]})


def nat_gateway(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_nat_gateways", "NatGateways", NatGatewayIds=[physical_id])
    addresses = found["NatGatewayAddresses"]
    allocation = {"AllocationId": addresses[0]["AllocationId"]} if addresses else {}
    return Actual({**found, **allocation}, {"NatGatewayId": physical_id})


def vpc_endpoint(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_vpc_endpoints", "VpcEndpoints", VpcEndpointIds=[physical_id])
    groups = [group["GroupId"] for group in found.get("Groups", [])]
    attributes = {"Id": physical_id, "NetworkInterfaceIds": found.get("NetworkInterfaceIds", [])}
    return Actual({**found, "SecurityGroupIds": groups}, attributes)


def _rule(row: dict[str, Any]) -> Properties:
    """A security group rule as AWS::EC2::SecurityGroupIngress and Egress write it."""
    peer = row.get("ReferencedGroupInfo", {}).get("GroupId")
    side = "Destination" if row["IsEgress"] else "Source"
    members = {
        "GroupId": row["GroupId"],
        "IpProtocol": row["IpProtocol"],
        "FromPort": row.get("FromPort"),
        "ToPort": row.get("ToPort"),
        "CidrIp": row.get("CidrIpv4"),
        "CidrIpv6": row.get("CidrIpv6"),
        "Description": row.get("Description"),
        f"{side}SecurityGroupId": peer,
        f"{side}PrefixListId": row.get("PrefixListId"),
    }
    return {key: value for key, value in members.items() if value is not None}


def security_group(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_security_groups", "SecurityGroups", GroupIds=[physical_id])
    filters = [{"Name": "group-id", "Values": [physical_id]}]
    rows = source.client("ec2").describe_security_group_rules(Filters=filters)["SecurityGroupRules"]
    own = [row for row in rows if row["SecurityGroupRuleId"] not in source.owned]
    rules = {
        "SecurityGroupIngress": [_rule(row) for row in own if not row["IsEgress"]],
        "SecurityGroupEgress": [_rule(row) for row in own if row["IsEgress"]],
    }
    attributes = {"GroupId": physical_id, "Id": physical_id, "VpcId": found["VpcId"]}
    return Actual({**found, "GroupDescription": found["Description"], **rules}, attributes)


def security_group_rule(source: Source, physical_id: str, _props: Properties) -> Actual:
    reply = source.client("ec2").describe_security_group_rules(SecurityGroupRuleIds=[physical_id])
    return Actual(_rule(one(reply["SecurityGroupRules"], physical_id)), {"Id": physical_id})


def placement_group(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_placement_groups", "PlacementGroups", GroupNames=[physical_id])
    return Actual(found, {"GroupName": physical_id, "GroupId": found["GroupId"]})


def launch_template(source: Source, physical_id: str, _props: Properties) -> Actual:
    template = _described(source, "describe_launch_templates", "LaunchTemplates", LaunchTemplateIds=[physical_id])
    reply = source.client("ec2").describe_launch_template_versions(LaunchTemplateId=physical_id, Versions=["$Latest"])
    version = one(reply["LaunchTemplateVersions"], physical_id)
    specification = {"TagSpecifications": [{"ResourceType": "launch-template", "Tags": template["Tags"]}]}
    numbers = {name: str(template[name]) for name in ("DefaultVersionNumber", "LatestVersionNumber")}
    return Actual({**template, **version, **specification}, {"LaunchTemplateId": physical_id, **numbers})


def flow_log(source: Source, physical_id: str, _props: Properties) -> Actual:
    found = _described(source, "describe_flow_logs", "FlowLogs", FlowLogIds=[physical_id])
    kinds = {"vpc": "VPC", "subnet": "Subnet", "eni": "NetworkInterface"}
    kind = kinds.get(found["ResourceId"].partition("-")[0])
    if kind is None:
        raise NotThereError(f"{physical_id}: flow log of {found['ResourceId']}")
    return Actual({**found, "ResourceType": kind}, {"Id": physical_id})


READERS: dict[str, Reader] = {
    "AWS::EC2::EIP": elastic_ip,
    "AWS::EC2::FlowLog": flow_log,
    "AWS::EC2::InternetGateway": internet_gateway,
    "AWS::EC2::LaunchTemplate": launch_template,
    "AWS::EC2::NatGateway": nat_gateway,
    "AWS::EC2::PlacementGroup": placement_group,
    "AWS::EC2::Route": route,
    "AWS::EC2::RouteTable": route_table,
    "AWS::EC2::SecurityGroup": security_group,
    "AWS::EC2::SecurityGroupEgress": security_group_rule,
    "AWS::EC2::SecurityGroupIngress": security_group_rule,
    "AWS::EC2::Subnet": subnet,
    "AWS::EC2::SubnetRouteTableAssociation": route_association,
    "AWS::EC2::VPC": vpc,
    "AWS::EC2::VPCEndpoint": vpc_endpoint,
    "AWS::EC2::VPCGatewayAttachment": gateway_attachment,
}
