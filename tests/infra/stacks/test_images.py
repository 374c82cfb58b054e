"""Images: what the image project may do, what it is told, and that a build can hold what it makes."""

from __future__ import annotations

from typing import Any

import pytest

from infra.catalog.software import SOFTWARE
from infra.constructs.image_script import buildspec

from .resources import ENVIRONMENTS, Plans, Template, Templates, by_type, only, properties

REFERENCE = "reference-p5en"
ACCOUNT = "us-west-2:123456789012"


@pytest.fixture(scope="session")
def reference(plan: Plans, template: Templates) -> Template:
    return template(plan(REFERENCE), "images")


def project(template: Template) -> dict[str, Any]:
    found: dict[str, Any] = only(properties(template, "AWS::CodeBuild::Project"))
    return found


def variables(template: Template) -> dict[str, Any]:
    return {one["Name"]: one["Value"] for one in project(template)["Environment"]["EnvironmentVariables"]}


def granted(template: Template) -> dict[str, list[Any]]:
    """Action to resources."""
    role = only(properties(template, "AWS::IAM::Role"))
    found: dict[str, list[Any]] = {}
    for statement in only(role["Policies"])["PolicyDocument"]["Statement"]:
        for action in _list(statement["Action"]):
            assert action not in found
            found[action] = _list(statement["Resource"])
    return found


def test_the_role_grants_what_a_build_calls_and_no_more(reference: Template) -> None:
    repository = [f"arn:aws:ecr:{ACCOUNT}:repository/{REFERENCE}/moerl"]
    bucket = f"arn:aws:s3:::{REFERENCE}-apply-123456789012-us-west-2"
    parameters = [f"arn:aws:ssm:{ACCOUNT}:parameter/moerl/{REFERENCE}/image/{name}" for name in sorted(SOFTWARE)]
    log = [f"arn:aws:logs:{ACCOUNT}:log-group:/aws/codebuild/{REFERENCE}-image:*"]
    assert granted(reference) == {
        "logs:CreateLogStream": log,
        "logs:PutLogEvents": log,
        "ecr:GetAuthorizationToken": ["*"],
        "ecr:BatchCheckLayerAvailability": repository,
        "ecr:BatchGetImage": repository,
        "ecr:CompleteLayerUpload": repository,
        "ecr:DescribeImageScanFindings": repository,
        "ecr:DescribeImages": repository,
        "ecr:GetDownloadUrlForLayer": repository,
        "ecr:InitiateLayerUpload": repository,
        "ecr:PutImage": repository,
        "ecr:UploadLayerPart": repository,
        "s3:GetObject": [f"{bucket}/images/*"],
        "s3:PutObject": [f"{bucket}/sbom/*"],
        "ssm:GetParameter": parameters,
        "ssm:PutParameter": parameters,
    }


def test_only_this_project_may_take_the_role(reference: Template) -> None:
    trust = only(only(properties(reference, "AWS::IAM::Role"))["AssumeRolePolicyDocument"]["Statement"])
    assert trust["Condition"]["StringEquals"] == {
        "aws:SourceAccount": "123456789012",
        "aws:SourceArn": f"arn:aws:codebuild:{ACCOUNT}:project/{REFERENCE}-image",
    }
    assert project(reference)["Name"] == f"{REFERENCE}-image"
    assert project(reference)["ServiceRole"]["Fn::GetAtt"][0] in by_type(reference, "AWS::IAM::Role")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_builds_go_to_the_environments_own_repository_bucket_and_parameters(
    name: str, plan: Plans, template: Templates
) -> None:
    planned = plan(name)
    found = variables(template(planned, "images"))
    assert found["REPOSITORY"] == planned.names.repository
    assert found["REPOSITORY_URI"].endswith(f".amazonaws.com/{planned.names.repository}")
    assert found["SOURCE_BUCKET"] == planned.names.apply_bucket
    assert found["PARAMETERS"] == f"/moerl/{name}/image"
    assert (found["SOURCE_KEY"], found["STACK"]) == ("", "")
    assert "@sha256:" in found["SYFT_IMAGE"]


def test_a_docker_build_has_a_privileged_container_of_its_own_with_room_and_time(reference: Template) -> None:
    found = project(reference)
    assert found["Environment"]["PrivilegedMode"] is True
    assert found["Environment"]["ComputeType"] == "BUILD_GENERAL1_XLARGE"
    assert (found["ConcurrentBuildLimit"], found["TimeoutInMinutes"], found["QueuedTimeoutInMinutes"]) == (1, 300, 480)
    assert found["Source"] == {"Type": "NO_SOURCE", "BuildSpec": buildspec(tuple(SOFTWARE))}
    wait = int(variables(reference)["SCAN_ATTEMPTS"]) * int(variables(reference)["SCAN_WAIT_SECONDS"])
    assert wait < found["TimeoutInMinutes"] * 60 / 2


@pytest.mark.parametrize("egress", ["nat", "none"])
def test_builds_run_outside_the_vpc_whatever_its_egress(egress: str, plan: Plans, template: Templates) -> None:
    assert "VpcConfig" not in project(template(plan("starter-p5en", {"network.egress": egress}), "images"))


def test_builds_log_to_a_group_that_forgets(reference: Template) -> None:
    logical_id, group = only(by_type(reference, "AWS::Logs::LogGroup").items())
    assert group["Properties"]["RetentionInDays"] == 90
    assert group["Properties"]["LogGroupName"] == f"/aws/codebuild/{REFERENCE}-image"
    assert project(reference)["LogsConfig"]["CloudWatchLogs"] == {
        "Status": "ENABLED",
        "GroupName": {"Ref": logical_id},
    }


def test_accepted_findings_come_from_the_file(plan: Plans, template: Templates) -> None:
    accepted = {"CVE-2026-2222": "not in any process", "CVE-2025-11111": "not in any process"}
    changed = plan("starter-p5en", {"images.accepted_vulnerabilities": accepted})
    assert variables(template(changed, "images"))["ACCEPTED"] == "CVE-2025-11111 CVE-2026-2222"
    assert variables(template(plan("starter-p5en"), "images"))["ACCEPTED"] == ""


def test_a_docker_hub_account_is_read_from_its_secret_and_stands_nowhere(plan: Plans, template: Templates) -> None:
    arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:docker-hub-AbCdEf"
    stack = template(plan("starter-p5en", {"images.docker_hub_secret_arn": arn}), "images")
    found = project(stack)["Environment"]["EnvironmentVariables"]
    assert [one for one in found if one.get("Type")] == [
        {"Name": "DOCKER_HUB_TOKEN", "Type": "SECRETS_MANAGER", "Value": f"{arn}:token"},
        {"Name": "DOCKER_HUB_USER", "Type": "SECRETS_MANAGER", "Value": f"{arn}:username"},
    ]
    assert granted(stack)["secretsmanager:GetSecretValue"] == [arn]
    without = template(plan("starter-p5en"), "images")
    assert not [name for name in variables(without) if name.startswith("DOCKER_HUB")]


def test_the_stack_owns_no_parameter_that_builds_write(reference: Template) -> None:
    assert by_type(reference, "AWS::SSM::Parameter") == {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
