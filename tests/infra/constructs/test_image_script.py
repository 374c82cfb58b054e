"""The image project's script, run by bash with stand-ins for the AWS CLI and Docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infra.constructs.image_script import (
    ANEW_FILE,
    ARGUMENTS_FILE,
    CONTEXT_FOLDER,
    CONTEXT_PREFIX,
    buildspec,
    script,
    tag,
)
from infra.operations.builds import Entry, pack

STACKS = ("baseline", "aws-reference", "efa-gda")
# Answers from a folder that stands for S3 and from JSON that stands for ECR; --query is what the CLI's own library makes
# of it. `docker push` puts the image into ECR, as it does.
AWS = """#!{python}
import json, os, shutil, sys, jmespath
arguments = sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write("aws " + " ".join(arguments) + "\\n")
options = dict(zip(arguments, arguments[1:]))
state_file, store = os.environ["STATE"], os.environ["STORE"]
state = json.load(open(state_file))
if arguments[:2] == ["s3", "cp"]:
    source, target = (path.replace("s3://", store + "/") for path in arguments[-2:])
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    shutil.copy(source, target)
elif arguments[1] == "get-login-password":
    print("secret")
elif arguments[0] == "ecr":
    error = state.get("errors", {{}}).get(arguments[1])
    missing = {{"describe-images": "ImageNotFoundException", "describe-image-scan-findings": "ScanNotFoundException"}}
    answers = state[arguments[1]]
    if error or not answers:
        sys.exit(f"An error occurred ({{error or missing[arguments[1]]}}) when calling the operation: x")
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    json.dump(state, open(state_file, "w"))
    found = jmespath.search(options["--query"], answer)
    print(json.dumps(found, indent=4) if options["--output"] == "json" else found)
elif arguments[:2] == ["ssm", "get-parameter"]:
    if state.get("parameter") is None:
        sys.exit(f"An error occurred ({{state.get('ssm', 'ParameterNotFound')}}) when calling the operation: x")
    print(jmespath.search(options["--query"], {{"Parameter": {{"Value": state["parameter"]}}}}))
elif arguments[0] == "ssm":
    print("{{}}")
"""
DOCKER = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
if arguments[0] == "login":
    assert sys.stdin.read().strip() == ("hub token" if "someone" in arguments else "secret")
with open(os.environ["CALLS"], "a") as calls:
    calls.write("docker " + json.dumps(arguments) + "\\n")
if arguments[0] == os.environ.get("FAILS_ON"):
    sys.exit(7)
if arguments[0] == "run":
    print("{{}}")
if arguments[0] == "push":
    state = json.load(open(os.environ["STATE"]))
    state["describe-images"] = [{{"imageDetails": [{{"imageDigest": state["pushed"]}}]}}]
    json.dump(state, open(os.environ["STATE"], "w"))
"""
DIGEST = "sha256:" + "d" * 64
URI = "123456789012.dkr.ecr.us-west-2.amazonaws.com/starter/moerl"


def scanned(*critical: str, status: str = "COMPLETE", other: int = 3) -> dict[str, Any]:
    found = [{"name": name, "severity": "CRITICAL"} for name in critical]
    counts = {"MEDIUM": other, **({"CRITICAL": len(critical)} if critical else {})}
    findings = {"findings": [{"name": "CVE-2026-0001", "severity": "MEDIUM"}, *found], "findingSeverityCounts": counts}
    return {"imageScanStatus": {"status": status, "description": "why not"}, "imageScanFindings": findings}


