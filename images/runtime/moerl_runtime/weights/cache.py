"""Directories of weights on a node's NVMe, which the pods of a node share.

    DIR/NAME                              a base model
    DIR/policy/RUN/ATTEMPT/VERSION        a version of the policy, whole

A directory has its name only when it is complete: it is made under a hidden one and renamed. One lock a node lets one pod
make it and the others find it. An agent holds a shared lock on the directory that its engine has loaded, which ends with
the process however that ends; what nobody holds may be removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moerl_runtime import disk, protocol
from moerl_runtime.faults import RuntimeFault

POLICY = "policy"
LOCK_NAME = ".lock"
LOCK_LOOK_SECONDS = 0.5
SHARED_MODE = 0o1777
"""Whoever runs an agent may make a directory, and remove only its own."""

Clock = Callable[[], float]
Wait = Callable[[float], object]


def version_path(models: Path, attempt: protocol.Attempt, version: int) -> Path:
    return models / POLICY / attempt.run / attempt.name / f"{version:08d}"


def hidden(path: Path, kind: str) -> Path:
    """The name beside it under which it is downloaded (`whole`, `deltas`), made (`partial`) or removed (`trash`)."""
    return path.with_name(f".{path.name}.{kind}")


def open_to_agents(models: Path) -> None:
    """Lets agents, which are not root, keep versions below `models`."""
    policy = models / POLICY
    policy.mkdir(parents=True, exist_ok=True)
    if policy.stat().st_uid == os.geteuid():
        policy.chmod(SHARED_MODE)


@contextmanager
def locked(
    directory: Path, *, deadline_seconds: float, clock: Clock = time.monotonic, wait: Wait = time.sleep
) -> Iterator[None]:
    """Only one process of the node is inside. Raises RuntimeFault at the deadline."""
    path = directory / LOCK_NAME
    # Not O_CREAT on a file that is there: in a directory with the sticky bit Linux refuses that for another user's file.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        end = clock() + deadline_seconds
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if clock() >= end:
                raise RuntimeFault(
                    "weights", str(path), f"is locked by another pod for {deadline_seconds:.0f} s", "Look at its log."
                )
            wait(LOCK_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def holding(directory: Path) -> Iterator[Path]:
    """Keeps the directory from being removed. Raises RuntimeFault where that came first."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not directory.exists() or not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise RuntimeFault("weights", str(directory), "was removed meanwhile", "Fetch the newest version.")
        yield directory
    finally:
        os.close(descriptor)


def finish(made: Path, path: Path) -> None:
    """Gives a complete directory its name, in the place of what has that name."""
    disk.sync(made)
    if path.exists():
        discard(path)
    made.replace(path)
    disk.sync(path.parent)


def discard(path: Path) -> None:
    """Removes a directory; half of it never has its name."""
    trash = hidden(path, "trash")
    _remove(trash)
    with suppress(FileNotFoundError):
        path.replace(trash)
    _remove(trash)


def versions(models: Path) -> list[Path]:
    """Complete versions of the policy on this node, the oldest first. A run's name says nothing of its age."""
    found = [path for path in (models / POLICY).glob("*/*/*") if path.is_dir() and not path.name.startswith(".")]
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.parent.name, path.name))


def evict(models: Path, *, keep: int, spare: Collection[Path] = ()) -> list[Path]:
    """Removes all but the newest `keep` versions, those to `spare`, and those that an agent holds; call it `locked`.
    Returns what it removed."""
    every = versions(models)
    removed = []
    for path in every[: max(0, len(every) - keep)]:
        if path not in spare and _discard_unless_held(path):
            removed.append(path)
    return removed


def clean(models: Path, *, spare: Collection[Path] = ()) -> None:
    """Removes what a process that was killed left half made or half removed; call it `locked`."""
    for path in (models / POLICY).glob("*/*/.*"):
        if path not in spare:
            _remove(path)


def size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def _discard_unless_held(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not _try_lock(descriptor, fcntl.LOCK_EX):
            return False
        discard(path)
        return True
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
