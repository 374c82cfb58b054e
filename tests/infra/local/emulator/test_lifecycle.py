"""CloudFormation's replacement rules: what becomes a new resource, in which order, and what fails because a name is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from ..conftest import Embedded
from ..pools import pool
from ..resources import Resources, imported, ref, resource, tags, trust

pytestmark = pytest.mark.emulator
_numbers = count()


@pytest.fixture
def name(aws: Embedded) -> Iterator[str]:
    """A stack name of the test's own; whatever the test makes of it is deleted, and the transcript starts empty."""
    aws.clear_transcript()
    made = f"Replace{next(_numbers)}"
    yield made
    aws.client("cloudformation").delete_stack(StackName=made)
    aws.clear_transcript()


def test_a_placement_group_is_replaced_for_its_tags(aws: Embedded, name: str) -> None:
    made: Resources = {"Group": resource("EC2::PlacementGroup", {"Strategy": "cluster", "Tags": tags(pool="a")})}
    assert aws.stack(name, made) == "CREATE_COMPLETE"
    before = aws.physical_id(name, "Group")
    made["Group"]["Properties"]["Tags"] = tags(pool="b")
    assert aws.stack(name, made, update=True) == "UPDATE_COMPLETE"
    after = aws.physical_id(name, "Group")
    assert after != before
    assert aws.operations() == ["ec2:CreatePlacementGroup", "ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"]
    groups = {one["GroupName"] for one in aws.client("ec2").describe_placement_groups()["PlacementGroups"]}
    assert after in groups
    assert before not in groups


def test_a_stack_tag_leaves_the_placement_group_alone(aws: Embedded, name: str) -> None:
    cloudformation = aws.client("cloudformation")
    body = (
        '{"Resources": {"Group": {"Type": "AWS::EC2::PlacementGroup"}, "Gate": {"Type": "AWS::EC2::InternetGateway"}}}'
    )
    cloudformation.create_stack(StackName=name, TemplateBody=body, Tags=tags(env="a"))
    assert aws.wait(name) == "CREATE_COMPLETE"
    aws.clear_transcript()
    cloudformation.update_stack(StackName=name, TemplateBody=body, Tags=tags(env="b"))
    assert aws.wait(name) == "UPDATE_COMPLETE"
    assert aws.operations() == ["ec2:CreateTags"]


@pytest.mark.parametrize(
    ("property_name", "value"),
    [
        ("InstanceTypes", ["g6e.12xlarge"]),
        ("CapacityType", "SPOT"),
        ("AmiType", "AL2023_x86_64_STANDARD"),
        ("Subnets", [{"Fn::ImportValue": "net-subnet1"}]),
        ("NodeRole", "arn:aws:iam::123456789012:role/other"),
    ],
)
def test_a_node_group_is_replaced_new_before_old(aws: Embedded, name: str, property_name: str, value: object) -> None:
    assert aws.stack(name, pool()) == "CREATE_COMPLETE", aws.reasons(name)
    before = aws.physical_id(name, "Group")
    aws.clear_transcript()
    assert aws.stack(name, pool(**{property_name: value}), update=True) == "UPDATE_COMPLETE", aws.reasons(name)
    assert aws.operations("Group") == ["eks:CreateNodegroup", "eks:DeleteNodegroup"]
    assert aws.physical_id(name, "Group") != before


def test_replacing_a_named_node_group_fails_on_the_name(aws: Embedded, name: str) -> None:
    assert aws.stack(name, pool(NodegroupName="fixed")) == "CREATE_COMPLETE", aws.reasons(name)
    changed = pool(NodegroupName="fixed", InstanceTypes=["g6e.12xlarge"])
    assert aws.stack(name, changed, update=True) == "UPDATE_ROLLBACK_COMPLETE"
    assert "NodeGroup already exists with name fixed" in aws.reasons(name)
    group = aws.client("eks").describe_nodegroup(clusterName="moe", nodegroupName="fixed")["nodegroup"]
    assert group["instanceTypes"] == ["g6.12xlarge"]


def test_replacing_a_named_role_fails_on_the_name(aws: Embedded, name: str) -> None:
    def role(path: str) -> Resources:
        return {
            "Role": resource(
                "IAM::Role", {"RoleName": "fixed", "Path": path, "AssumeRolePolicyDocument": trust("x.amazonaws.com")}
            )
        }

    assert aws.stack(name, role("/a/")) == "CREATE_COMPLETE"
    assert aws.stack(name, role("/b/"), update=True) == "UPDATE_ROLLBACK_COMPLETE"
    assert "fixed" in aws.reasons(name)
    assert aws.client("iam").get_role(RoleName="fixed")["Role"]["Path"] == "/a/"


def test_a_launch_template_changes_in_place_but_for_its_name(aws: Embedded, name: str) -> None:
    made = pool()
    del made["Group"]
    assert aws.stack(name, made) == "CREATE_COMPLETE"
    before = aws.physical_id(name, "Template")
    made["Template"]["Properties"]["LaunchTemplateData"]["Monitoring"]["Enabled"] = False
    assert aws.stack(name, made, update=True) == "UPDATE_COMPLETE"
    assert aws.physical_id(name, "Template") == before
    made["Template"]["Properties"]["LaunchTemplateName"] = "named"
    assert aws.stack(name, made, update=True) == "UPDATE_COMPLETE"
    assert aws.physical_id(name, "Template") != before