class Project:
    """A run of the script over a context of one Dockerfile."""

    def __init__(self, folder: Path, *more: Entry) -> None:
        self.store, self.calls_file, self.state_file = folder / "s3", folder / "calls", folder / "state.json"
        tools = folder / "bin"
        tools.mkdir()
        for name, text in (("aws", AWS), ("docker", DOCKER)):
            (tools / name).write_text(text.format(python=sys.executable), encoding="utf-8")
            (tools / name).chmod(0o755)
        entries = [
            Entry(name=ARGUMENTS_FILE, body=b"NCCL=2.31.2\nARCHS=9.0;10.0 $(touch owned)\n"),
            Entry(name=f"{CONTEXT_FOLDER}/efa-gda/Dockerfile", body=b"FROM scratch\n"),
            *more,
        ]
        self.packed = pack(entries)
        self.key = f"{CONTEXT_PREFIX}{self.packed.digest}.zip"
        self.tag = tag("efa-gda", self.packed.digest)
        path = self.store / "bucket" / self.key
        path.parent.mkdir(parents=True)
        path.write_bytes(self.packed.body)
        self.aws({"describe-images": [], "describe-image-scan-findings": [scanned()]})
        self.variables = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TMPDIR": str(folder),
            "CALLS": str(self.calls_file),
            "STORE": str(self.store),
            "STATE": str(self.state_file),
            "ACCEPTED": "",
            "PARAMETERS": "/moerl/starter/image",
            "REPOSITORY": "starter/moerl",
            "REPOSITORY_URI": URI,
            "SCAN_ATTEMPTS": "4",
            "SCAN_WAIT_SECONDS": "0",
            "SOURCE_BUCKET": "bucket",
            "SOURCE_KEY": self.key,
            "STACK": "efa-gda",
            "SYFT_IMAGE": "ghcr.io/anchore/syft:v1@sha256:" + "e" * 64,
        }

    def aws(self, state: dict[str, Any]) -> None:
        """What ECR answers, one reply after the other; the last stays."""
        self.state_file.write_text(json.dumps({"pushed": DIGEST, **state}), encoding="utf-8")

    def run(self, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - the script under test
            ["bash", "-c", script(STACKS)],  # noqa: S607 - CodeBuild finds bash by PATH too
            env={**self.variables, **changed},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def calls(self, start: str) -> list[str]:
        lines = self.calls_file.read_text(encoding="utf-8").splitlines() if self.calls_file.exists() else []
        return [line for line in lines if line.startswith(start)]

    def docker(self) -> list[list[str]]:
        return [json.loads(line.removeprefix("docker ")) for line in self.calls("docker ")]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def verbs(calls: Sequence[Sequence[str]]) -> list[str]:
    return [call[0] for call in calls]


def test_it_builds_lists_pushes_scans_and_then_names_the_image(project: Project) -> None:
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert verbs(project.docker()) == ["login", "build", "run", "push"]
    reference = f"{URI}:{project.tag}"
    assert project.docker()[3] == ["push", "--quiet", reference]
    assert project.docker()[0][-1] == URI.partition("/")[0]
    (put,) = project.calls("aws ssm put-parameter")
    assert f"--name /moerl/starter/image/efa-gda --type String --overwrite --value {URI}@{DIGEST}" in put
    assert done.stdout.endswith(f"image: {URI}@{DIGEST}\n")
    assert (project.store / "bucket/sbom" / f"{project.tag}.spdx.json").read_text(encoding="utf-8") == "{}\n"


def test_base_images_are_pulled_under_an_account_where_there_is_one(project: Project) -> None:
    assert project.run(DOCKER_HUB_USER="someone", DOCKER_HUB_TOKEN="hub token").returncode == 0  # noqa: S106
    assert verbs(project.docker()) == ["login", "login", "build", "run", "push"]
    assert project.docker()[0] == ["login", "--username", "someone", "--password-stdin"]
    assert not [line for line in project.calls("docker ") if "hub token" in line]


def test_every_build_argument_arrives_whole_and_none_is_run(project: Project) -> None:
    assert project.run().returncode == 0
    build = project.docker()[1]
    given = [value for option, value in pairwise(build) if option == "--build-arg"]
    assert given == ["NCCL=2.31.2", "ARCHS=9.0;10.0 $(touch owned)", "BUILDKIT_INLINE_CACHE=1"]
    assert build[-1] == "context"
    assert build[build.index("--file") + 1] == "context/efa-gda/Dockerfile"


def test_a_source_that_is_there_is_not_built_again_but_judged_again(project: Project) -> None:
    there = {"imageDetails": [{"imageDigest": DIGEST}]}
    project.aws({"describe-images": [there], "describe-image-scan-findings": [scanned()]})
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert project.docker() == []
    assert len(project.calls("aws ssm put-parameter")) == 1


def test_it_waits_for_the_scan(project: Project) -> None:
    pending = scanned(status="IN_PROGRESS")
    project.aws({"describe-images": [], "describe-image-scan-findings": [pending, pending, scanned()]})
    assert project.run().returncode == 0


@pytest.mark.parametrize("findings", [[scanned(status="IN_PROGRESS")], []], ids=["runs", "never starts"])
def test_a_scan_that_does_not_end_names_nothing(project: Project, findings: list[Any]) -> None:
    project.aws({"describe-images": [], "describe-image-scan-findings": findings})
    done = project.run()
    assert done.returncode != 0
    assert "not ended in time" in done.stderr
    assert not project.calls("aws ssm put-parameter")


@pytest.mark.parametrize(
    ("status", "text"),
    [("FAILED", "FAILED): why not"), ("UNSUPPORTED_IMAGE", "could not scan"), ("ACTIVE", "enhanced scanning")],
)
def test_an_image_that_was_not_scanned_is_not_taken_for_a_clean_one(project: Project, status: str, text: str) -> None:
    project.aws({"describe-images": [], "describe-image-scan-findings": [scanned(status=status)]})
    done = project.run()
    assert done.returncode != 0
    assert text in done.stderr
    assert not project.calls("aws ssm put-parameter")


@pytest.mark.parametrize(
    ("accepted", "open_findings"),
    [
        ("", ["CVE-2026-1111", "CVE-2026-2222"]),
        ("CVE-2026-1111", ["CVE-2026-2222"]),
        ("CVE-2026-111", ["CVE-2026-1111", "CVE-2026-2222"]),
        ("CVE-2026-2222 CVE-2026-1111", []),
    ],
)
def test_critical_findings_stop_it_unless_each_is_accepted(
    project: Project, accepted: str, open_findings: list[str]
) -> None:
    found = scanned("CVE-2026-1111", "CVE-2026-2222")
    project.aws({"describe-images": [], "describe-image-scan-findings": [found]})
    done = project.run(ACCEPTED=accepted)
    assert (done.returncode == 0) is (not open_findings), done.stderr
    assert [line.split()[-1] for line in done.stderr.splitlines() if " critical CVE" in line] == open_findings
    assert len(project.calls("aws ssm put-parameter")) == (not open_findings)


def test_a_count_without_names_stops_it(project: Project) -> None:
    odd = scanned("CVE-2026-1111")
    odd["imageScanFindings"]["findings"] = []
    project.aws({"describe-images": [], "describe-image-scan-findings": [odd]})
    done = project.run()
    assert done.returncode != 0
    assert "counts 1 critical findings and lists none" in done.stderr


def test_layers_come_from_the_stacks_last_image_by_its_digest(project: Project) -> None:
    assert project.run().returncode == 0
    assert "--cache-from" not in project.docker()[1]
    last = f"{URI}@sha256:{'a' * 64}"
    project.aws({"describe-images": [], "describe-image-scan-findings": [scanned()], "parameter": last})
    done = project.run()
    assert done.returncode == 0, done.stderr
    (asked,) = set(project.calls("aws ssm get-parameter"))
    assert "--name /moerl/starter/image/efa-gda " in asked
    build = project.docker()[5]
    assert [value for option, value in pairwise(build) if option == "--cache-from"] == [last]
    # It is pulled by the login of the repository, so that comes first.
    assert verbs(project.docker()[4:]) == ["login", "build", "run", "push"]


def test_a_source_that_is_built_anew_takes_no_layer_of_an_older_image(tmp_path: Path) -> None:
    project = Project(tmp_path, Entry(name=ANEW_FILE, body=b"2026-11-30\n"))
    last = f"{URI}@sha256:{'a' * 64}"
    project.aws({"describe-images": [], "describe-image-scan-findings": [scanned()], "parameter": last})
    assert project.run().returncode == 0
    assert "--cache-from" not in project.docker()[1]
    assert "BUILDKIT_INLINE_CACHE=1" in project.docker()[1]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"ssm": "AccessDeniedException"}, "AccessDeniedException"),
        ({"parameter": "docker.io/someone/else@sha256:" + "a" * 64}, "names no image of the repository"),
        ({"parameter": f"{URI}:latest"}, "names no image of the repository"),
    ],
    ids=["refused", "another repository", "a tag"],
)
def test_a_last_image_that_cannot_be_trusted_ends_the_build(project: Project, state: dict[str, Any], why: str) -> None:
    project.aws({"describe-images": [], "describe-image-scan-findings": [scanned()], **state})
    done = project.run()
    assert done.returncode != 0
    assert why in done.stderr
    assert "build" not in verbs(project.docker())
    assert not project.calls("aws ssm put-parameter")


