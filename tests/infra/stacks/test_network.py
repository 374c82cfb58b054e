"""The network of every shipped environment, and of those that differ in egress and API endpoint."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from .resources import ENVIRONMENTS, Plans, Template, Templates, of_type, properties

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {}) for name in ENVIRONMENTS),
    ("reference-p5en", {"network.egress": "none"}),
    ("starter-p5en", {"kubernetes.endpoint": {"public_cidrs": ["203.0.113.0/24"]}}),
    ("starter-p5en", {"network.zones": ["us-west-2b", "us-west-2d"]}),
)
ALLOW_ALL = ("cidr", "0.0.0.0/0", "-1", None)
SELF = ("group", "itself", "-1", None)

every_variant = pytest.mark.parametrize(
    ("name", "changes"), VARIANTS, ids=[f"{name}-{list(c)}" for name, c in VARIANTS]
)


@every_variant
def test_subnets_are_exactly_the_plans_one_per_kind_and_zone(
    name: str, changes: dict[str, Any], plan: Plans, template: Templates
) -> None:
    planned = plan(name, changes)
    made = [
        (s["AvailabilityZone"], s["CidrBlock"]) for s in properties(template(planned, "network"), "AWS::EC2::Subnet")
    ]
    assert sorted(made) == sorted((subnet.zone, subnet.cidr) for subnet in planned.network.subnets)
    places = [(subnet.kind, subnet.zone) for subnet in planned.network.subnets]
    assert len(places) == len(set(places))


def test_three_configured_zones_give_subnets_in_exactly_those_three(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    zones = {subnet["AvailabilityZone"] for subnet in properties(template(planned, "network"), "AWS::EC2::Subnet")}
    assert zones == {"us-west-2a", "us-west-2b", "us-west-2c"}


@every_variant
def test_no_subnet_gives_public_addresses(name: str, changes: dict[str, Any], plan: Plans, template: Templates) -> None:
    subnets = properties(template(plan(name, changes), "network"), "AWS::EC2::Subnet")
    assert [subnet["MapPublicIpOnLaunch"] for subnet in subnets] == [False] * len(subnets)


@every_variant
def test_s3_gateway_endpoint_is_on_every_private_route_table(
    name: str, changes: dict[str, Any], plan: Plans, template: Templates
) -> None:
    planned = plan(name, changes)
    network = template(planned, "network")
    private = {
        table
        for subnet, table in _route_tables(network).items()
        if network["Resources"][subnet]["Properties"]["CidrBlock"]
        in {one.cidr for one in planned.network.subnets if one.kind != "public"}
    }
    (endpoint,) = [e for e in properties(network, "AWS::EC2::VPCEndpoint") if e["VpcEndpointType"] == "Gateway"]
    assert endpoint["ServiceName"] == f"com.amazonaws.{planned.region}.s3"
    assert len(private) == len(planned.network.zones)
    assert {table["Ref"] for table in endpoint["RouteTableIds"]} == private


@every_variant
def test_every_subnet_has_one_route_table(name: str, changes: dict[str, Any], plan: Plans, template: Templates) -> None:
    network = template(plan(name, changes), "network")
    associated = [one["SubnetId"]["Ref"] for one in properties(network, "AWS::EC2::SubnetRouteTableAssociation")]
    assert sorted(associated) == sorted(_ids(network, "AWS::EC2::Subnet"))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_each_private_subnet_leaves_by_the_nat_gateway_of_its_own_zone(
    name: str, plan: Plans, template: Templates
) -> None:
    planned = plan(name)
    network = template(planned, "network")
    resources, tables = network["Resources"], _route_tables(network)
    gateways = {route["RouteTableId"]["Ref"]: route for route in properties(network, "AWS::EC2::Route")}
    public = {subnet.cidr for subnet in planned.network.subnets if subnet.kind == "public"}
    for subnet in _ids(network, "AWS::EC2::Subnet"):
        written = resources[subnet]["Properties"]
        route = gateways[tables[subnet]]
        if written["CidrBlock"] in public:
            assert route["GatewayId"] == {"Ref": "InternetGateway"}
            continue
        nat = resources[route["NatGatewayId"]["Ref"]]["Properties"]
        beside = resources[nat["SubnetId"]["Ref"]]["Properties"]
        assert beside["AvailabilityZone"] == written["AvailabilityZone"]
        assert beside["CidrBlock"] in public
    assert len(_ids(network, "AWS::EC2::NatGateway")) == len(planned.network.zones)


def test_without_egress_nothing_leads_out_of_the_vpc(plan: Plans, template: Templates) -> None:
    network = template(plan("reference-p5en", {"network.egress": "none"}), "network")
    kinds = {resource["Type"] for resource in network["Resources"].values()}
    assert kinds.isdisjoint({"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway", "AWS::EC2::EIP", "AWS::EC2::Route"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"network.egress": "none"}, True),
        ({"kubernetes.endpoint": {"public_cidrs": ["203.0.113.0/24"]}}, False),
        ({"network.egress": "none", "kubernetes.endpoint": {"public_cidrs": ["203.0.113.0/24"]}}, True),
    ],
)
def test_interface_endpoints_exist_where_egress_or_api_server_is_private(
    changes: dict[str, Any], expected: bool, plan: Plans, template: Templates
) -> None:
    network = template(plan("starter-p5en", changes), "network")
    services = {endpoint["ServiceName"].removeprefix("com.amazonaws.us-west-2.") for endpoint in _interface(network)}
    wanted = {
        *("ecr.api", "ecr.dkr", "sts", "ec2", "eks", "eks-auth", "autoscaling", "elasticloadbalancing", "sqs", "kms"),
        *("logs", "monitoring", "ssm", "ssmmessages", "ec2messages"),
    }
    assert services == (wanted if expected else set())


@pytest.mark.parametrize(("name", "expected"), [("reference-p5en", True), ("starter-p5en", False)])
def test_fsx_has_an_endpoint_exactly_where_scratch_is_fsx(
    name: str, expected: bool, plan: Plans, template: Templates
) -> None:
    services = [endpoint["ServiceName"] for endpoint in _interface(template(plan(name), "network"))]
    assert ("com.amazonaws.us-west-2.fsx" in services) is expected


def test_interface_endpoints_answer_in_each_private_subnet_under_the_services_own_name(
    plan: Plans, template: Templates
) -> None:
    network = template(plan("reference-p5en"), "network")
    subnets = [{"Ref": f"PrivateSubnet{letter}"} for letter in "ABC"]
    group = {"Fn::GetAtt": ["EndpointSecurityGroup", "GroupId"]}
    for endpoint in _interface(network):
        assert (endpoint["PrivateDnsEnabled"], endpoint["SubnetIds"]) == (True, subnets)
        assert endpoint["SecurityGroupIds"] == [group]


def test_endpoint_group_lets_https_in_from_the_vpc_and_nothing_out(plan: Plans, template: Templates) -> None:
    network = template(plan("reference-p5en"), "network")
    group = network["Resources"]["EndpointSecurityGroup"]["Properties"]
    rules = [(r["IpProtocol"], r["FromPort"], r["ToPort"], r["CidrIp"]) for r in group["SecurityGroupIngress"]]
    assert rules == [("tcp", 443, 443, "10.0.0.0/16")]
    # Absent or empty, EC2's allow-all default would stand.
    assert [(rule["IpProtocol"], rule["CidrIp"]) for rule in group["SecurityGroupEgress"]] == [("-1", "127.0.0.1/32")]
    assert _rules(network, "Egress", "EndpointSecurityGroup") == {}


@every_variant
def test_efa_group_has_ingress_from_itself_and_nothing_else(
    name: str, changes: dict[str, Any], plan: Plans, template: Templates
) -> None:
    network = template(plan(name, changes), "network")
    group = network["Resources"]["EfaSecurityGroup"]["Properties"]
    assert group.keys().isdisjoint({"SecurityGroupIngress", "SecurityGroupEgress", "GroupName"})
    assert list(_rules(network, "Ingress", "EfaSecurityGroup").values()) == [SELF]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_efa_group_keeps_self_and_open_egress_in_whatever_order_cloudformation_creates_them(
    name: str, plan: Plans, template: Templates
) -> None:
    network = template(plan(name), "network")
    for live in _live_egress(network, "EfaSecurityGroup"):
        assert sorted(live, key=str) == sorted([SELF, ALLOW_ALL], key=str)


def test_efa_group_without_egress_reaches_itself_the_vpc_and_s3(plan: Plans, template: Templates) -> None:
    network = template(plan("reference-p5en", {"network.egress": "none"}), "network")
    expected = [SELF, ("cidr", "10.0.0.0/16", "-1", None), ("cidr", "0.0.0.0/0", "tcp", (443, 443))]
    for live in _live_egress(network, "EfaSecurityGroup"):
        assert sorted(live, key=str) == sorted(expected, key=str)


@every_variant
def test_only_private_subnets_take_internal_load_balancers(
    name: str, changes: dict[str, Any], plan: Plans, template: Templates
) -> None:
    planned = plan(name, changes)
    tagged = {
        subnet["CidrBlock"]
        for subnet in properties(template(planned, "network"), "AWS::EC2::Subnet")
        if {"Key": "kubernetes.io/role/internal-elb", "Value": "1"} in subnet["Tags"]
    }
    assert tagged == {subnet.cidr for subnet in planned.network.subnets if subnet.kind == "private"}


def test_flow_log_records_all_traffic_of_the_vpc_into_its_group(plan: Plans, template: Templates) -> None:
    planned = plan("reference-p5en")
    network = template(planned, "network")
    (log,) = properties(network, "AWS::EC2::FlowLog")
    assert (log["ResourceId"], log["ResourceType"], log["TrafficType"]) == ({"Ref": "Vpc"}, "VPC", "ALL")
    group = network["Resources"][log["LogGroupName"]["Ref"]]["Properties"]
    assert (group["LogGroupName"], group["RetentionInDays"]) == (planned.names.flow_log_group, 90)


def test_flow_log_role_writes_one_group_and_serves_this_accounts_flow_logs_alone(
    plan: Plans, template: Templates
) -> None:
    network = template(plan("reference-p5en"), "network")
    (role,) = properties(network, "AWS::IAM::Role")
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "vpc-flow-logs.amazonaws.com"}
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": "123456789012"},
        "ArnLike": {"aws:SourceArn": "arn:aws:ec2:us-west-2:123456789012:vpc-flow-log/*"},
    }
    (statement,) = role["Policies"][0]["PolicyDocument"]["Statement"]
    assert set(statement["Action"]) == {"logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"}
    (group,) = _ids(network, "AWS::Logs::LogGroup")
    assert statement["Resource"] == {"Fn::GetAtt": [group, "Arn"]}


def test_logical_ids_of_what_must_not_be_replaced_are_stable(plan: Plans, template: Templates) -> None:
    resources = template(plan("reference-p5en"), "network")["Resources"]
    stable = {
        "Vpc": "AWS::EC2::VPC",
        "PrivateSubnetA": "AWS::EC2::Subnet",
        "PrivateSubnetB": "AWS::EC2::Subnet",
        "PrivateSubnetC": "AWS::EC2::Subnet",
        "AcceleratorSubnetB": "AWS::EC2::Subnet",
        "EfaSecurityGroup": "AWS::EC2::SecurityGroup",
        "NatAddressB": "AWS::EC2::EIP",
    }
    assert {name: resources[name]["Type"] for name in stable} == stable


def test_a_zone_added_at_the_end_renames_and_renumbers_no_subnet(plan: Plans, template: Templates) -> None:
    two = template(plan("starter-p5en", {"network.zones": ["us-west-2a", "us-west-2b"]}), "network")["Resources"]
    three = template(plan("starter-p5en"), "network")["Resources"]
    for name, resource in two.items():
        if resource["Type"] in ("AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::NatGateway"):
            assert three[name] == resource


def _ids(template: Template, kind: str) -> list[str]:
    return [name for name, resource in template["Resources"].items() if resource["Type"] == kind]


def _interface(network: Template) -> list[dict[str, Any]]:
    endpoints = properties(network, "AWS::EC2::VPCEndpoint")
    return [endpoint for endpoint in endpoints if endpoint["VpcEndpointType"] == "Interface"]


def _route_tables(network: Template) -> dict[str, str]:
    """Route table by subnet, both as logical ids."""
    associations = properties(network, "AWS::EC2::SubnetRouteTableAssociation")
    return {one["SubnetId"]["Ref"]: one["RouteTableId"]["Ref"] for one in associations}


Rule = tuple[str, str, str, tuple[int, int] | None]


def _rules(network: Template, side: str, group: str) -> dict[str, Rule]:
    """Rules of one group by logical id: kind of peer, peer, protocol, ports."""
    itself = {"Fn::GetAtt": [group, "GroupId"]}
    peer = "SourceSecurityGroupId" if side == "Ingress" else "DestinationSecurityGroupId"
    rules: dict[str, Rule] = {}
    for name in _ids(network, f"AWS::EC2::SecurityGroup{side}"):
        rule = network["Resources"][name]["Properties"]
        if rule["GroupId"] != itself:
            continue
        ports = (rule["FromPort"], rule["ToPort"]) if "FromPort" in rule else None
        if peer in rule:
            rules[name] = ("group", "itself" if rule[peer] == itself else str(rule[peer]), rule["IpProtocol"], ports)
        else:
            rules[name] = ("cidr", rule["CidrIp"], rule["IpProtocol"], ports)
    return rules


def _live_egress(network: Template, group: str) -> list[list[Rule]]:
    """What EC2 holds after every creation order that DependsOn leaves open.

    A new group has an allow-all rule; creating an egress resource first revokes any allow-all rule of its group.
    """
    rules = _rules(network, "Egress", group)
    results = []
    for order in permutations(rules):
        needed = {name: _depends_on(network, name) for name in order}
        if any(
            before in rules and order.index(before) > order.index(name) for name in order for before in needed[name]
        ):
            continue
        live: list[Rule] = [ALLOW_ALL]
        for name in order:
            live = [rule for rule in live if rule != ALLOW_ALL] + [rules[name]]
        results.append(live)
    assert results
    return results


def _depends_on(network: Template, name: str) -> list[str]:
    return list(network["Resources"][name].get("DependsOn", []))


def test_everything_that_needs_the_internet_gateway_waits_for_its_attachment(plan: Plans, template: Templates) -> None:
    network = template(plan("reference-p5en"), "network")
    assert _depends_on(network, "PublicDefaultRoute") == ["InternetGatewayAttachment"]
    for address in of_type(network, "AWS::EC2::EIP"):
        assert address["DependsOn"] == ["InternetGatewayAttachment"]
    for nat in of_type(network, "AWS::EC2::NatGateway"):
        assert "PublicDefaultRoute" in nat["DependsOn"]