def test_the_old_resource_survives_a_retaining_replacement(aws: Embedded, name: str) -> None:
    body = resource("EC2::PlacementGroup", {"Strategy": "cluster"}, UpdateReplacePolicy="Retain")
    assert aws.stack(name, {"Group": body}) == "CREATE_COMPLETE"
    before = aws.physical_id(name, "Group")
    assert aws.stack(name, {"Group": {**body, "Properties": {"Strategy": "spread"}}}, update=True) == "UPDATE_COMPLETE"
    reply = aws.client("ec2").describe_placement_groups(GroupNames=[before, aws.physical_id(name, "Group")])
    assert [one["Strategy"] for one in reply["PlacementGroups"]] == ["cluster", "spread"]
    aws.client("ec2").delete_placement_group(GroupName=before)


def test_a_failed_update_takes_the_replacement_back(aws: Embedded, name: str) -> None:
    made: Resources = {"Group": resource("EC2::PlacementGroup", {"Strategy": "cluster"})}
    assert aws.stack(name, made) == "CREATE_COMPLETE"
    before = aws.physical_id(name, "Group")
    made["Group"]["Properties"]["Strategy"] = "spread"
    made["Bad"] = resource("EC2::Subnet", {"VpcId": "vpc-absent", "CidrBlock": "10.9.0.0/24"}, DependsOn=["Group"])
    assert aws.stack(name, made, update=True) == "UPDATE_ROLLBACK_COMPLETE"
    assert "vpc-absent" in aws.reasons(name)
    assert aws.physical_id(name, "Group") == before
    own = [
        one
        for one in aws.client("ec2").describe_placement_groups()["PlacementGroups"]
        if one["GroupName"].startswith(name)
    ]
    assert [(one["GroupName"], one["Strategy"]) for one in own] == [(before, "cluster")]


def test_a_failed_create_leaves_nothing(aws: Embedded, name: str) -> None:
    made: Resources = {
        "Gate": resource("EC2::InternetGateway"),
        "Bad": resource("EC2::VPCGatewayAttachment", {"VpcId": "vpc-absent", "InternetGatewayId": ref("Gate")}),
    }
    assert aws.stack(name, made) == "ROLLBACK_COMPLETE"
    assert aws.operations() == ["ec2:CreateInternetGateway", "ec2:DeleteInternetGateway"]


def test_events_name_only_what_changes(aws: Embedded, name: str) -> None:
    made: Resources = {"Same": resource("EC2::InternetGateway"), "Old": resource("EC2::InternetGateway")}
    assert aws.stack(name, made) == "CREATE_COMPLETE"
    new: Resources = {"Same": made["Same"], "New": resource("EC2::InternetGateway")}
    assert aws.stack(name, new, update=True) == "UPDATE_COMPLETE"
    events = aws.client("cloudformation").describe_stack_events(StackName=name)["StackEvents"]
    during = [one for one in events if one["ResourceType"] != "AWS::CloudFormation::Stack"]
    started = max(index for index, one in enumerate(events) if one["ResourceStatus"] == "UPDATE_IN_PROGRESS")
    latest = {(one["LogicalResourceId"], one["ResourceStatus"]) for one in events[:started] if one in during}
    assert latest == {
        ("New", "CREATE_IN_PROGRESS"),
        ("New", "CREATE_COMPLETE"),
        ("Old", "DELETE_IN_PROGRESS"),
        ("Old", "DELETE_COMPLETE"),
    }
    rows = aws.client("cloudformation").list_stack_resources(StackName=name)["StackResourceSummaries"]
    assert {row["LogicalResourceId"]: row["ResourceStatus"] for row in rows} == {
        "Same": "CREATE_COMPLETE",
        "New": "CREATE_COMPLETE",
    }


@pytest.mark.parametrize(
    ("policy", "left"),
    [("Delete", False), ("Retain", True)],
)
def test_a_removed_resource_goes_unless_it_is_retained(aws: Embedded, name: str, policy: str, *, left: bool) -> None:
    made: Resources = {
        "Group": resource("EC2::PlacementGroup", DeletionPolicy=policy),
        "Other": resource("EC2::InternetGateway"),
    }
    assert aws.stack(name, made) == "CREATE_COMPLETE"
    group = aws.physical_id(name, "Group")
    assert aws.stack(name, {"Other": made["Other"]}, update=True) == "UPDATE_COMPLETE"
    groups = [one["GroupName"] for one in aws.client("ec2").describe_placement_groups()["PlacementGroups"]]
    assert (group in groups) is left
    if left:
        aws.client("ec2").delete_placement_group(GroupName=group)


