"""Applies a rendered folder through the environment's apply project: archive, upload, build, follow.

Nothing here reads the environment or the clock: clients, progress and waiting are handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError

from infra.config.plan import Plan
from infra.constructs.apply_script import RENDERED_PREFIX
from infra.operations import builds

Action = Literal["apply", "diff"]
MANIFEST = re.compile(r"[0-9]+[A-Za-z0-9._-]*\.yaml")
"""Name of a file that is applied; the leading number is its place in the order."""


class ApplyFault(Exception):
    """A folder that cannot be applied, or a build that did not succeed; the text says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A rendered folder as one file. `digest` is its SHA-256, in hex."""

    body: bytes
    digest: str
    files: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{RENDERED_PREFIX}{self.digest}.zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """One finished build. `status` is CodeBuild's: SUCCEEDED, FAILED, FAULT, TIMED_OUT or STOPPED."""

    build: str
    status: str
    action: Action
    files: tuple[str, ...]
    failures: tuple[str, ...]
    """What CodeBuild says of each phase that failed."""

    def document(self) -> dict[str, object]:
        """Plain data for `--json`."""
        return asdict(self)


def archive(folder: Path) -> Archive:
    """The numbered manifests of `folder` (`0010-platform.yaml`), uncompressed, in order. Same files, same bytes.

    Raises ApplyFault when there are none, or when a YAML file has no number and so no place in the order.
    """
    found = sorted(path for path in folder.glob("*.yaml") if path.is_file()) if folder.is_dir() else []
    if not found:
        raise ApplyFault(f"{folder} holds no manifests. Render them first: moerl render ENV")
    strays = [path.name for path in found if not MANIFEST.fullmatch(path.name)]
    if strays:
        raise ApplyFault(
            f"{', '.join(strays)} in {folder}: a manifest's name starts with its number. Remove or rename it."
        )
    packed = builds.pack(builds.Entry(name=path.name, body=path.read_bytes()) for path in found)
    return Archive(body=packed.body, digest=packed.digest, files=packed.files)


def apply_folder(
    folder: Path,
    plan: Plan,
    *,
    s3: Any,
    codebuild: Any,
    logs: Any,
    report: Callable[[str], None],
    wait: Callable[[float], None],
    action: Action = "apply",
) -> Applied:
    """Applies `folder`, or shows with `diff` what an apply would change, and returns when the build has ended.

    The clients are boto3's for S3, CodeBuild and CloudWatch Logs in the plan's region. `report` gets each line of
    progress, `wait` sleeps for the seconds it is given.

    Raises ApplyFault when the folder cannot be applied, the project is not there or the build does not succeed.
    """
    packed = archive(folder)
    report(f"upload {len(packed.files)} files to s3://{plan.names.apply_bucket}/{packed.key}")
    try:
        s3.put_object(
            Bucket=plan.names.apply_bucket, Key=packed.key, Body=packed.body, ExpectedBucketOwner=plan.account
        )
        build = builds.start(
            plan.names.apply_project, {"SOURCE_KEY": packed.key, "ACTION": action}, codebuild=codebuild, report=report
        )
    except ClientError as error:
        raise ApplyFault(
            f"{error}. Is the access stack of {plan.name} deployed, and may you write its bucket and start its builds?"
        ) from error
    ended = builds.follow(build, codebuild=codebuild, logs=logs, report=report, wait=wait)
    if not ended.succeeded:
        raise ApplyFault(ended.text())
    return Applied(build=ended.build, status=ended.status, action=action, files=packed.files, failures=ended.failures)
