"""The network stack: every EC2 networking type."""

from __future__ import annotations

from .base import ZONES, Resources, att, ref, resource, sub, tags, trust


def network() -> Resources:
    made: Resources = {
        "Vpc": resource(
            "EC2::VPC",
            {
                "CidrBlock": "10.0.0.0/16",
                "EnableDnsHostnames": True,
                "EnableDnsSupport": True,
                "InstanceTenancy": "default",
                "Tags": tags(Name="net"),
            },
        ),
        "Igw": resource("EC2::InternetGateway", {"Tags": tags(Name="igw")}),
        "IgwAttach": resource("EC2::VPCGatewayAttachment", {"VpcId": ref("Vpc"), "InternetGatewayId": ref("Igw")}),
        "Public": resource(
            "EC2::Subnet",
            {
                "VpcId": ref("Vpc"),
                "CidrBlock": {"Fn::Select": [0, {"Fn::Cidr": [att("Vpc", "CidrBlock"), 4, 8]}]},
                "AvailabilityZone": ZONES[0],
                "MapPublicIpOnLaunch": True,
                "Tags": tags(Name="public"),
            },
        ),
        "PublicTable": resource("EC2::RouteTable", {"VpcId": ref("Vpc"), "Tags": tags(Name="public")}),
        "PublicRoute": resource(
            "EC2::Route",
            {"RouteTableId": ref("PublicTable"), "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": ref("Igw")},
            DependsOn=["IgwAttach"],
        ),
        "PublicAssociation": resource(
            "EC2::SubnetRouteTableAssociation", {"SubnetId": ref("Public"), "RouteTableId": ref("PublicTable")}
        ),
        "Eip": resource("EC2::EIP", {"Domain": "vpc", "Tags": tags(Name="nat")}, DependsOn=["IgwAttach"]),
        "Nat": resource(
            "EC2::NatGateway",
            {
                "SubnetId": ref("Public"),
                "AllocationId": att("Eip", "AllocationId"),
                "ConnectivityType": "public",
                "Tags": tags(Name="nat"),
            },
        ),
        "PrivateTable": resource("EC2::RouteTable", {"VpcId": ref("Vpc")}),
        "PrivateRoute": resource(
            "EC2::Route",
            {"RouteTableId": ref("PrivateTable"), "DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": ref("Nat")},
        ),
        "S3Endpoint": resource(
            "EC2::VPCEndpoint",
            {
                "VpcId": ref("Vpc"),
                "ServiceName": sub("com.amazonaws.${AWS::Region}.s3"),
                "VpcEndpointType": "Gateway",
                "RouteTableIds": [ref("PrivateTable")],
                "PolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*"}],
                },
            },
        ),
        "EcrEndpoint": resource(
            "EC2::VPCEndpoint",
            {
                "VpcId": ref("Vpc"),
                "ServiceName": sub("com.amazonaws.${AWS::Region}.ecr.api"),
                "VpcEndpointType": "Interface",
                "PrivateDnsEnabled": True,
                "SubnetIds": [ref("Private0"), ref("Private1")],
                "SecurityGroupIds": [att("EndpointGroup", "GroupId")],
                "Tags": tags(Name="ecr"),
            },
        ),
        "EndpointGroup": resource(
            "EC2::SecurityGroup",
            {
                "GroupDescription": "endpoints",
                "VpcId": ref("Vpc"),
                "SecurityGroupIngress": [
                    {
                        "IpProtocol": "tcp",
                        "FromPort": 443,
                        "ToPort": 443,
                        "CidrIp": att("Vpc", "CidrBlock"),
                        "Description": "TLS from the VPC",
                    }
                ],
                "SecurityGroupEgress": [
                    {"IpProtocol": "icmp", "FromPort": 252, "ToPort": 86, "CidrIp": "255.255.255.255/32"}
                ],
            },
        ),
        "EfaGroup": resource(
            "EC2::SecurityGroup",
            {"GroupName": "net-efa", "GroupDescription": "EFA", "VpcId": ref("Vpc"), "Tags": tags(Name="efa")},
        ),
        "EfaIn": resource(
            "EC2::SecurityGroupIngress",
            {
                "GroupId": att("EfaGroup", "GroupId"),
                "IpProtocol": "-1",
                "SourceSecurityGroupId": att("EfaGroup", "GroupId"),
                "Description": "EFA to itself",
            },
        ),
        "EfaOut": resource(
            "EC2::SecurityGroupEgress",
            {
                "GroupId": att("EfaGroup", "GroupId"),
                "IpProtocol": "-1",
                "DestinationSecurityGroupId": att("EfaGroup", "GroupId"),
            },
        ),
        "FlowGroup": resource("Logs::LogGroup", {"RetentionInDays": 30}, DeletionPolicy="Delete"),
        "FlowRole": resource(
            "IAM::Role", {"AssumeRolePolicyDocument": trust("vpc-flow-logs.amazonaws.com"), "Tags": tags(Name="flow")}
        ),
        "FlowLog": resource(
            "EC2::FlowLog",
            {
                "ResourceId": ref("Vpc"),
                "ResourceType": "VPC",
                "TrafficType": "REJECT",
                "LogDestinationType": "cloud-watch-logs",
                "LogGroupName": ref("FlowGroup"),
                "DeliverLogsPermissionArn": att("FlowRole", "Arn"),
                "MaxAggregationInterval": 60,
                "Tags": tags(Name="flow"),
            },
        ),
    }
    for index, zone in enumerate(ZONES):
        made[f"Private{index}"] = resource(
            "EC2::Subnet",
            {"VpcId": ref("Vpc"), "CidrBlock": f"10.0.{64 + 64 * index}.0/18", "AvailabilityZone": zone},
        )
        made[f"PrivateAssociation{index}"] = resource(
            "EC2::SubnetRouteTableAssociation",
            {"SubnetId": ref(f"Private{index}"), "RouteTableId": ref("PrivateTable")},
        )
    return made


NETWORK_EXPORTS = {
    "net-vpc": ref("Vpc"),
    "net-subnet0": ref("Private0"),
    "net-subnet1": ref("Private1"),
    "net-efa": att("EfaGroup", "GroupId"),
}
