"""`moerl image`: what is packed, what is asked of AWS, and which image is taken for the one that was built."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.catalog import CATALOG
from infra.catalog.facts import Unresolved
from infra.catalog.software import Software
from infra.config.image_arguments import ImageArguments, image_arguments, unresolved_arguments
from infra.config.plan import Plan
from infra.operations import image as images
from tests.shipped import ROOT, plan_of

from .scripted import Answer, refused, scripted

DIGEST = "sha256:" + "a" * 64
URI = "123456789012.dkr.ecr.us-west-2.amazonaws.com/starter-p5en/moerl"
SHIPPED: tuple[Software, ...] = tuple(name for name in CATALOG.software if (ROOT / "images" / name).is_dir())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("starter-p5en")


def resolved(stack: Software) -> ImageArguments:
    """Arguments of a stack, with made-up values where the catalog has none."""
    pinned, sources = CATALOG.software[stack], CATALOG.image_sources[stack]
    made_up = dict.fromkeys(unresolved_arguments(pinned, sources), "0" * 40)
    return image_arguments(pinned, sources, resolved=made_up)


def arguments(**values: str) -> ImageArguments:
    return ImageArguments(stack="efa-gda", arguments=values, unresolved={})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one stack and the runtime."""
    for name, text in {
        "images/efa-gda/Dockerfile": "FROM scratch\n",
        "images/baseline/Dockerfile": "FROM scratch\n",
        "images/runtime/moerl_runtime/cli.py": "x = 1\n",
        "images/runtime/pyproject.toml": "[project]\n",
        "images/build/install.sh": "#!/bin/sh\n",
        "README.md": "not part of it\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def unpacked(source: images.Source) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(source.packed.body)) as bundle:
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


def test_a_source_is_the_stacks_folder_the_runtime_and_the_arguments_and_nothing_else(root: Path) -> None:
    made = images.source(root, arguments(NCCL="2.31.2", ARCHS="9.0;10.0"))
    assert unpacked(made) == {
        "build-arguments": "NCCL=2.31.2\nARCHS=9.0;10.0\n",
        "context/efa-gda/Dockerfile": "FROM scratch\n",
        "context/build/install.sh": "#!/bin/sh\n",
        "context/runtime/moerl_runtime/cli.py": "x = 1\n",
        "context/runtime/pyproject.toml": "[project]\n",
    }
    assert made.key == f"images/{made.packed.digest}.zip"
    assert made.tag == f"efa-gda-{made.packed.digest[:20]}"


def test_a_source_that_is_built_anew_has_a_tag_of_its_own_and_says_so(root: Path) -> None:
    before, first, second = (
        images.source(root, arguments(A="1"), anew=day) for day in (None, "2026-11-29", "2026-11-30")
    )
    assert len({before.tag, first.tag, second.tag}) == 3
    assert unpacked(second) == unpacked(before) | {"anew": "2026-11-30\n"}


@pytest.mark.parametrize(
    "left",
    [
        "moerl_runtime/__pycache__/cli.cpython-311.pyc",
        "moerl_runtime/cli.pyc",
        "moerl_runtime.egg-info/PKG-INFO",
        ".mypy_cache/x.json",
        "build/lib/x.py",
    ],
)
def test_what_running_the_runtime_leaves_behind_does_not_change_the_tag(root: Path, left: str) -> None:
    before = images.source(root, arguments(A="1"))
    path = root / "images/runtime" / left
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("left behind", encoding="utf-8")
    assert images.source(root, arguments(A="1")) == before


def test_times_owners_and_modes_of_readers_do_not_change_the_tag(root: Path) -> None:
    before = images.source(root, arguments(A="1"))
    for path in root.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        if path.is_file():
            path.chmod(0o600)
    assert images.source(root, arguments(A="1")) == before


Edit = Callable[[Path], object]


@pytest.mark.parametrize(
    "edit",
    [
        lambda root: (root / "images/efa-gda/Dockerfile").write_text("FROM other\n", encoding="utf-8"),
        lambda root: (root / "images/runtime/moerl_runtime/cli.py").write_text("x = 2\n", encoding="utf-8"),
        lambda root: (root / "images/runtime/moerl_runtime/more.py").touch(),
        lambda root: (root / "images/runtime/moerl_runtime/cli.py").chmod(0o755),
    ],
    ids=["Dockerfile", "runtime", "new file", "program"],
)
def test_whatever_can_change_the_image_changes_the_tag(root: Path, edit: Edit) -> None:
    before = images.source(root, arguments(A="1"))
    assert images.source(root, arguments(A="2")).tag != before.tag
    edit(root)
    assert images.source(root, arguments(A="1")).tag != before.tag


def test_another_stacks_dockerfile_does_not(root: Path) -> None:
    before = images.source(root, arguments(A="1"))
    (root / "images/baseline/Dockerfile").write_text("FROM other\n", encoding="utf-8")
    assert images.source(root, arguments(A="1")) == before


def test_an_argument_without_a_value_is_named_with_what_to_run(root: Path) -> None:
    pin = Unresolved(what="digest of the base image", command="look")
    lacking = ImageArguments(stack="efa-gda", arguments={"A": "1"}, unresolved={"BASE_DIGEST": pin})
    with pytest.raises(images.SourceFault, match=r"BASE_DIGEST: digest of the base image.*moerl lock"):
        images.source(root, lacking)


def test_a_value_of_two_lines_would_be_two_arguments_and_is_refused(root: Path) -> None:
    with pytest.raises(images.SourceFault, match="build argument B"):
        images.source(root, arguments(A="1", B="x\nY=2"))


def test_a_link_is_refused_by_name(root: Path) -> None:
    (root / "images/runtime/linked.py").symlink_to(root / "README.md")
    with pytest.raises(images.SourceFault, match=r"linked\.py is a link"):
        images.source(root, arguments(A="1"))


def test_outside_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(images.SourceFault, match="checkout"):
        images.source(tmp_path, arguments(A="1"))


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_shipped_source_holds_every_file_that_its_dockerfile_copies(stack: Software) -> None:
    made = images.source(ROOT, resolved(stack))
    names = set(made.packed.files)
    text = (ROOT / "images" / stack / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        source
        for line in text.splitlines()
        if line.split()[:1] in (["COPY"], ["ADD"]) and "--from=" not in line
        for source in [word for word in line.split()[1:] if not word.startswith("--")][:-1]
    ]
    mounts = [dict(part.split("=") for part in mount.split(",")) for mount in re.findall(r"--mount=(\S+)", text)]
    copied += [mount["source"] for mount in mounts if mount["type"] == "bind" and "from" not in mount]
    assert "runtime" in copied, "a stack that is given no runtime lacks it"
    for source in copied:
        inside = f"context/{source.rstrip('/').removeprefix('./')}"
        assert any(name == inside or name.startswith(f"{inside}/") for name in names), source
    assert len(made.packed.body) < 20 * 2**20


# --- upload and build


class Aws:
    """Scripted clients around one build."""

    def __init__(self, status: str = "SUCCEEDED", **errors: Exception) -> None:
        def answer(service: str, value: dict[str, Any]) -> Answer:
            def give(_: dict[str, Any]) -> dict[str, Any]:
                if service in errors:
                    raise errors[service]
                return value

            return give

        finished = {"id": "starter-p5en-image:1", "buildStatus": status, "currentPhase": "COMPLETED"}
        if status != "SUCCEEDED":
            context = {"message": "exit status 1"}
            finished["phases"] = [{"phaseType": "BUILD", "phaseStatus": status, "contexts": [context]}]
        self.s3, self.s3_calls = scripted("s3", {"PutObject": answer("s3", {})})
        self.codebuild, self.codebuild_calls = scripted(
            "codebuild",
            {
                "StartBuild": answer("codebuild", {"build": {"id": "starter-p5en-image:1"}}),
                "BatchGetBuilds": answer("", {"builds": [finished]}),
            },
        )
        self.ecr, self.ecr_calls = scripted(
            "ecr", {"DescribeImages": answer("ecr", {"imageDetails": [{"imageDigest": DIGEST}]})}
        )
        self.logs, _ = scripted("logs", {})
        self.lines: list[str] = []

    def build(self, made: images.Source, plan: Plan, **more: Any) -> images.Built:
        return images.build(
            made,
            plan,
            codebuild=self.codebuild,
            logs=self.logs,
            ecr=self.ecr,
            report=self.lines.append,
            wait=lambda _: None,
            **more,
        )


def test_the_source_goes_to_the_bucket_and_prefix_that_the_project_may_read(root: Path, plan: Plan) -> None:
    aws, made = Aws(), images.source(root, arguments(A="1"))
    images.upload(made, plan, s3=aws.s3, report=aws.lines.append)
    assert aws.s3_calls == [
        (
            "PutObject",
            {
                "Bucket": "starter-p5en-apply-123456789012-us-west-2",
                "Key": made.key,
                "Body": made.packed.body,
                "ExpectedBucketOwner": "123456789012",
            },
        )
    ]


def test_a_build_ends_with_the_digest_of_its_own_tag(root: Path, plan: Plan) -> None:
    aws, made = Aws(), images.source(root, arguments(A="1"))
    built = aws.build(made, plan)
    assert built.document() == {
        "stack": "efa-gda",
        "tag": made.tag,
        "build": "starter-p5en-image:1",
        "status": "SUCCEEDED",
        "image": f"{URI}@{DIGEST}",
    }
    assert aws.codebuild_calls[0] == (
        "StartBuild",
        {
            "projectName": "starter-p5en-image",
            "environmentVariablesOverride": [
                {"name": "SOURCE_KEY", "value": made.key, "type": "PLAINTEXT"},
                {"name": "STACK", "value": "efa-gda", "type": "PLAINTEXT"},
            ],
        },
    )
    asked = {"registryId": "123456789012", "repositoryName": "starter-p5en/moerl", "imageIds": [{"imageTag": made.tag}]}
    assert aws.ecr_calls == [("DescribeImages", asked)]
    assert aws.lines == ["build starter-p5en-image:1", "phase COMPLETED"]


def test_a_build_left_to_itself_names_no_image(root: Path, plan: Plan) -> None:
    aws, made = Aws(), images.source(root, arguments(A="1"))
    built = aws.build(made, plan, to_its_end=False)
    assert (built.status, built.image) == ("STARTED", None)
    assert [operation for operation, _ in aws.codebuild_calls] == ["StartBuild"]


@pytest.mark.parametrize("status", ["FAILED", "FAULT", "TIMED_OUT", "STOPPED"])
def test_a_build_that_does_not_succeed_names_no_image(root: Path, plan: Plan, status: str) -> None:
    aws, made = Aws(status), images.source(root, arguments(A="1"))
    with pytest.raises(images.ImageFault, match=f"{status}: BUILD: exit status 1$"):
        aws.build(made, plan)
    assert aws.ecr_calls == []


def test_a_missing_project_or_bucket_is_named_with_its_stack(root: Path, plan: Plan) -> None:
    made = images.source(root, arguments(A="1"))
    with pytest.raises(images.ImageFault, match=r"NoSuchBucket.*access stack of starter-p5en"):
        images.upload(made, plan, s3=Aws(s3=refused("PutObject", "NoSuchBucket", "x")).s3, report=lambda _: None)
    with pytest.raises(images.ImageFault, match=r"AccessDenied.*images stack of starter-p5en"):
        Aws(codebuild=refused("StartBuild", "AccessDenied", "x")).build(made, plan)


# --- the digest


def parameter(value: str) -> Answer:
    return lambda asked: {"Parameter": {"Name": asked["Name"], "Value": value}}


def test_the_current_image_is_what_the_stacks_parameter_says(plan: Plan) -> None:
    ssm, calls = scripted("ssm", {"GetParameter": parameter(f"{URI}@{DIGEST}")})
    assert images.current(plan, "baseline", ssm=ssm) == f"{URI}@{DIGEST}"
    assert calls == [("GetParameter", {"Name": "/moerl/starter-p5en/image/baseline"})]


@pytest.mark.parametrize(
    "value",
    [f"{URI}:tag", f"other.example.com/x@{DIGEST}", f"{URI}@{DIGEST}\nmore", "", f"{URI}@sha256:short"],
)
def test_a_parameter_that_holds_something_else_is_not_handed_on(plan: Plan, value: str) -> None:
    ssm, _ = scripted("ssm", {"GetParameter": parameter(value)})
    with pytest.raises(images.ImageFault, match="no build wrote"):
        images.current(plan, "efa-gda", ssm=ssm)


def test_before_any_build_it_says_what_to_run(plan: Plan) -> None:
    ssm, _ = scripted("ssm", {})

    def missing(_: str, __: dict[str, Any]) -> dict[str, Any]:
        raise ssm.exceptions.ParameterNotFound({"Error": {"Code": "ParameterNotFound"}}, "GetParameter")

    ssm._make_api_call = missing
    with pytest.raises(images.ImageFault, match="moerl image build efa-gda --env starter-p5en"):
        images.current(plan, "efa-gda", ssm=ssm)
