"""Security groups at L1: a group without rules, and one resource for each rule.

CloudFormation's egress rules have a trap that decides the shape of this module. EC2 gives a new group an allow-all
egress rule, and creating an `AWS::EC2::SecurityGroupEgress` first revokes every allow-all rule of the group, whoever
wrote it (aws-cdk issues 987 and 22140, cfn-language-discussion issue 157). So the default is never there twice, an
allow-all rule survives only when it is created after every other egress rule of its group, and no other stack may add
an egress rule to a group that has one. CDK's L2 group drops the self rule instead (issue 38558).
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

ANYWHERE = "0.0.0.0/0"
NOWHERE = "127.0.0.1/32"
"""CloudFormation's documented way to leave a group without egress: a rule that matches no packet."""
ALL_PROTOCOLS = "-1"
HTTPS = 443


def security_group(
    scope: Construct, identifier: str, *, vpc_id: str, name: str, description: str
) -> ec2.CfnSecurityGroup:
    """A group without rules. `name` is a tag: a physical name would stand in the way of a replacement."""
    return ec2.CfnSecurityGroup(
        scope,
        identifier,
        vpc_id=vpc_id,
        group_description=description,
        tags=[cdk.CfnTag(key="Name", value=name)],
    )


def efa_security_group(
    scope: Construct, identifier: str, *, vpc_id: str, name: str, vpc_cidr: str, internet: bool
) -> ec2.CfnSecurityGroup:
    """The one group of nodes that talk over EFA.

    EFA frames match no CIDR rule: without egress to the group itself NCCL hangs while ping works. `internet` opens all
    egress; otherwise nodes reach the VPC, and HTTPS anywhere, which without a NAT gateway means S3 by its gateway endpoint.
    """
    group = security_group(scope, identifier, vpc_id=vpc_id, name=name, description="Nodes that talk over EFA")
    itself = group.attr_group_id
    ec2.CfnSecurityGroupIngress(
        scope,
        f"{identifier}FromItself",
        group_id=itself,
        ip_protocol=ALL_PROTOCOLS,
        source_security_group_id=itself,
        description="EFA from the group",
    )
    to_itself = ec2.CfnSecurityGroupEgress(
        scope,
        f"{identifier}ToItself",
        group_id=itself,
        ip_protocol=ALL_PROTOCOLS,
        destination_security_group_id=itself,
        description="EFA to the group",
    )
    if internet:
        everywhere = ec2.CfnSecurityGroupEgress(
            scope,
            f"{identifier}ToAnywhere",
            group_id=itself,
            ip_protocol=ALL_PROTOCOLS,
            cidr_ip=ANYWHERE,
            description="Everything else, by the NAT gateway",
        )
        # Created the other way round, the self rule would revoke this one.
        everywhere.add_resource_dependency(to_itself)
        return group
    ec2.CfnSecurityGroupEgress(
        scope,
        f"{identifier}ToVpc",
        group_id=itself,
        ip_protocol=ALL_PROTOCOLS,
        cidr_ip=vpc_cidr,
        description="Control plane, endpoints and file systems",
    )
    ec2.CfnSecurityGroupEgress(
        scope,
        f"{identifier}ToS3",
        group_id=itself,
        ip_protocol="tcp",
        from_port=HTTPS,
        to_port=HTTPS,
        cidr_ip=ANYWHERE,
        description="S3 by its gateway endpoint; no other route leaves the VPC",
    )
    return group


def endpoint_security_group(
    scope: Construct, identifier: str, *, vpc_id: str, name: str, vpc_cidr: str
) -> ec2.CfnSecurityGroup:
    """The group of interface endpoints: HTTPS in from the VPC, nothing out."""
    group = security_group(
        scope, identifier, vpc_id=vpc_id, name=name, description="Interface endpoints of AWS services"
    )
    group.security_group_ingress = [
        ec2.CfnSecurityGroup.IngressProperty(
            ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, cidr_ip=vpc_cidr, description="HTTPS from the VPC"
        )
    ]
    group.security_group_egress = [
        ec2.CfnSecurityGroup.EgressProperty(
            ip_protocol=ALL_PROTOCOLS, cidr_ip=NOWHERE, description="In place of EC2's allow-all default"
        )
    ]
    return group


def allow_ports(
    scope: Construct,
    identifier: str,
    *,
    source: ec2.CfnSecurityGroup,
    target: ec2.CfnSecurityGroup,
    ports: Sequence[tuple[int, int]],
    description: str,
) -> None:
    """TCP into `target` from `source`, one ingress rule for each (first, last) port range."""
    for first, last in ports:
        ec2.CfnSecurityGroupIngress(
            scope,
            f"{identifier}{first}",
            group_id=target.attr_group_id,
            source_security_group_id=source.attr_group_id,
            ip_protocol="tcp",
            from_port=first,
            to_port=last,
            description=description,
        )
