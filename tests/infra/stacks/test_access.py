"""Access: what the apply project may do, how it reaches the API server, and where its input lies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from infra.constructs.apply_script import buildspec
from infra.stacks.platform import build_app, build_platform

from .resources import ENVIRONMENTS, Plans, Template, Templates, by_type, of_type, only, properties

REFERENCE = "reference-p5en"


@pytest.fixture(scope="session")
def reference(plan: Plans, template: Templates) -> Template:
    return template(plan(REFERENCE), "access")


def project(template: Template) -> dict[str, Any]:
    found: dict[str, Any] = only(properties(template, "AWS::CodeBuild::Project"))
    return found


def variables(template: Template) -> dict[str, str]:
    return {one["Name"]: one["Value"] for one in project(template)["Environment"]["EnvironmentVariables"]}


def statements(template: Template) -> list[dict[str, Any]]:
    role = only(properties(template, "AWS::IAM::Role"))
    found: list[dict[str, Any]] = only(role["Policies"])["PolicyDocument"]["Statement"]
    return found


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_builds_run_in_the_private_subnets_under_a_group_of_their_own(
    name: str, plan: Plans, template: Templates
) -> None:
    stack = template(plan(name), "access")
    network = project(stack)["VpcConfig"]
    named = [one["Fn::GetStackOutput"]["OutputName"] for one in network["Subnets"]]
    assert len(named) == len(plan(name).network.zones)
    assert all("PrivateSubnet" in one for one in named)
    group = only(network["SecurityGroupIds"])["Fn::GetAtt"][0]
    assert set(by_type(stack, "AWS::EC2::SecurityGroup")) == {group}


def test_builds_reach_out_by_https_and_nothing_reaches_in(reference: Template) -> None:
    group = only(properties(reference, "AWS::EC2::SecurityGroup"))
    egress = only(group["SecurityGroupEgress"])
    assert (egress["IpProtocol"], egress["FromPort"], egress["ToPort"]) == ("tcp", 443, 443)
    assert "SecurityGroupIngress" not in group


def test_the_api_server_admits_builds_on_443(reference: Template) -> None:
    rule = only(properties(reference, "AWS::EC2::SecurityGroupIngress"))
    assert "ClusterSecurityGroupId" in rule["GroupId"]["Fn::GetStackOutput"]["OutputName"]
    assert rule["SourceSecurityGroupId"]["Fn::GetAtt"][0] in by_type(reference, "AWS::EC2::SecurityGroup")
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 443, 443)


def test_the_role_of_builds_administers_this_cluster_alone(reference: Template) -> None:
    entry = only(properties(reference, "AWS::EKS::AccessEntry"))
    assert entry["PrincipalArn"]["Fn::GetAtt"][0] in by_type(reference, "AWS::IAM::Role")
    assert only(entry["AccessPolicies"])["PolicyArn"].endswith("/AmazonEKSClusterAdminPolicy")


def test_the_role_grants_what_a_build_calls_and_no_more(reference: Template) -> None:
    granted = {action for one in statements(reference) for action in _list(one["Action"])}
    assert granted == {
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "s3:GetObject",
        "eks:DescribeCluster",
        "ec2:CreateNetworkInterface",
        "ec2:CreateNetworkInterfacePermission",
        "ec2:DeleteNetworkInterface",
        "ec2:DescribeDhcpOptions",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeVpcs",
    }
    everywhere = [one for one in statements(reference) if "*" in _list(one["Resource"])]
    assert {action for one in everywhere for action in _list(one["Action"])} == {
        action for action in granted if action.startswith("ec2:Describe")
    }
    read = only(one for one in statements(reference) if one["Action"] == "s3:GetObject")
    assert read["Resource"] == f"arn:aws:s3:::{REFERENCE}-apply-123456789012-us-west-2/rendered/*"


@pytest.mark.parametrize("action", ["ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"])
def test_interfaces_are_bound_to_the_private_subnets(reference: Template, action: str) -> None:
    statement = only(one for one in statements(reference) if one["Action"] == action)
    subnets = json.dumps(statement["Condition"]["ArnEquals"]["ec2:Subnet"])
    assert subnets.count("PrivateSubnet") == 3
    if action.endswith("Permission"):
        assert statement["Condition"]["StringEquals"] == {"ec2:AuthorizedService": "codebuild.amazonaws.com"}


def test_only_this_project_may_take_the_role(reference: Template) -> None:
    trust = only(only(properties(reference, "AWS::IAM::Role"))["AssumeRolePolicyDocument"]["Statement"])
    assert trust["Condition"]["StringEquals"] == {
        "aws:SourceAccount": "123456789012",
        "aws:SourceArn": f"arn:aws:codebuild:us-west-2:123456789012:project/{REFERENCE}-apply",
    }
    assert project(reference)["Name"] == f"{REFERENCE}-apply"


def test_one_build_runs_at_a_time_unprivileged_and_bounded(reference: Template) -> None:
    found = project(reference)
    assert (found["ConcurrentBuildLimit"], found["TimeoutInMinutes"]) == (1, 30)
    assert found["Environment"]["PrivilegedMode"] is False
    assert found["Environment"]["Image"] == "aws/codebuild/amazonlinux-x86_64-standard:6.0"
    assert found["Source"] == {"Type": "NO_SOURCE", "BuildSpec": buildspec()}


def test_builds_log_to_a_group_that_forgets(reference: Template) -> None:
    group = only(by_type(reference, "AWS::Logs::LogGroup").items())
    assert group[1]["Properties"]["RetentionInDays"] == 90
    assert project(reference)["LogsConfig"]["CloudWatchLogs"]["GroupName"] == {"Ref": group[0]}
    writes = only(one for one in statements(reference) if "logs:PutLogEvents" in _list(one["Action"]))
    assert writes["Resource"].endswith(f":log-group:{group[1]['Properties']['LogGroupName']}:*")


def test_kubectl_is_the_pinned_one_from_the_public_bucket(plan: Plans, reference: Template) -> None:
    pinned = plan(REFERENCE).kubectl
    assert pinned is not None
    found = variables(reference)
    assert (found["KUBECTL_BUCKET"], found["KUBECTL_KEY"]) == ("amazon-eks", pinned.key)
    assert found["KUBECTL_SHA256"] == pinned.sha256


def test_without_a_way_out_kubectl_comes_from_the_apply_bucket(plan: Plans, template: Templates) -> None:
    closed = plan("starter-p5en", {"network.egress": "none"})
    stack = template(closed, "access")
    assert closed.kubectl is not None
    found = variables(stack)
    assert (found["KUBECTL_BUCKET"], found["KUBECTL_KEY"]) == (
        closed.names.apply_bucket,
        f"kubectl/{closed.kubectl.key}",
    )
    readable = only(one for one in statements(stack) if one["Action"] == "s3:GetObject")["Resource"]
    assert f"arn:aws:s3:::{closed.names.apply_bucket}/kubectl/*" in readable


def test_an_unpinned_kubectl_renders_as_none(plan: Plans) -> None:
    app = build_app()
    build_platform(app, replace(plan("starter-p5en"), kubectl=None))
    stack = only(one.template for one in app.synth().stacks if one.stack_name == "starter-p5en-access")
    assert {variables(stack)[name] for name in ("KUBECTL_KEY", "KUBECTL_SHA256")} == {""}


def test_rendered_folders_are_private_versioned_and_expire(reference: Template) -> None:
    bucket = only(of_type(reference, "AWS::S3::Bucket"))
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    found = bucket["Properties"]
    assert found["BucketName"] == f"{REFERENCE}-apply-123456789012-us-west-2"
    assert found["VersioningConfiguration"] == {"Status": "Enabled"}
    assert all(found["PublicAccessBlockConfiguration"].values())
    algorithm = only(found["BucketEncryption"]["ServerSideEncryptionConfiguration"])
    assert algorithm["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    rules = found["LifecycleConfiguration"]["Rules"]
    assert {rule["Prefix"]: rule["ExpirationInDays"] for rule in rules} == {"rendered/": 30, "images/": 30}
    assert all(rule["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30} for rule in rules)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
