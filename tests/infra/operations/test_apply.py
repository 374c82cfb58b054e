"""`moerl apply`: what is packed, what is asked of AWS, what is reported, and when it is a failure."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from infra.config.plan import Plan
from infra.operations.apply import Applied, ApplyFault, apply_folder, archive
from infra.operations.builds import POLL_SECONDS
from tests.shipped import plan_of

ROOT = Path(__file__).parents[3]
BUILD = "starter-p5en-apply:0ab1cd23"
GROUP = {"groupName": "/aws/codebuild/starter-p5en-apply", "streamName": "0ab1cd23"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("starter-p5en")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("0002-run.yaml", "0001-platform.yaml"):
        (tmp_path / name).write_text(f"# {name}\n", encoding="utf-8")
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    return tmp_path


class Aws:
    """Stubbed clients: each call must come in the order, and with the arguments, that a test lays down."""

    def __init__(self) -> None:
        made = {
            name: boto3.client(
                name,
                region_name="us-west-2",
                aws_access_key_id="testing",
                aws_secret_access_key="testing",  # noqa: S106
            )
            for name in ("s3", "codebuild", "logs")
        }
        self.clients: dict[str, Any] = made
        self.stubs = {name: Stubber(client) for name, client in made.items()}
        self.lines: list[str] = []
        self.waits: list[float] = []

    def build(self, status: str, phase: str, **more: Any) -> None:
        answer = {"builds": [{"id": BUILD, "buildStatus": status, "currentPhase": phase, **more}]}
        self.stubs["codebuild"].add_response("batch_get_builds", answer, {"ids": [BUILD]})

    def log(self, token: str | None, lines: list[str], following: str) -> None:
        asked = {"logGroupName": GROUP["groupName"], "logStreamName": GROUP["streamName"], "startFromHead": True}
        answer = {"events": [{"message": f"{line}\n"} for line in lines], "nextForwardToken": following}
        self.stubs["logs"].add_response("get_log_events", answer, asked | ({"nextToken": token} if token else {}))

    def apply(self, folder: Path, plan: Plan, **more: Any) -> Applied:
        return apply_folder(folder, plan, **self.clients, report=self.lines.append, wait=self.waits.append, **more)


@pytest.fixture
def aws() -> Iterator[Aws]:
    made = Aws()
    for stub in made.stubs.values():
        stub.activate()
    yield made
    for stub in made.stubs.values():
        stub.assert_no_pending_responses()


def started(aws: Aws, plan: Plan, folder: Path, action: str = "apply") -> None:
    packed = archive(folder)
    aws.stubs["s3"].add_response(
        "put_object",
        {},
        {
            "Bucket": plan.names.apply_bucket,
            "Key": packed.key,
            "Body": packed.body,
            "ExpectedBucketOwner": "123456789012",
        },
    )
    aws.stubs["codebuild"].add_response(
        "start_build",
        {"build": {"id": BUILD}},
        {
            "projectName": "starter-p5en-apply",
            "environmentVariablesOverride": [
                {"name": "SOURCE_KEY", "value": packed.key, "type": "PLAINTEXT"},
                {"name": "ACTION", "value": action, "type": "PLAINTEXT"},
            ],
        },
    )


def test_an_archive_holds_the_numbered_manifests_in_order_and_nothing_else(folder: Path) -> None:
    packed = archive(folder)
    assert packed.files == ("0001-platform.yaml", "0002-run.yaml")
    with zipfile.ZipFile(io.BytesIO(packed.body)) as bundle:
        assert bundle.namelist() == list(packed.files)
        assert bundle.read("0002-run.yaml") == b"# 0002-run.yaml\n"
    assert packed.key == f"rendered/{packed.digest}.zip"


def test_the_same_files_give_the_same_bytes_whenever_they_were_written(folder: Path) -> None:
    before = archive(folder)
    for path in folder.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o600)
    assert archive(folder) == before


def test_another_text_gives_another_key(folder: Path) -> None:
    before = archive(folder)
    (folder / "0002-run.yaml").write_text("# changed\n", encoding="utf-8")
    assert archive(folder).key != before.key


@pytest.mark.parametrize("name", ["stray.yaml", "-1.yaml", "0003 with space.yaml", "0003;rm.yaml"])
def test_a_manifest_without_a_place_in_the_order_is_refused_by_name(folder: Path, name: str) -> None:
    (folder / name).write_text("kind: A\n", encoding="utf-8")
    with pytest.raises(ApplyFault, match="starts with its number") as caught:
        archive(folder)
    assert name in str(caught.value)


def test_an_empty_or_missing_folder_says_what_to_run(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ApplyFault, match="moerl render"):
            archive(folder)


def test_a_build_is_followed_to_its_end_and_every_line_is_reported_once(aws: Aws, plan: Plan, folder: Path) -> None:
    started(aws, plan, folder)
    aws.build("IN_PROGRESS", "PROVISIONING")
    aws.build("IN_PROGRESS", "BUILD", logs=GROUP)
    aws.log(None, ["apply: 0001-platform.yaml"], "one")
    aws.log("one", [], "one")
    aws.build("SUCCEEDED", "COMPLETED", logs=GROUP)
    aws.log("one", ["apply: 0002-run.yaml", "apply: 2 files applied"], "two")
    aws.log("two", [], "two")
    applied = aws.apply(folder, plan)
    assert applied.document() == {
        "build": BUILD,
        "status": "SUCCEEDED",
        "action": "apply",
        "files": ("0001-platform.yaml", "0002-run.yaml"),
        "failures": (),
    }
    assert aws.lines[2:] == [
        "phase PROVISIONING",
        "phase BUILD",
        "apply: 0001-platform.yaml",
        "phase COMPLETED",
        "apply: 0002-run.yaml",
        "apply: 2 files applied",
    ]
    assert aws.waits == [POLL_SECONDS, POLL_SECONDS]


def test_a_diff_is_asked_for_as_such(aws: Aws, plan: Plan, folder: Path) -> None:
    started(aws, plan, folder, action="diff")
    aws.build("SUCCEEDED", "COMPLETED")
    assert aws.apply(folder, plan, action="diff").action == "diff"


def test_a_log_stream_that_is_not_there_yet_is_read_later(aws: Aws, plan: Plan, folder: Path) -> None:
    started(aws, plan, folder)
    aws.build("IN_PROGRESS", "BUILD", logs=GROUP)
    aws.stubs["logs"].add_client_error("get_log_events", "ResourceNotFoundException", expected_params=ANY_LOG)
    aws.build("SUCCEEDED", "COMPLETED", logs=GROUP)
    aws.log(None, ["apply: 2 files applied"], "one")
    aws.log("one", [], "one")
    aws.apply(folder, plan)
    assert aws.lines[-1] == "apply: 2 files applied"


ANY_LOG = {"logGroupName": ANY, "logStreamName": ANY, "startFromHead": True}


@pytest.mark.parametrize("status", ["FAILED", "FAULT", "TIMED_OUT", "STOPPED"])
def test_a_build_that_does_not_succeed_is_a_fault_with_its_reason(
    aws: Aws, plan: Plan, folder: Path, status: str
) -> None:
    started(aws, plan, folder)
    aws.build(
        status,
        "COMPLETED",
        phases=[
            {"phaseType": "PROVISIONING", "phaseStatus": "SUCCEEDED"},
            {"phaseType": "BUILD", "phaseStatus": status, "contexts": [{"message": "exit status 1"}]},
            {"phaseType": "COMPLETED"},
        ],
    )
    with pytest.raises(ApplyFault, match=f"{status}: BUILD: exit status 1$"):
        aws.apply(folder, plan)


@pytest.mark.parametrize(
    ("service", "call", "code"), [("s3", "put_object", "NoSuchBucket"), ("codebuild", "start_build", "AccessDenied")]
)
def test_a_missing_project_or_right_is_named(
    aws: Aws, plan: Plan, folder: Path, service: str, call: str, code: str
) -> None:
    if service == "codebuild":
        aws.stubs["s3"].add_response("put_object", {})
    aws.stubs[service].add_client_error(call, code)
    with pytest.raises(ApplyFault, match=rf"(?s){code}.*access stack of starter-p5en"):
        aws.apply(folder, plan)


def test_nothing_is_sent_when_the_folder_is_refused(aws: Aws, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(ApplyFault):
        aws.apply(tmp_path, plan)
    assert aws.lines == []
