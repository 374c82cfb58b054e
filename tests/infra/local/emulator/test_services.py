"""The embedded EKS, Auto Scaling and EC2 as boto3 clients see them, and what the emulator refuses rather than drops."""

from __future__ import annotations

import json
import urllib.error
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ..conftest import Embedded, Start
from ..pools import pool
from ..resources import EFA_CARDS, resource

pytestmark = pytest.mark.emulator


@pytest.fixture
def rollouts(aws: Embedded) -> dict[str, str]:
    """clusterName and nodegroupName of the Spot pool."""
    cluster, _, group = aws.physical_id("Compute", "Rollouts").partition("/")
    return {"clusterName": cluster, "nodegroupName": group}


def _asg(aws: Embedded, group: dict[str, str]) -> dict[str, Any]:
    described = aws.client("eks").describe_nodegroup(**group)["nodegroup"]
    name = described["resources"]["autoScalingGroups"][0]["name"]
    (found,) = aws.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return dict(found)


def test_no_two_elastic_ips_share_an_address_and_a_released_one_is_given_again(start_embedded: Start) -> None:
    ec2 = start_embedded().client("ec2")
    given = [ec2.allocate_address(Domain="vpc") for _ in range(2 * 254)]
    assert len({one["PublicIp"] for one in given}) == len(given)
    with pytest.raises(ClientError, match="AddressLimitExceeded"):
        ec2.allocate_address(Domain="vpc")
    shown = ec2.describe_addresses(Filters=[{"Name": "public-ip", "Values": [given[7]["PublicIp"]]}])["Addresses"]
    assert [one["AllocationId"] for one in shown] == [given[7]["AllocationId"]]
    ec2.release_address(AllocationId=given[7]["AllocationId"])
    assert ec2.allocate_address(Domain="vpc")["PublicIp"] == given[7]["PublicIp"]


def test_scaling_a_node_group_moves_its_auto_scaling_group(aws: Embedded, rollouts: dict[str, str]) -> None:
    eks = aws.client("eks")
    update = eks.update_nodegroup_config(**rollouts, scalingConfig={"desiredSize": 3})["update"]
    shown = eks.describe_update(name="moe", updateId=update["id"], nodegroupName=rollouts["nodegroupName"])["update"]
    assert (shown["status"], shown["type"], shown["params"]) == (
        "Successful",
        "ConfigUpdate",
        [{"type": "DesiredSize", "value": "3"}],
    )
    found = _asg(aws, rollouts)
    assert (found["MinSize"], found["MaxSize"], found["DesiredCapacity"]) == (0, 8, 3)
    with pytest.raises(ClientError, match="can't be greater than max size"):
        eks.update_nodegroup_config(**rollouts, scalingConfig={"desiredSize": 9})
    eks.update_nodegroup_config(**rollouts, scalingConfig={"desiredSize": 0})


def test_auto_scaling_tags_are_kept(aws: Embedded, rollouts: dict[str, str]) -> None:
    autoscaling, name = aws.client("autoscaling"), _asg(aws, rollouts)["AutoScalingGroupName"]
    key = "k8s.io/cluster-autoscaler/node-template/resources/nvidia.com/gpu"
    tag = {
        "ResourceId": name,
        "ResourceType": "auto-scaling-group",
        "Key": key,
        "Value": "8",
        "PropagateAtLaunch": False,
    }
    autoscaling.create_or_update_tags(Tags=[tag])
    filters = [{"Name": "auto-scaling-group", "Values": [name]}]
    tags = {one["Key"]: one for one in autoscaling.describe_tags(Filters=filters)["Tags"]}
    assert tags[key] == tag
    assert tags["eks:nodegroup-name"]["Value"] == rollouts["nodegroupName"]
    autoscaling.delete_tags(Tags=[{key: tag[key] for key in ("ResourceId", "ResourceType", "Key")}])
    assert key not in {one["Key"] for one in autoscaling.describe_tags(Filters=filters)["Tags"]}


