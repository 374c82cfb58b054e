"""Brings the newest complete checkpoint of a run to scratch, before the trainer starts.

A node restores all of it, also where scratch is the node's own: Megatron's default save spreads the shards of a
data-parallel group over its ranks, so a rank reads what others wrote, and a rank may come back on another node.

Everything is downloaded beside its place, proven, and then moved there; Megatron's tracker file comes last and names a
save that is whole. Leftovers of attempts that died are removed first: what they saved and did not commit must not be loaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from moerl_runtime import disk
from moerl_runtime.checkpoint import handover, layout, listing, resolve
from moerl_runtime.checkpoint import shared as sharing
from moerl_runtime.checkpoint.layout import File, files_of
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.checkpoint.shared import Shared
from moerl_runtime.checkpoint.transfer import Moves, Moving, download, is_at
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.store import S3Client

STAGING_NAME = ".restoring"
SPARE_SHARE = 0.05
"""Of the file system, left free beside what is downloaded."""


class NoSpace(RuntimeFault):
    """Scratch is too small for the checkpoint."""

    exit_code = 6


def restore(
    s3: S3Client,
    bucket: str,
    prefix: str,
    run: str,
    directory: Path,
    *,
    files: Executor,
    moves: Moving,
    free_bytes: Callable[[Path], int],
    found: Checkpoint | None = None,
    shared: Shared | None = None,
) -> Checkpoint | None:
    """Makes the checkpoint directory hold the newest complete checkpoint, or nothing. Returns it.

    `found` is another one than the newest, for people. `shared` is scratch with a directory for every attempt: files that the
    checkpoint's own attempt has there are linked, and then goes what ended attempts have left. May be repeated after any
    failure: what is there already is proven, not fetched again.
    """
    chosen = found or resolve.resolve(s3, bucket, prefix, run)
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory.resolve().parent
    handover.clear(directory)
    (directory / handover.TRACKER_NAME).unlink(missing_ok=True)
    for half in directory.glob(f".{handover.TRACKER_NAME}.*"):
        half.unlink(missing_ok=True)  # of a restore that died while it wrote the tracker
    disk.sync(directory)
    wanted = () if chosen is None else files_of(chosen.complete)
    staging = scratch / STAGING_NAME
    if chosen is not None:
        staged = staging / str(chosen.position)
        _remove_other(staging, staged)
        origin = None if shared is None else sharing.origin(s3, bucket, prefix, shared, chosen.position)
        with moves("", 0) as checking:
            missing = _stage_present(
                wanted, (scratch,) if origin is None else (scratch, origin), staged, checking, files
            )
        _clean(directory, scratch, {file.name for file in wanted})
        if shared is not None:
            sharing.sweep(s3, bucket, prefix, shared)
        needed = sum(file.size for file in missing)
        free = free_bytes(scratch)
        if free < needed:
            raise NoSpace(
                "scratch", str(scratch), f"has {free >> 20} MiB free, and {needed >> 20} MiB are to come", "Free some."
            )
        with moves(f"restore step {chosen.step}", needed) as moving:

            def fetch(file: File) -> None:
                download(moving, layout.file_key(chosen.prefix, file.name), file, staged / file.name)

            list(files.map(fetch, missing))
        for file in wanted:
            target = scratch / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            (staged / file.name).replace(target)
        for folder in {(scratch / file.name).parent for file in wanted}:
            disk.sync(folder)
    else:
        _clean(directory, scratch, set())
        if shared is not None:
            sharing.sweep(s3, bucket, prefix, shared)
    shutil.rmtree(staging, ignore_errors=True)
    handover.mark_restored(directory, None if chosen is None else chosen.position)
    if chosen is not None:
        number = listing.iteration([file.name for file in wanted])
        handover.write(directory / handover.TRACKER_NAME, str(chosen.step if number is None else number))
    return chosen


def free_bytes(path: Path) -> int:
    """What may be written there, some of the file system left over."""
    usage = shutil.disk_usage(path)
    return max(0, int(usage.free - usage.total * SPARE_SHARE))


def _stage_present(
    wanted: tuple[File, ...], places: Sequence[Path], staged: Path, moves: Moves, files: Executor
) -> list[File]:
    """Links into staging what scratch holds already, from an earlier restore or the save itself. Returns the rest."""

    def present(file: File) -> bool:
        target = staged / handover.inside(file.name)
        if is_at(target, file, moves):
            return True
        target.unlink(missing_ok=True)
        return any(_linked(place / file.name, target, file, moves) for place in places)

    return [file for file, there in zip(wanted, files.map(present, wanted), strict=True) if not there]


def _linked(there: Path, target: Path, file: File, moves: Moves) -> bool:
    try:
        if not is_at(there, file, moves):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(there, target)
    except OSError:
        # Its attempt has removed it meanwhile, or the file system links nothing: S3 has it too.
        return False
    return True


def _clean(directory: Path, scratch: Path, wanted: set[str]) -> None:
    """Removes saves of attempts that are over, and files of the restored one that do not belong to it."""
    for _, path in listing.saves(directory):
        _clean_below(path, scratch, wanted)


def _clean_below(path: Path, scratch: Path, wanted: set[str]) -> None:
    if path.is_dir() and not path.is_symlink():
        for below in sorted(path.iterdir()):
            _clean_below(below, scratch, wanted)
        if not any(path.iterdir()):
            path.rmdir()
    elif path.relative_to(scratch).as_posix() not in wanted:
        path.unlink()


def _remove_other(staging: Path, kept: Path) -> None:
    """Drops what a restore of another checkpoint left."""
    if staging.is_dir():
        for path in staging.iterdir():
            if path != kept:
                shutil.rmtree(path)
