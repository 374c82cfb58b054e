"""Each rule against a good template and the same template with one thing wrong.

The good templates are those of shipped environments, which the rules pass (test_shipped.py), so what a rule reports
here is what the test broke.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.check import check
from infra.policy.stacks import Stack

Plans = Callable[[str], Plan]
Stacks = Callable[[str], tuple[Stack, ...]]
Template = dict[str, Any]
Break = Callable[[Template], object]


def first(template: Template, kind: str) -> dict[str, Any]:
    """The first resource of a type, with its attributes."""
    found: dict[str, Any] = next(one for one in template["Resources"].values() if one["Type"] == kind)
    return found


def key_statements(template: Template) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = first(template, "AWS::KMS::Key")["Properties"]["KeyPolicy"]["Statement"]
    return found


def cluster(template: Template) -> dict[str, Any]:
    properties: dict[str, Any] = first(template, "AWS::EKS::Cluster")["Properties"]
    return properties


def group(template: Template) -> dict[str, Any]:
    properties: dict[str, Any] = first(template, "AWS::EKS::Nodegroup")["Properties"]
    return properties


def data(template: Template) -> dict[str, Any]:
    found: dict[str, Any] = first(template, "AWS::EC2::LaunchTemplate")["Properties"]["LaunchTemplateData"]
    return found


def pod_trust(template: Template) -> dict[str, Any]:
    found: dict[str, Any] = next(
        statement
        for one in template["Resources"].values()
        if one["Type"] == "AWS::IAM::Role"
        for statement in one["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        if statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    )
    return found


def node_role(template: Template) -> tuple[str, dict[str, Any]]:
    return next(
        (key, one["Properties"])
        for key, one in template["Resources"].items()
        if one["Type"] == "AWS::IAM::Role" and "ec2.amazonaws.com" in str(one["Properties"]["AssumeRolePolicyDocument"])
    )


def add_policy(template: Template, statement: dict[str, Any], *, role: str = "Some") -> None:
    template["Resources"]["Added"] = {
        "Type": "AWS::IAM::Policy",
        "Properties": {
            "PolicyDocument": {"Statement": [{"Effect": "Allow", **statement}]},
            "Roles": [{"Ref": role}],
        },
    }


def add_interface(template: Template, **interface: Any) -> None:
    data(template)["NetworkInterfaces"].append(
        {"InterfaceType": "efa-only", "Groups": ["sg-1"], "DeleteOnTermination": True, **interface}
    )


def drop_type(template: Template, kind: str) -> None:
    for key in [key for key, one in template["Resources"].items() if one["Type"] == kind]:
        del template["Resources"][key]


# B31 (named administrators, no creator)
CONTROL_PLANE: dict[str, tuple[str, Break]] = {
    "private endpoint off": (
        "cluster.private-endpoint",
        lambda t: cluster(t)["ResourcesVpcConfig"].update(EndpointPrivateAccess=False),
    ),
    "public endpoint on": (
        "cluster.public-endpoint",
        lambda t: cluster(t)["ResourcesVpcConfig"].update(EndpointPublicAccess=True),
    ),
    "public endpoint by default": (
        "cluster.public-endpoint",
        lambda t: cluster(t)["ResourcesVpcConfig"].pop("EndpointPublicAccess"),
    ),
    "a log off": ("cluster.logs", lambda t: cluster(t)["Logging"]["ClusterLogging"]["EnabledTypes"].pop()),
    "no logs": ("cluster.logs", lambda t: cluster(t).pop("Logging")),
    "no deletion protection": ("cluster.deletion-protection", lambda t: cluster(t).pop("DeletionProtection")),
    "secrets in the clear": ("cluster.secrets-key", lambda t: cluster(t).pop("EncryptionConfig")),
    "aws-auth": (
        "cluster.access-entries",
        lambda t: cluster(t)["AccessConfig"].update(AuthenticationMode="CONFIG_MAP"),
    ),
    "creator stays admin": (
        "cluster.creator-admin",
        lambda t: cluster(t)["AccessConfig"].pop("BootstrapClusterCreatorAdminPermissions"),
    ),
}
NODE_GROUPS: dict[str, tuple[str, Break]] = {
    "forced update": ("node-group.force-update", lambda t: group(t).update(ForceUpdateEnabled=True)),
    "forced by default": ("node-group.force-update", lambda t: group(t).pop("ForceUpdateEnabled")),
    "fixed name": ("node-group.name", lambda t: group(t).update(NodegroupName="trainer")),
    "no repair": ("node-group.repair", lambda t: group(t).pop("NodeRepairConfig")),
    "type in both places": ("node-group.instance-types", lambda t: group(t).update(InstanceTypes=["p6-b200.48xlarge"])),
    "type in neither place": ("node-group.instance-types", lambda t: data(t).pop("InstanceType")),
    "desired size on a range": ("node-group.desired-size", lambda t: group(t)["ScalingConfig"].update(DesiredSize=0)),
    "fixed size without its desired size": (
        "node-group.desired-size",
        lambda t: group(t)["ScalingConfig"].update(MinSize=8),
    ),
    "release left open": ("node-group.image", lambda t: group(t).pop("ReleaseVersion")),
    "image type left open": ("node-group.image", lambda t: group(t).pop("AmiType")),
    "EFA over two zones": ("node-group.one-zone", lambda t: group(t)["Subnets"].append("subnet-2")),
}
LAUNCH_TEMPLATES: dict[str, tuple[str, Break]] = {
    "fixed name": (
        "launch-template.name",
        lambda t: first(t, "AWS::EC2::LaunchTemplate")["Properties"].update(LaunchTemplateName="trainer"),
    ),
    "primary is EFA-only": (
        "launch-template.primary",
        lambda t: data(t)["NetworkInterfaces"][0].update(InterfaceType="efa-only"),
    ),
    "no primary": ("launch-template.primary", lambda t: data(t)["NetworkInterfaces"].pop(0)),
    "slot used twice": ("launch-template.slots", lambda t: add_interface(t, NetworkCardIndex=1, DeviceIndex=0)),
    "device counted over cards": (
        "launch-template.device-index",
        lambda t: add_interface(t, NetworkCardIndex=20, DeviceIndex=2),
    ),
    "groups beside interfaces": (
        "launch-template.security-groups",
        lambda t: data(t).update(SecurityGroupIds=["sg-1"]),
    ),
    "interface without a group": (
        "launch-template.security-groups",
        lambda t: data(t)["NetworkInterfaces"][3].pop("Groups"),
    ),
    "subnet": ("launch-template.subnet", lambda t: data(t)["NetworkInterfaces"][0].update(SubnetId="subnet-1")),
    "public address": (
        "launch-template.public-ip",
        lambda t: data(t)["NetworkInterfaces"][0].update(AssociatePublicIpAddress=False),
    ),
    "interface outlives its node": (
        "launch-template.leftovers",
        lambda t: data(t)["NetworkInterfaces"][2].pop("DeleteOnTermination"),
    ),
    "IMDSv1": ("launch-template.imds-tokens", lambda t: data(t)["MetadataOptions"].update(HttpTokens="optional")),
    "one hop": ("launch-template.imds-hops", lambda t: data(t)["MetadataOptions"].update(HttpPutResponseHopLimit=1)),
    "no root volume": ("launch-template.root-volume", lambda t: data(t).pop("BlockDeviceMappings")),
    "volume in the clear": (
        "launch-template.volume-encryption",
        lambda t: data(t)["BlockDeviceMappings"][0]["Ebs"].pop("Encrypted"),
    ),
    "volume outlives its node": (
        "launch-template.leftovers",
        lambda t: data(t)["BlockDeviceMappings"][0]["Ebs"].update(DeleteOnTermination=False),
    ),
    "block without its reservation": (
        "launch-template.market",
        lambda t: data(t).pop("CapacityReservationSpecification"),
    ),
    "block with a placement group": (
        "launch-template.placement",
        lambda t: data(t).update(Placement={"GroupName": "existing"}),
    ),
}
# B62 (trust of pod roles), B81 (node role without data)
IDENTITIES: dict[str, tuple[str, Break]] = {
    "every action": ("iam.any-action", lambda t: add_policy(t, {"Action": "*", "Resource": "arn:aws:s3:::one"})),
    "every action of a service": (
        "iam.any-action",
        lambda t: add_policy(t, {"Action": ["sqs:*"], "Resource": "arn:aws:sqs:us-west-2:123456789012:one"}),
    ),
    "every resource": ("iam.any-resource", lambda t: add_policy(t, {"Action": "s3:GetObject", "Resource": "*"})),
    "every resource among others": (
        "iam.any-resource",
        lambda t: add_policy(t, {"Action": ["ec2:DescribeVpcs", "ec2:RunInstances"], "Resource": ["arn:aws:x", "*"]}),
    ),
    "all but": ("iam.inverse", lambda t: add_policy(t, {"NotAction": "iam:*", "Resource": "arn:aws:s3:::one"})),
    "administrator": (
        "iam.administrator",
        lambda t: first(t, "AWS::IAM::Role")["Properties"].update(
            ManagedPolicyArns=["arn:aws:iam::aws:policy/AdministratorAccess"]
        ),
    ),
    "nodes read data": (
        "iam.node-data",
        lambda t: add_policy(t, {"Action": "s3:GetObject", "Resource": "arn:aws:s3:::x/*"}, role=node_role(t)[0]),
    ),
    "nodes read data in line": (
        "iam.node-data",
        lambda t: node_role(t)[1].update(
            Policies=[
                {
                    "PolicyDocument": {
                        "Statement": {"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": "arn:aws:s3:::x/*"}
                    }
                }
            ]
        ),
    ),
    "nodes read data by a managed policy": (
        "iam.node-data",
        lambda t: node_role(t)[1]["ManagedPolicyArns"].append("arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"),
    ),
    "pods cannot tag the session": ("iam.pod-actions", lambda t: pod_trust(t).update(Action="sts:AssumeRole")),
    "any pod may have the role": ("iam.pod-conditions", lambda t: pod_trust(t).pop("Condition")),
    "any namespace may have the role": (
        "iam.pod-conditions",
        lambda t: pod_trust(t)["Condition"]["StringEquals"].pop("aws:RequestTag/kubernetes-namespace"),
    ),
}
STORAGE: dict[str, tuple[str, Break]] = {
    "bucket without a policy": ("data.tls", lambda t: drop_type(t, "AWS::S3::BucketPolicy")),
    "bucket open to the public": (
        "data.public-access",
        lambda t: first(t, "AWS::S3::Bucket")["Properties"]["PublicAccessBlockConfiguration"].update(
            BlockPublicPolicy=False
        ),
    ),
    "bucket without encryption": (
        "data.bucket-encryption",
        lambda t: first(t, "AWS::S3::Bucket")["Properties"].pop("BucketEncryption"),
    ),
    "bucket emptied with its stack": (
        "data.emptied",
        lambda t: t["Resources"].update(Emptying={"Type": "Custom::S3AutoDeleteObjects"}),
    ),
    "bucket deleted": ("data.retain", lambda t: first(t, "AWS::S3::Bucket").update(DeletionPolicy="Delete")),
    "bucket lost in a replacement": ("data.retain", lambda t: first(t, "AWS::S3::Bucket").pop("UpdateReplacePolicy")),
    "images deleted": ("data.retain", lambda t: first(t, "AWS::ECR::Repository").update(DeletionPolicy="Delete")),
    "key deleted": ("data.retain", lambda t: first(t, "AWS::KMS::Key").update(DeletionPolicy="Delete")),
    "key never rotates": (
        "data.key-rotation",
        lambda t: first(t, "AWS::KMS::Key")["Properties"].pop("EnableKeyRotation"),
    ),
    "key for everybody who meets a condition": (
        "data.key-open",
        lambda t: key_statements(t).append(
            {
                "Effect": "Allow",
                "Principal": {"AWS": "*"},
                "Action": "kms:Decrypt",
                "Resource": "*",
                "Condition": {"StringEquals": {"kms:CallerAccount": "123456789012"}},
            }
        ),
    ),
    "key for everybody, written bare": ("data.key-open", lambda t: key_statements(t)[0].update(Principal="*")),
    "key for everybody among others": (
        "data.key-open",
        lambda t: key_statements(t)[0].update(Principal={"AWS": ["arn:aws:iam::123456789012:root", "*"]}),
    ),
}
QUEUES: dict[str, tuple[str, Break]] = {
    "queue without a policy": ("data.tls", lambda t: drop_type(t, "AWS::SQS::QueuePolicy")),
    "policy that allows": (
        "data.tls",
        lambda t: first(t, "AWS::SQS::QueuePolicy")["Properties"]["PolicyDocument"]["Statement"][0].update(
            Effect="Allow"
        ),
    ),
    "policy for somebody": (
        "data.tls",
        lambda t: first(t, "AWS::SQS::QueuePolicy")["Properties"]["PolicyDocument"]["Statement"][0].update(
            Principal={"AWS": "arn:aws:iam::123456789012:root"}
        ),
    ),
}
TOPICS: dict[str, tuple[str, Break]] = {
    "topic without a policy": ("data.tls", lambda t: drop_type(t, "AWS::SNS::TopicPolicy")),
}
NETWORK: dict[str, tuple[str, Break]] = {
    "group open to everybody": (
        "network.open-ingress",
        lambda t: first(t, "AWS::EC2::SecurityGroup")["Properties"].update(
            SecurityGroupIngress=[{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0"}]
        ),
    ),
    "rule open to everybody": (
        "network.open-ingress",
        lambda t: first(t, "AWS::EC2::SecurityGroupIngress")["Properties"].update(CidrIpv6="::/0"),
    ),
    "subnet with public addresses": (
        "network.public-ip",
        lambda t: first(t, "AWS::EC2::Subnet")["Properties"].update(MapPublicIpOnLaunch=True),
    ),
}
CASES = [
    pytest.param(part, rule, broken, id=f"{part}: {name}")
    for part, cases in {
        "cluster": CONTROL_PLANE | IDENTITIES,
        "pool-trainer": NODE_GROUPS | {f"template: {name}": case for name, case in LAUNCH_TEMPLATES.items()},
        "storage": STORAGE,
        "queue": QUEUES,
        "observability": TOPICS,
        "network": NETWORK,
    }.items()
    for name, (rule, broken) in cases.items()
]


def found(name: str, part: str, plan: Plans, stacks: Stacks, broken: Break) -> list[Finding]:
    good = next(stack for stack in stacks(name) if stack.name == f"{name}-{part}")
    template: Template = copy.deepcopy(dict(good.template))
    broken(template)
    return list(check([replace(good, template=template)], plan(name)))


# The trainer of p6-b200 stands on a capacity block, with EFA.
@pytest.mark.parametrize(("part", "rule", "broken"), CASES)
def test_one_thing_wrong_is_one_rule_broken(part: str, rule: str, broken: Break, plan: Plans, stacks: Stacks) -> None:
    findings = found("p6-b200", part, plan, stacks, broken)
    assert {finding.rule for finding in findings} == {f"policy.{rule}"}
    assert all(finding.key.startswith(f"p6-b200-{part}/") for finding in findings)


def test_spot_is_asked_for_by_the_group_and_not_by_the_template(plan: Plans, stacks: Stacks) -> None:
    def broken(template: Template) -> None:
        data(template)["InstanceMarketOptions"] = {"MarketType": "spot"}

    findings = found("p6-b200", "pool-rollout", plan, stacks, broken)
    assert {finding.rule for finding in findings} == {"policy.launch-template.market"}


def test_reserved_capacity_takes_the_reservation_s_own_placement_group_alone(plan: Plans, stacks: Stacks) -> None:
    def made(template: Template) -> None:
        data(template)["Placement"] = {"GroupName": {"Ref": "PlacementGroup"}}

    def existing(template: Template) -> None:
        data(template)["Placement"] = {"GroupName": "the-reservations-own"}

    findings = found("reference-p5en", "pool-trainer", plan, stacks, made)
    assert {finding.rule for finding in findings} == {"policy.launch-template.placement"}
    assert found("reference-p5en", "pool-trainer", plan, stacks, existing) == []


def test_a_custom_image_has_no_type_and_no_release_in_the_group(plan: Plans, stacks: Stacks) -> None:
    def half(template: Template) -> None:
        data(template)["ImageId"] = "ami-0123456789abcdef0"
        del group(template)["AmiType"]

    def whole(template: Template) -> None:
        half(template)
        del group(template)["ReleaseVersion"]

    assert [finding.key for finding in found("p6-b200", "pool-trainer", plan, stacks, half)] == [
        f"p6-b200-pool-trainer/{group_id(stacks)}.ReleaseVersion"
    ]
    assert found("p6-b200", "pool-trainer", plan, stacks, whole) == []


def group_id(stacks: Stacks) -> str:
    stack = next(one for one in stacks("p6-b200") if one.name == "p6-b200-pool-trainer")
    return next(key for key, one in stack.template["Resources"].items() if one["Type"] == "AWS::EKS::Nodegroup")


def test_a_public_endpoint_is_the_environment_s_choice_to_the_networks_that_it_names(
    plan: Plans, stacks: Stacks
) -> None:
    open_to = plan("p6-b200").kubernetes
    chosen = replace(plan("p6-b200"), kubernetes=replace(open_to, public_cidrs=("203.0.113.0/24",)))

    def opened(*cidrs: str) -> list[Finding]:
        def broken(template: Template) -> None:
            cluster(template)["ResourcesVpcConfig"].update(EndpointPublicAccess=True, PublicAccessCidrs=list(cidrs))

        return found("p6-b200", "cluster", lambda _: chosen, stacks, broken)

    assert opened("203.0.113.0/24") == []
    assert {finding.rule for finding in opened("0.0.0.0/0")} == {"policy.cluster.public-endpoint"}
    assert {finding.rule for finding in opened()} == {"policy.cluster.public-endpoint"}


def test_checkpoints_may_be_destroyed_when_the_environment_says_so(plan: Plans, stacks: Stacks) -> None:
    agreed = plan("p6-b200")
    destroying = replace(agreed, storage=replace(agreed.storage, destroy_checkpoints=True))

    def deleting(bucket: str, chosen: Plan) -> set[str]:
        def broken(template: Template) -> None:
            for resource in template["Resources"].values():
                if resource.get("Properties", {}).get("BucketName") == bucket:
                    resource.update(DeletionPolicy="Delete", UpdateReplacePolicy="Delete")

        return {finding.rule for finding in found("p6-b200", "storage", lambda _: chosen, stacks, broken)}

    assert deleting(agreed.names.checkpoint_bucket, destroying) == set()
    assert deleting(agreed.names.checkpoint_bucket, agreed) == {"policy.data.retain"}
    assert deleting(agreed.names.weights_bucket, destroying) == {"policy.data.retain"}


def test_a_key_that_protects_only_messages_on_their_way_may_go(plan: Plans, stacks: Stacks) -> None:
    def deleted(template: Template) -> None:
        first(template, "AWS::KMS::Key").update(DeletionPolicy="Delete", UpdateReplacePolicy="Delete")

    assert found("p6-b200", "observability", plan, stacks, deleted) == []