@pytest.mark.parametrize("step", ["login", "build", "run", "push"])
def test_the_first_failure_ends_it_and_names_nothing(project: Project, step: str) -> None:
    assert project.run(FAILS_ON=step).returncode != 0
    assert verbs(project.docker())[-1] == step
    assert not project.calls("aws ssm put-parameter")


def test_an_error_of_ecr_is_no_missing_image(project: Project) -> None:
    errors = {"describe-images": "AccessDeniedException"}
    project.aws({"errors": errors, "describe-images": [], "describe-image-scan-findings": [scanned()]})
    done = project.run()
    assert done.returncode != 0
    assert "AccessDeniedException" in done.stderr
    assert project.docker() == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SOURCE_KEY", ""),
        ("SOURCE_KEY", "images/latest.zip"),
        ("SOURCE_KEY", "rendered/" + "a" * 64 + ".zip"),
        ("SOURCE_KEY", "images/" + "a" * 64 + ".zip; touch owned"),
        ("STACK", ""),
        ("STACK", "../efa-gda"),
        ("STACK", "other"),
        ("SYFT_IMAGE", "ghcr.io/anchore/syft:v1@unresolved"),
    ],
)
def test_input_of_another_form_is_refused_before_anything_is_asked(project: Project, variable: str, value: str) -> None:
    done = project.run(**{variable: value})
    assert done.returncode != 0
    assert variable.split("_")[0].lower() in done.stderr.lower()
    assert not project.calls_file.exists()


def test_a_context_that_is_not_the_one_its_key_names_is_not_built(project: Project) -> None:
    (project.store / "bucket" / project.key).write_bytes(b"another archive")
    done = project.run()
    assert done.returncode != 0
    assert "not the one" in done.stderr
    assert project.docker() == []


def test_another_context_has_another_tag() -> None:
    assert tag("baseline", "0" * 64) != tag("baseline", "1" * 64)
    assert tag("baseline", "0" * 64) != tag("efa-gda", "0" * 64)


def test_the_specification_holds_the_script_and_runs_it_by_bash() -> None:
    document = json.loads(buildspec(STACKS))
    assert document["phases"]["build"]["commands"] == [script(STACKS)]
    assert document["env"]["shell"] == "bash"