def test_an_imported_export_does_not_change(aws: Embedded, name: str) -> None:
    def exporter(strategy: str) -> str:
        body = {
            "Resources": {"Group": resource("EC2::PlacementGroup", {"Strategy": strategy})},
            "Outputs": {"Group": {"Value": ref("Group"), "Export": {"Name": f"{name}-group"}}},
        }
        return json.dumps(body)

    cloudformation = aws.client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody=exporter("cluster"))
    assert aws.wait(name) == "CREATE_COMPLETE"
    user = {"Gate": resource("EC2::InternetGateway", {"Tags": [{"Key": "g", "Value": imported(f"{name}-group")}]})}
    assert aws.stack(f"{name}User", user) == "CREATE_COMPLETE"
    cloudformation.update_stack(StackName=name, TemplateBody=exporter("spread"))
    assert aws.wait(name) == "UPDATE_ROLLBACK_COMPLETE"
    assert f"Export {name}-group cannot be updated as it is in use by {name}User" in aws.reasons(name)
    (group,) = aws.client("ec2").describe_placement_groups(GroupNames=[aws.physical_id(name, "Group")])[
        "PlacementGroups"
    ]
    assert group["Strategy"] == "cluster"
    cloudformation.delete_stack(StackName=f"{name}User")
    aws.wait_gone(f"{name}User")


def test_two_stacks_do_not_export_one_name(aws: Embedded, name: str) -> None:
    body = {
        "Resources": {"Group": resource("EC2::PlacementGroup")},
        "Outputs": {"Vpc": {"Value": "mine", "Export": {"Name": "net-vpc"}}},
    }
    aws.client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(body))
    assert aws.wait(name) == "ROLLBACK_COMPLETE"
    assert "Export with name net-vpc is already exported by stack Net" in aws.reasons(name)


def test_a_replaced_network_leaves_nothing_of_the_old_one(aws: Embedded, name: str) -> None:
    def made(block: int, *subnets: int) -> Resources:
        vpc = resource("EC2::VPC", {"CidrBlock": f"10.{block}.0.0/16"})
        return {
            "Vpc": vpc,
            **{
                f"Subnet{index}": resource(
                    "EC2::Subnet", {"VpcId": ref("Vpc"), "CidrBlock": f"10.{block}.{index}.0/24"}
                )
                for index in subnets
            },
        }

    assert aws.stack(name, made(7, 1, 2)) == "CREATE_COMPLETE"
    assert aws.stack(name, made(8, 1), update=True) == "UPDATE_COMPLETE", aws.reasons(name)
    blocks = {one["CidrBlock"] for one in aws.client("ec2").describe_vpcs()["Vpcs"]}
    assert blocks == {"10.0.0.0/16", "10.8.0.0/16"}


@pytest.mark.parametrize(
    ("body", "listing"),
    [
        (
            resource(
                "EC2::SecurityGroup",
                {
                    "GroupName": "half",
                    "GroupDescription": "half",
                    "VpcId": imported("net-vpc"),
                    "SecurityGroupIngress": [{"IpProtocol": "-1", "SourceSecurityGroupId": "sg-absent"}],
                },
            ),
            ("ec2", "describe_security_groups", "SecurityGroups"),
        ),
        (
            resource("S3::Bucket", {"BucketName": "half", "LifecycleConfiguration": {"Rules": [{"Status": "No"}]}}),
            ("s3", "list_buckets", "Buckets"),
        ),
        (
            resource(
                "IAM::Role",
                {
                    "RoleName": "half",
                    "AssumeRolePolicyDocument": trust("x.amazonaws.com"),
                    "Policies": [{"PolicyName": "bad", "PolicyDocument": "not json"}],
                },
            ),
            ("iam", "list_roles", "Roles"),
        ),
    ],
)
def test_a_create_that_fails_half_way_leaves_nothing(
    aws: Embedded, name: str, body: dict[str, Any], listing: tuple[str, str, str]
) -> None:
    assert aws.stack(name, {"Half": body}) == "ROLLBACK_COMPLETE"
    service, operation, result = listing
    rows = getattr(aws.client(service), operation)()[result]
    assert [row for row in rows if "half" in row.values()] == []


@pytest.mark.parametrize(
    ("change", "replacement"),
    [
        ({"InstanceTypes": ["g6e.12xlarge"]}, "True"),
        ({"ScalingConfig": {"MinSize": 0, "MaxSize": 7}}, "False"),
        ({"Labels": {"a": "b"}, "CapacityType": "SPOT"}, "True"),
    ],
)
def test_a_change_set_says_what_will_be_replaced(
    aws: Embedded, name: str, change: dict[str, Any], replacement: str
) -> None:
    assert aws.stack(name, pool()) == "CREATE_COMPLETE"
    cloudformation = aws.client("cloudformation")
    body = json.dumps({"Resources": pool(**change)})
    cloudformation.create_change_set(StackName=name, ChangeSetName="c", TemplateBody=body)
    (found,) = cloudformation.describe_change_set(StackName=name, ChangeSetName="c")["Changes"]
    shown = found["ResourceChange"]
    assert (shown["LogicalResourceId"], shown["Replacement"]) == ("Group", replacement)
