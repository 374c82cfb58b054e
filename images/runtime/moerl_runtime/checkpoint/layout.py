"""Names of a run's objects in the checkpoint bucket, and the documents in them.

    RUN/lease.json                             LeaseRecord
    RUN/attempts/ATTEMPT.json                  AttemptRecord, written once when the lease is taken
    RUN/steps/ATTEMPT/STEP/announced.json      Announcement: the save is on disk, on that many nodes
    RUN/steps/ATTEMPT/STEP/nodes/NODE.json     NodeManifest: what a node uploaded, written after the last of its files
    RUN/steps/ATTEMPT/STEP/files/NAME          the files, under their path below scratch
    RUN/steps/ATTEMPT/STEP/complete.json       Complete: the commit marker, written last and deleted first
    RUN/pins/ATTEMPT-STEP                      keeps that checkpoint from being pruned

Everything that an attempt writes is below its own number, and the record of an attempt says where it resumed. Readers
follow that lineage from the newest attempt (`resolve`), so what an attempt commits after another one has taken over is
never picked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moerl_runtime.protocol import Attempt

COMPLETE_NAME = "complete.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One checkpoint of a run."""

    attempt: int
    step: int

    def __str__(self) -> str:
        return f"{self.attempt:06d}-{self.step:08d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Body of lease.json. Its age is S3's, so no clock of a machine is in it."""

    run: str
    attempt: int
    holder: str
    token: str
    """Made anew by every taking: tells an own write whose answer was lost from another's."""
    renewal: int = 0
    """Makes every renewal another object, so that it has another ETag."""
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """Where an attempt began; both numbers are None for a run that began anew."""

    run: str
    attempt: int
    holder: str
    token: str
    resumed_attempt: int | None = None
    resumed_step: int | None = None

    @property
    def resumed_from(self) -> Position | None:
        if self.resumed_attempt is None or self.resumed_step is None:
            return None
        return Position(attempt=self.resumed_attempt, step=self.resumed_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A save that is on disk: written by the uploader of the pod in which the trainer announced it."""

    run: str
    attempt: int
    step: int
    nodes: int
    """How many nodes upload files of it."""
    committer: str
    items: tuple[str, ...]
    """Files and directories below scratch; a node uploads what it has of them."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a checkpoint. `crc64nvme` is the whole file's, in base64, as S3 writes it."""

    name: str
    size: int
    crc64nvme: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeManifest:
    run: str
    attempt: int
    step: int
    node: str
    files: tuple[Mapping[str, Any], ...]
    """`File`s as objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The commit marker: all files of the checkpoint, of all nodes."""

    run: str
    attempt: int
    step: int
    nodes: tuple[str, ...]
    files: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's own: its cursor, its model export."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in files_of(self))


def files_of(document: NodeManifest | Complete) -> tuple[File, ...]:
    return tuple(File(**entry) for entry in document.files)


def lease_key(prefix: str, run: str) -> str:
    """`prefix` is plan.json's storage.checkpoint_prefix, with its slash."""
    return f"{prefix}{run}/lease.json"


def attempts_prefix(prefix: str, run: str) -> str:
    return f"{prefix}{run}/attempts/"


def attempt_key(prefix: str, attempt: Attempt) -> str:
    return f"{attempts_prefix(prefix, attempt.run)}{attempt.name}.json"


def steps_prefix(prefix: str, run: str) -> str:
    return f"{prefix}{run}/steps/"


def attempt_steps_prefix(prefix: str, attempt: Attempt) -> str:
    return f"{steps_prefix(prefix, attempt.run)}{attempt.name}/"


def step_prefix(prefix: str, attempt: Attempt, step: int) -> str:
    """Below it lies all of one checkpoint."""
    return f"{attempt_steps_prefix(prefix, attempt)}{step:08d}/"


def announced_key(checkpoint_prefix: str) -> str:
    return f"{checkpoint_prefix}announced.json"


def nodes_prefix(checkpoint_prefix: str) -> str:
    return f"{checkpoint_prefix}nodes/"


def node_key(checkpoint_prefix: str, node: str) -> str:
    return f"{nodes_prefix(checkpoint_prefix)}{node}.json"


def file_key(checkpoint_prefix: str, name: str) -> str:
    return f"{checkpoint_prefix}files/{name}"


def complete_key(checkpoint_prefix: str) -> str:
    return f"{checkpoint_prefix}{COMPLETE_NAME}"


def pins_prefix(prefix: str, run: str) -> str:
    return f"{prefix}{run}/pins/"


def pin_key(prefix: str, run: str, position: Position) -> str:
    return f"{pins_prefix(prefix, run)}{position}"