def test_a_capacity_error_shows_where_aws_shows_it(aws: Embedded, rollouts: dict[str, str]) -> None:
    path = f"/_moerl/nodegroups/moe/{rollouts['nodegroupName']}/health"
    aws.request("POST", path, {})
    group = aws.client("eks").describe_nodegroup(**rollouts)["nodegroup"]
    (issue,) = group["health"]["issues"]
    assert "InsufficientInstanceCapacity" in issue["message"]
    assert group["status"] == "DEGRADED"
    name = _asg(aws, rollouts)["AutoScalingGroupName"]
    assert issue["resourceIds"] == [name]
    (activity,) = aws.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
    assert (activity["StatusCode"], "InsufficientInstanceCapacity" in activity["StatusMessage"]) == ("Failed", True)
    aws.request("DELETE", path)
    assert aws.client("eks").describe_nodegroup(**rollouts)["nodegroup"]["health"]["issues"] == []
    with pytest.raises(urllib.error.HTTPError, match="404"):
        aws.request("POST", "/_moerl/nodegroups/moe/absent/health", {})


def test_a_cluster_moves_one_minor_version_and_one_kind_of_config_at_a_time(aws: Embedded) -> None:
    eks = aws.client("eks")
    with pytest.raises(ClientError, match=r"from 1\.34 to 1\.36"):
        eks.update_cluster_version(name="moe", version="1.36")
    with pytest.raises(ClientError, match="Only one type of update"):
        eks.update_cluster_config(name="moe", deletionProtection=True, upgradePolicy={"supportType": "EXTENDED"})
    subnets = eks.describe_cluster(name="moe")["cluster"]["resourcesVpcConfig"]["subnetIds"]
    with pytest.raises(ClientError, match="at least two different AZs"):
        eks.update_cluster_config(name="moe", resourcesVpcConfig={"subnetIds": subnets[:1]})


def test_add_on_versions_are_marked_as_canned(aws: Embedded) -> None:
    reply = aws.client("eks").describe_addon_versions(addonName="vpc-cni", kubernetesVersion="1.35")
    (addon,) = reply["addons"]
    (version,) = addon["addonVersions"]
    assert addon["owner"] == "moerl emulator (canned data, not AWS)"
    assert version["addonVersion"].endswith("-emulator")
    assert [one["clusterVersion"] for one in version["compatibilities"]] == ["1.35"]


def test_a_node_role_is_admitted_to_the_cluster_when_its_group_is_made(aws: Embedded) -> None:
    role = "arn:aws:iam::123456789012:role/fresh"
    assert aws.stack("Admitted", pool(NodeRole=role)) == "CREATE_COMPLETE"
    entry = aws.client("eks").describe_access_entry(clusterName="moe", principalArn=role)["accessEntry"]
    assert entry["type"] == "EC2_LINUX"
    aws.client("cloudformation").delete_stack(StackName="Admitted")


def test_every_efa_interface_of_a_launch_template_reads_back(aws: Embedded) -> None:
    reply = aws.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=aws.physical_id("Compute", "Template"), Versions=["$Latest"]
    )
    interfaces = reply["LaunchTemplateVersions"][0]["LaunchTemplateData"]["NetworkInterfaces"]
    assert [one["NetworkCardIndex"] for one in interfaces] == list(range(EFA_CARDS))
    assert [one["InterfaceType"] for one in interfaces] == ["interface"] + ["efa-only"] * (EFA_CARDS - 1)


def test_describe_filters(aws: Embedded) -> None:
    ec2 = aws.client("ec2")
    vpc = aws.physical_id("Net", "Vpc")

    def subnets(*filters: tuple[str, str]) -> int:
        asked = [{"Name": name, "Values": [value]} for name, value in filters]
        return len(ec2.describe_subnets(Filters=asked)["Subnets"])

    assert subnets(("vpc-id", vpc)) == 3
    assert subnets(("vpc-id", vpc), ("availability-zone", "us-west-2b")) == 1
    assert subnets(("tag:Name", "publ*")) == 1
    assert subnets(("tag-key", "Name")) == 1
    assert subnets(("map-public-ip-on-launch", "true")) == 1
    assert subnets(("vpc-id", "vpc-absent")) == 0


