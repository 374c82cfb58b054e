"""Files by which the trainer tells the uploader beside it that a save is on disk, and learns what became of it.

All of them lie below `handover/` in the checkpoint directory, which both mount, and each appears at once (written beside
its name, then renamed). The trainer writes `ready-ATTEMPT-STEP.json` after everything else of the save; the uploader
answers with `committed-...` or `failed-...` of the same number and then removes `ready-...`, so a restarted uploader goes on
where it was. `restored.json` is written by `restore`, and says what the trainer's files are.

Names inside a checkpoint are paths below scratch, the parent of the checkpoint directory: the export of the model lies
beside that directory, not in it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from moerl_runtime import disk
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.protocol import Attempt, decode, encode

FOLDER = "handover"
RESTORED_NAME = "restored.json"
TRACKER_NAME = "latest_checkpointed_iteration.txt"
"""Megatron's own pointer to its newest save. Every save overwrites it, so it is in no checkpoint: `restore` writes it."""
LOOK_SECONDS = 1.0


class NotCommitted(RuntimeFault):
    """The save was not committed; the checkpoint before it is still the newest."""

    exit_code = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A save that is on disk, on every node that took part in it."""

    run: str
    attempt: int
    step: int
    nodes: int
    items: tuple[str, ...]
    """Files and directories below scratch. Every node uploads what it has of them; each must be on one node at least."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        return Position(attempt=self.attempt, step=self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a save."""

    run: str
    attempt: int
    step: int
    committed: bool
    prefix: str = ""
    """Of the committed checkpoint in its bucket."""
    reason: str = ""
    """Why it was not committed."""


def announce(
    directory: Path,
    *,
    attempt: Attempt,
    step: int,
    paths: Sequence[Path],
    nodes: int = 1,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Hands a finished save to the uploader and returns at once.

    `directory` is the checkpoint directory; `paths` are what belongs to the step, absolute or below scratch; `nodes` is on how
    many nodes files of it may lie (1 where scratch is shared). What a resume needs that is no file stands in `metadata`.
    """
    scratch = directory.resolve().parent
    items = tuple(_item(scratch, path, everywhere=nodes == 1) for path in paths if path.name != TRACKER_NAME)
    if not items:
        raise InputFault("paths", list(paths), "a checkpoint without files cannot be resumed", "Name what was saved.")
    if step < 0 or nodes < 1:
        raise InputFault("step, nodes", (step, nodes), "are no step and count", "Write a step from 0 and nodes from 1.")
    ready = Ready(
        run=attempt.run, attempt=attempt.number, step=step, nodes=nodes, items=items, metadata=dict(metadata or {})
    )
    path = _path(directory, "ready", ready.position)
    write(path, encode(ready))
    return path


def await_committed(
    directory: Path,
    *,
    attempt: Attempt,
    step: int,
    deadline_seconds: float,
    clock: Callable[[], float],
    wait: Callable[[float], object],
    report: Callable[[str], None] | None = None,
) -> Outcome:
    """Waits until this save, or a later one of the attempt, is committed. Raises NotCommitted if it is not.

    `wait` sleeps; where it raises or is an event, the caller decides when to stop. A line every 30 seconds goes to `report`.
    """
    position = Position(attempt=attempt.number, step=step)
    began, told = clock(), clock()
    while True:
        newest = committed(directory, attempt)
        if newest is not None and newest.step >= step:
            return newest
        failed = _read(_path(directory, "failed", position))
        if failed is not None:
            raise NotCommitted("step", step, failed.reason, "The checkpoint before it is still the newest one.")
        now = clock()
        if now - began >= deadline_seconds:
            raise NotCommitted(
                "step", step, f"was not committed within {deadline_seconds:g} s", "See the log of the uploader."
            )
        if report is not None and now - told >= 30:
            report(f"checkpoint: step {step} is not committed yet, waited {now - began:.0f} s")
            told = now
        wait(LOOK_SECONDS)


def committed(directory: Path, attempt: Attempt) -> Outcome | None:
    """The newest save of the attempt that was committed."""
    paths = sorted((directory / FOLDER).glob(f"committed-{attempt.name}-*.json"))
    return _read(paths[-1]) if paths else None


def waiting(directory: Path) -> list[Ready]:
    """Saves that wait for the uploader, oldest first."""
    found = []
    for path in sorted((directory / FOLDER).glob("ready-*.json")):
        try:
            found.append(decode(Ready, path.read_bytes()))
        except FileNotFoundError:
            continue
    return found


def conclude(directory: Path, ready: Ready, outcome: Outcome) -> None:
    """Tells the trainer what became of a save, and takes it off the list."""
    write(_path(directory, "committed" if outcome.committed else "failed", ready.position), encode(outcome))
    _path(directory, "ready", ready.position).unlink(missing_ok=True)


def clear(directory: Path) -> None:
    """Forgets the saves of earlier attempts, before the files of one are restored."""
    folder = directory / FOLDER
    for path in folder.iterdir() if folder.is_dir() else ():
        path.unlink(missing_ok=True)


def mark_restored(directory: Path, position: Position | None) -> None:
    """Says which checkpoint's files the directory holds; None for a run that begins anew."""
    body = None if position is None else {"attempt": position.attempt, "step": position.step}
    write(directory / FOLDER / RESTORED_NAME, json.dumps(body))


def restored(directory: Path) -> Position | None:
    """The checkpoint that `restore` brought; None where it found nothing, or never ran."""
    try:
        body = json.loads((directory / FOLDER / RESTORED_NAME).read_bytes())
    except FileNotFoundError:
        return None
    return None if body is None else Position(attempt=body["attempt"], step=body["step"])


def files(scratch: Path, items: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """(name, path) of every file of these items that is on this node, in order of name."""
    for item in sorted(items):
        path = scratch / inside(item)
        if path.is_symlink():
            raise InputFault("item", item, "is a link", "Save files, not links.")
        if path.is_dir():
            below = sorted(found for found in path.rglob("*") if not found.is_dir() or found.is_symlink())
            for found in below:
                if found.is_symlink() or not found.is_file():
                    raise InputFault("item", str(found), "is no plain file", "Save files, not links.")
                yield found.relative_to(scratch).as_posix(), found
        elif path.is_file():
            yield item, path


def inside(name: str) -> str:
    """The name, if it is a path that stays below scratch. Raises InputFault for any other."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise InputFault("name", name, "leads out of scratch", "Write a path below the parent of the checkpoints.")
    return name


def write(path: Path, body: str) -> None:
    """The file appears with all of its content or not at all, also after a crash of the node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    disk.sync(path.parent)


def _path(directory: Path, kind: str, position: Position) -> Path:
    return directory / FOLDER / f"{kind}-{position}.json"


def _read(path: Path) -> Outcome | None:
    try:
        return decode(Outcome, path.read_bytes())
    except FileNotFoundError:
        return None


def _item(scratch: Path, path: Path, *, everywhere: bool) -> str:
    whole = path if path.is_absolute() else scratch / path
    try:
        name = whole.resolve().relative_to(scratch).as_posix()
    except ValueError as error:
        raise InputFault("paths", str(path), f"is not below {scratch}", "Save below scratch.") from error
    # With scratch on every node's own disks it may be on another one; the committer finds out.
    if everywhere and not whole.exists():
        raise InputFault("paths", str(path), "does not exist", "Announce a save when all of it is on disk.")
    return inside(name)
