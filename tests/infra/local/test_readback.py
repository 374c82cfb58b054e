"""Read-back reports what it cannot read as loudly as what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.local import readback
from infra.local.readers import READERS

from .conftest import Embedded
from .resources import Resources, att, ref, resource, tags

pytestmark = pytest.mark.emulator


def _assembly(directory: Path, stack: str, template: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    properties = {"templateFile": "t.json", "stackName": stack}
    artifacts = {"a": {"type": "aws:cloudformation:stack", "properties": properties}, "tree": {"type": "cdk:tree"}}
    (directory / "manifest.json").write_text(json.dumps({"artifacts": artifacts}))
    (directory / "t.json").write_text(json.dumps(template))
    return directory


@pytest.fixture
def deployed(aws: Embedded) -> Resources:
    made: Resources = {
        "Queue": resource("SQS::Queue", {"VisibilityTimeout": 60}),
        "Gate": resource("EC2::InternetGateway", {"Tags": tags(queue="yes")}),
    }
    assert aws.stack("Readback", made) == "CREATE_COMPLETE"
    return made


@pytest.fixture(autouse=True)
def _gone(aws: Embedded) -> Any:
    yield
    aws.client("cloudformation").delete_stack(StackName="Readback")
    aws.wait_gone("Readback")


def _problems(aws: Embedded, directory: Path, made: Resources) -> list[tuple[str, str]]:
    report = aws.read_back(_assembly(directory, "Readback", {"Resources": made}))
    assert report.ok is (report.mismatches == ())
    return [(one.resource, one.property) for one in report.mismatches]


def test_a_deployed_stack_matches_itself(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    assert _problems(aws, tmp_path, deployed) == []


def test_a_stage_is_read_too(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    _assembly(tmp_path / "stage", "Readback", {"Resources": deployed})
    stage = {"type": "cdk:cloud-assembly", "properties": {"directoryName": "stage"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"artifacts": {"s": stage}}))
    assert aws.read_back(tmp_path).resources == 2


def test_a_value_changed_behind_cloudformations_back_shows(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    url = aws.physical_id("Readback", "Queue")
    aws.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "61"})
    assert _problems(aws, tmp_path, deployed) == [("Queue", "VisibilityTimeout")]


def test_an_extra_tag_shows(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    gate = aws.physical_id("Readback", "Gate")
    aws.client("ec2").create_tags(Resources=[gate], Tags=tags(extra="yes"))
    assert _problems(aws, tmp_path, deployed) == [("Gate", "Tags")]


def test_a_resource_deleted_behind_cloudformations_back_shows(
    aws: Embedded, deployed: Resources, tmp_path: Path
) -> None:
    aws.client("ec2").delete_internet_gateway(InternetGatewayId=aws.physical_id("Readback", "Gate"))
    assert _problems(aws, tmp_path, deployed) == [("Gate", "")]


def test_a_type_without_reader_shows(
    aws: Embedded, deployed: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(READERS, "AWS::SQS::Queue")
    report = aws.read_back(_assembly(tmp_path, "Readback", {"Resources": deployed}))
    assert [str(one) for one in report.mismatches] == [
        "Readback/Queue AWS::SQS::Queue: expected 'readable', found 'no reader for AWS::SQS::Queue (infra/local/readers)'"
    ]


def test_a_resource_that_was_never_deployed_shows(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    extra = {**deployed, "More": resource("SQS::Queue"), "Uses": resource("SQS::Queue", {"QueueName": ref("More")})}
    assert _problems(aws, tmp_path, extra) == [("More", ""), ("Uses", "")]


def test_a_property_that_the_reader_does_not_return_shows(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    deployed["Queue"]["Properties"]["Colour"] = "red"
    assert _problems(aws, tmp_path, deployed) == [("Queue", "Colour")]


def test_an_attribute_that_nobody_shows_is_a_problem(aws: Embedded, deployed: Resources, tmp_path: Path) -> None:
    deployed["Gate"]["Properties"]["Tags"] = tags(queue=att("Queue", "Colour"))  # type: ignore[arg-type]
    assert _problems(aws, tmp_path, deployed) == [("Gate", "")]


def test_stack_tags_do_not_count_against_a_resource(aws: Embedded, tmp_path: Path) -> None:
    made: Resources = {"Gate": resource("EC2::InternetGateway", {"Tags": tags(own="yes")})}
    cloudformation = aws.client("cloudformation")
    cloudformation.create_stack(
        StackName="Readback", TemplateBody=json.dumps({"Resources": made}), Tags=tags(env="test")
    )
    assert aws.wait("Readback") == "CREATE_COMPLETE"
    assert _problems(aws, tmp_path, made) == []


def test_every_exception_gives_a_reason() -> None:
    assert all(reason.strip() for reason in readback.EXCEPTIONS.values())
