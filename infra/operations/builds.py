"""What every operation does that hands its work to a CodeBuild project: pack a source, start a build, follow it.

Nothing here reads the environment or the clock: clients, progress and waiting are handed in.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

POLL_SECONDS = 5.0
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest that the format knows: an archive's bytes follow from its files alone."""
PLAIN_FILE, PROGRAM = 0o644, 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of an archive; `name` is its path inside, with forward slashes."""

    name: str
    body: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Files as one zip. `digest` is its SHA-256, in hex."""

    body: bytes
    digest: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One finished build. `status` is CodeBuild's: SUCCEEDED, FAILED, FAULT, TIMED_OUT or STOPPED."""

    build: str
    status: str
    failures: tuple[str, ...]
    """What CodeBuild says of each phase that failed."""

    @property
    def succeeded(self) -> bool:
        return self.status == "SUCCEEDED"

    def text(self) -> str:
        """What happened, for a person, when it did not succeed."""
        return f"build {self.build} ended as {self.status}: {'; '.join(self.failures) or 'see the log above'}"


def pack(entries: Iterable[Entry]) -> Packed:
    """The entries, uncompressed, in their own order. Same files, same bytes, whenever and by whom they were written."""
    buffer, names = io.BytesIO(), []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as bundle:
        for entry in entries:
            info = zipfile.ZipInfo(entry.name, date_time=ZIP_DATE)
            info.create_system, info.external_attr = 3, (PROGRAM if entry.executable else PLAIN_FILE) << 16
            bundle.writestr(info, entry.body)
            names.append(entry.name)
    body = buffer.getvalue()
    return Packed(body=body, digest=hashlib.sha256(body).hexdigest(), files=tuple(names))


def start(project: str, variables: Mapping[str, str], *, codebuild: Any, report: Callable[[str], None]) -> str:
    """Starts a build of the project with these environment variables and returns its id."""
    build = codebuild.start_build(
        projectName=project,
        environmentVariablesOverride=[
            {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
        ],
    )["build"]
    report(f"build {build['id']}")
    return str(build["id"])


def follow(
    build_id: str, *, codebuild: Any, logs: Any, report: Callable[[str], None], wait: Callable[[float], None]
) -> Ended:
    """Reports phases and log lines until the build has ended; CodeBuild itself ends it at the project's timeout."""
    phase, token = "", None
    while True:
        build: dict[str, Any] = codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        if build.get("currentPhase", "") != phase:
            phase = build["currentPhase"]
            report(f"phase {phase}")
        token = _report_log(build.get("logs", {}), logs, report, token)
        if build["buildStatus"] != "IN_PROGRESS":
            return Ended(build=build["id"], status=build["buildStatus"], failures=tuple(_failures(build)))
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