def test_a_vpc_in_use_is_not_deleted(aws: Embedded) -> None:
    with pytest.raises(ClientError, match="DependencyViolation"):
        aws.client("ec2").delete_vpc(VpcId=aws.physical_id("Net", "Vpc"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (resource("DynamoDB::Table", {"TableName": "t"}), "Unrecognized resource types: [AWS::DynamoDB::Table]"),
        (resource("EC2::SecurityGroupp"), "Unrecognized resource types: [AWS::EC2::SecurityGroupp]"),
    ],
)
def test_a_type_that_nobody_checked_is_refused(aws: Embedded, body: dict[str, Any], message: str) -> None:
    with pytest.raises(ClientError) as caught:
        aws.stack("Refused", {"One": body})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (resource("SQS::Queue", {"Color": "red"}), "does not keep AWS::SQS::Queue Color"),
        (resource("EC2::VPC", {"CidrBlock": "10.0.0.0/16", "Ipv4IpamPoolId": "x"}), "does not keep AWS::EC2::VPC"),
        (
            resource("EC2::LaunchTemplate", {"LaunchTemplateData": {"MetadataOptions": {"HttpToken": "required"}}}),
            "MetadataOptions: extraneous key [HttpToken] is not permitted",
        ),
        (
            resource(
                "S3::Bucket",
                {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", "TransitionInDays": 1}]}},
            ),
            "does not keep TransitionInDays",
        ),
        (
            resource("CloudWatch::Alarm", {"MetricName": "m", "Namespace": "n", "Metrics": [], "EvaluationPeriods": 1}),
            "either MetricName or Metrics",
        ),
        (
            resource(
                "FSx::FileSystem",
                {
                    "FileSystemType": "LUSTRE",
                    "SubnetIds": ["subnet-00000000"],
                    "LustreConfiguration": {"ImportPath": "s3://bucket"},
                },
            ),
            "implements no data repositories: ImportPath",
        ),
    ],
)
def test_a_property_that_would_be_dropped_is_refused(aws: Embedded, body: dict[str, Any], message: str) -> None:
    assert aws.stack("Refused", {"One": body}) == "ROLLBACK_COMPLETE"
    assert message in aws.reasons("Refused")
    aws.client("cloudformation").delete_stack(StackName="Refused")
    aws.wait_gone("Refused")


def test_an_operation_that_is_not_implemented_says_so(aws: Embedded) -> None:
    with pytest.raises(ClientError, match="the emulator does not implement eks:DescribeClusterVersions"):
        aws.client("eks").describe_cluster_versions()


def test_a_condition_may_join_its_operands(aws: Embedded) -> None:
    """ministack alone compares the unresolved Fn::Join, which made the bootstrap template attach a policy named ''."""
    body = {
        "Parameters": {"Names": {"Type": "CommaDelimitedList", "Default": ""}},
        "Conditions": {"Some": {"Fn::Not": [{"Fn::Equals": ["", {"Fn::Join": ["", {"Ref": "Names"}]}]}]}},
        "Resources": {
            "Always": {"Type": "AWS::EC2::InternetGateway"},
            "Sometimes": {"Type": "AWS::EC2::InternetGateway", "Condition": "Some"},
        },
    }
    cloudformation = aws.client("cloudformation")
    cloudformation.create_stack(StackName="Conditional", TemplateBody=json.dumps(body))
    assert aws.wait("Conditional") == "CREATE_COMPLETE"
    rows = cloudformation.list_stack_resources(StackName="Conditional")["StackResourceSummaries"]
    assert [row["LogicalResourceId"] for row in rows] == ["Always"]
    cloudformation.delete_stack(StackName="Conditional")


def test_image_builder_takes_each_version_once_and_keeps_what_is_named(aws: Embedded) -> None:
    builder = aws.client("imagebuilder")
    script, recipe = aws.physical_id("Rare", "BakeScript"), aws.physical_id("Rare", "BakeRecipe")
    shown = builder.get_component(componentBuildVersionArn=script)["component"]
    again = {key: shown[key] for key in ("name", "platform", "data")}
    with pytest.raises(ClientError, match="ResourceAlreadyExistsException"):
        builder.create_component(**again, semanticVersion=shown["version"])
    with pytest.raises(ClientError, match="ResourceDependencyException"):
        builder.delete_component(componentBuildVersionArn=script)
    with pytest.raises(ClientError, match="ResourceDependencyException"):
        builder.delete_image_recipe(imageRecipeArn=recipe)
    with pytest.raises(ClientError, match="InvalidParameterValueException"):
        builder.create_image_recipe(
            name="other", semanticVersion="1.0.0", parentImage="ami-1", components=[{"componentArn": script + "0"}]
        )


def test_a_pipeline_cannot_be_started_here_and_the_emulator_says_so(aws: Embedded) -> None:
    with pytest.raises(ClientError, match="does not implement imagebuilder:StartImagePipelineExecution"):
        aws.client("imagebuilder").start_image_pipeline_execution(
            imagePipelineArn=aws.physical_id("Rare", "BakePipeline")
        )
