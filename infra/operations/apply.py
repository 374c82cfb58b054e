"""Applies a rendered folder through the environment's apply project: archive, upload, build, follow.

Nothing here reads the environment or the clock: clients, progress and waiting are handed in.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError

from infra.config.plan import Plan
from infra.constructs.apply_script import RENDERED_PREFIX

Action = Literal["apply", "diff"]
MANIFEST = re.compile(r"[0-9]+[A-Za-z0-9._-]*\.yaml")
"""Name of a file that is applied; the leading number is its place in the order."""
POLL_SECONDS = 5.0
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest that the format knows: an archive's bytes follow from its files alone."""


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
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as bundle:
        for path in found:
            entry = zipfile.ZipInfo(path.name, date_time=ZIP_DATE)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            bundle.writestr(entry, path.read_bytes())
    body = buffer.getvalue()
    return Archive(body=body, digest=hashlib.sha256(body).hexdigest(), files=tuple(path.name for path in found))


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
        build = codebuild.start_build(
            projectName=plan.names.apply_project,
            environmentVariablesOverride=[
                {"name": "SOURCE_KEY", "value": packed.key, "type": "PLAINTEXT"},
                {"name": "ACTION", "value": action, "type": "PLAINTEXT"},
            ],
        )["build"]
    except ClientError as error:
        raise ApplyFault(
            f"{error}. Is the access stack of {plan.name} deployed, and may you write its bucket and start its builds?"
        ) from error
    report(f"build {build['id']}")
    ended = _follow(build["id"], codebuild=codebuild, logs=logs, report=report, wait=wait)
    applied = Applied(
        build=ended["id"],
        status=ended["buildStatus"],
        action=action,
        files=packed.files,
        failures=tuple(_failures(ended)),
    )
    if applied.status != "SUCCEEDED":
        reasons = "; ".join(applied.failures) or "see the log above"
        raise ApplyFault(f"build {applied.build} ended as {applied.status}: {reasons}")
    return applied


def _follow(
    build_id: str, *, codebuild: Any, logs: Any, report: Callable[[str], None], wait: Callable[[float], None]
) -> dict[str, Any]:
    """Reports phases and log lines until the build has ended; CodeBuild itself ends it at the project's timeout."""
    phase, token = "", None
    while True:
        build: dict[str, Any] = codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        if build.get("currentPhase", "") != phase:
            phase = build["currentPhase"]
            report(f"phase {phase}")
        token = _report_log(build.get("logs", {}), logs, report, token)
        if build["buildStatus"] != "IN_PROGRESS":
            return build
        wait(POLL_SECONDS)


def _report_log(source: Mapping[str, Any], logs: Any, report: Callable[[str], None], token: str | None) -> str | None:
    """Reports what the build wrote since `token` and returns where to go on; nothing before the stream exists."""
    group, stream = source.get("groupName"), source.get("streamName")
    if not group or not stream:
        return token
    while True:
        call = {"logGroupName": group, "logStreamName": stream, "startFromHead": True}
        try:
            page = logs.get_log_events(**call, **({"nextToken": token} if token else {}))
        except logs.exceptions.ResourceNotFoundException:
            return token
        for event in page["events"]:
            report(event["message"].rstrip("\n"))
        # The end of a stream is told by a token that no longer changes.
        if page["nextForwardToken"] == token:
            return token
        token = page["nextForwardToken"]


def _failures(build: Mapping[str, Any]) -> Iterator[str]:
    for phase in build.get("phases", ()):
        if phase.get("phaseStatus", "SUCCEEDED") != "SUCCEEDED":
            messages = [context["message"] for context in phase.get("contexts", ()) if context.get("message")]
            yield f"{phase['phaseType']}: {' '.join(messages) or phase['phaseStatus']}"
