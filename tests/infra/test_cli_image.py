"""`moerl image build` and `digest`: what they print, how they end, and that nothing is uploaded in vain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import infra.cli as cli
from infra.config.image_arguments import ImageArguments
from infra.operations import image as images
from infra.operations.builds import pack

URI = "123456789012.dkr.ecr.us-west-2.amazonaws.com/starter-p5en/moerl"
IMAGE = f"{URI}@sha256:{'a' * 64}"
BUILD = ("image", "build", "efa-gda", "--env", "starter-p5en")
DIGEST = ("image", "digest", "starter-p5en")


def moerl(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


class Session:
    """Stands for boto3.Session."""

    def __init__(self, region_name: str) -> None:
        self.region = region_name

    def client(self, service: str) -> tuple[str, str]:
        return service, self.region


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done, in order; AWS and the work itself are played."""
    done: list[str] = []

    def source(_: Any, arguments: ImageArguments) -> images.Source:
        done.append(f"pack {arguments.stack}")
        return images.Source(stack=arguments.stack, packed=pack(()))

    def upload(_: Any, __: Any, *, s3: Any, report: Any) -> None:
        done.append(f"upload {s3}")
        report("upload [3] files")

    def build(made: images.Source, _: Any, *, to_its_end: bool, **__: Any) -> images.Built:
        done.append(f"build {to_its_end}")
        status, found = ("SUCCEEDED", IMAGE) if to_its_end else ("STARTED", None)
        return images.Built(stack=made.stack, tag=made.tag, build="b:1", status=status, image=found)  # type: ignore[arg-type]

    monkeypatch.setattr(cli.boto3, "Session", Session)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(images, "source", source)
    monkeypatch.setattr(images, "upload", upload)
    monkeypatch.setattr(images, "build", build)
    monkeypatch.setattr(images, "current", lambda _, stack, **__: f"{IMAGE} {stack}")
    return done


def test_a_build_ends_with_one_line_on_stdout_and_its_progress_on_stderr(calls: list[str]) -> None:
    done = moerl(*BUILD)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{IMAGE}\n", "upload [3] files\n")
    assert calls == ["pack efa-gda", "upload ('s3', 'us-west-2')", "build True"]


def test_as_json_it_is_one_document() -> None:
    assert json.loads(moerl(*BUILD, "--json").stdout)["image"] == IMAGE


def test_a_build_left_to_itself_says_how_to_ask_for_it_later(calls: list[str]) -> None:
    done = moerl(*BUILD, "--no-wait")
    assert done.exit_code == 0
    assert "moerl image digest starter-p5en --stack efa-gda" in done.stdout
    assert calls[-1] == "build False"


def test_against_the_embedded_aws_it_says_that_nothing_is_built_and_why(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    done = moerl(*BUILD)
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr.startswith("not built here the embedded AWS has no container engine")
    as_json = moerl(*BUILD, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["outcome"]) == (4, "not built here")
    assert calls == []


def test_a_source_that_cannot_be_packed_is_wrong_input_and_nothing_is_uploaded(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    def refuse(_: Any, __: Any) -> images.Source:
        raise images.SourceFault("BASE_DIGEST has no value yet")

    monkeypatch.setattr(images, "source", refuse)
    done = moerl(*BUILD)
    assert (done.exit_code, done.stderr) == (2, "wrong input BASE_DIGEST has no value yet\n")
    assert calls == []


@pytest.mark.parametrize("embedded", [True, False])
@pytest.mark.parametrize(
    "command",
    [("image", "build", "nope", "--env", "starter-p5en"), (*DIGEST, "--stack", "nope")],
    ids=["build", "digest"],
)
def test_an_unknown_stack_is_wrong_input_and_the_stacks_are_named(
    command: tuple[str, ...], embedded: bool, monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    if embedded:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    done = moerl(*command)
    assert done.exit_code == 2
    assert "baseline, aws-reference, efa-gda" in done.stderr
    assert calls == []


def test_a_build_that_failed_is_a_failure_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> images.Built:
        raise images.ImageFault("build b:1 ended as FAILED")

    monkeypatch.setattr(images, "build", fail)
    done = moerl(*BUILD)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.endswith("failed build b:1 ended as FAILED\n")


def test_the_digest_is_that_of_the_environments_own_stack_unless_another_is_named() -> None:
    assert moerl(*DIGEST).stdout == f"{IMAGE} efa-gda\n"
    assert moerl(*DIGEST, "--stack", "baseline").stdout == f"{IMAGE} baseline\n"
    assert json.loads(moerl(*DIGEST, "--json").stdout) == {"stack": "efa-gda", "image": f"{IMAGE} efa-gda"}


def test_no_image_yet_is_a_failure_that_a_pipeline_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> str:
        raise images.ImageFault("no image yet")

    monkeypatch.setattr(images, "current", missing)
    done = moerl(*DIGEST)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "failed no image yet\n")
