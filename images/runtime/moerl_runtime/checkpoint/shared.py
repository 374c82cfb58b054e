"""Scratch that several attempts see: a directory RUN/ATTEMPT for each, so that no two ever write one path.

ATTEMPT is the name of the attempt's Ray cluster, under which it also takes the run's lease. Its trainer sees that directory as
all of scratch (the chart mounts no more of it); `restore` and the uploader see the others too, since somebody has to remove
what ended attempts leave. An attempt that another one follows may be at a save for as long as its pods' grace: its lease may
be over, but what it has announced still counts, until a newer attempt of its run has the lease.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moerl_runtime import lease, store
from moerl_runtime.checkpoint import handover, layout, resolve
from moerl_runtime.checkpoint.layout import LeaseRecord, Position
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.protocol import Attempt, decode
from moerl_runtime.store import S3Client

ABANDONED_SECONDS = 86_400.0
"""No pod takes a day from its restore to its lease, or from its lease's end to the end of its uploader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What one attempt sees of shared scratch."""

    root: Path
    own: Path
    """Its directory: RUN/ATTEMPT below the root."""
    checkpoints: str
    """Name of the checkpoint directory in each attempt's."""
    earlier: frozenset[Path]
    """Directories of its run that were there before its restore began: a run has one Ray cluster at a time, so what never took
    the lease is over, or belongs to pods that are being deleted. None for the uploader, which may outlive the next restore."""
    unix_clock: Callable[[], float]
    report: Callable[[str], None]


def look(
    root: Path,
    directory: Path,
    run: str,
    *,
    begins: bool,
    unix_clock: Callable[[], float],
    report: Callable[[str], None],
) -> Shared:
    """`begins`: for a restore, which has written nothing yet. Raises InputFault where the checkpoint directory is not
    ROOT/RUN/ATTEMPT/NAME."""
    own = directory.parent
    if own.parent != root / run or not own.name or ".." in directory.parts:
        raise InputFault(
            "--attempts", str(root), f"does not hold {directory} as {run}/ATTEMPT/NAME", "Name the attempt's own."
        )
    earlier = frozenset(path for path in _folders(root / run) if begins and path != own)
    return Shared(root=root, own=own, checkpoints=directory.name, earlier=earlier, unix_clock=unix_clock, report=report)


def origin(s3: S3Client, bucket: str, prefix: str, shared: Shared, position: Position) -> Path | None:
    """The directory of the attempt that saved this checkpoint; it may be gone."""
    run = shared.own.parent
    record = resolve.attempt_record(s3, bucket, prefix, Attempt(run=run.name, number=position.attempt))
    return None if record is None else run / record.holder


def sweep(s3: S3Client, bucket: str, prefix: str, shared: Shared) -> None:
    """Removes directories of attempts that are over, of any run. Raises what S3 and the file system raise."""
    for run in _folders(shared.root):
        try:
            _sweep_run(s3, bucket, prefix, shared, run)
        except RuntimeFault as fault:
            # Another run's records are no reason to fail.
            shared.report(f"checkpoint: what {run.name} has on scratch is left there: {fault}")


def _sweep_run(s3: S3Client, bucket: str, prefix: str, shared: Shared, run: Path) -> None:
    others = [path for path in _folders(run) if path != shared.own]
    if not others:
        return
    stored = store.get(s3, bucket, layout.lease_key(prefix, run.name))
    numbers = _numbers(s3, bucket, prefix, run.name)
    for path in others:
        if _is_over(shared, path, stored, numbers.get(path.name)):
            _remove(shared, path)
    with contextlib.suppress(OSError):
        run.rmdir()


def _is_over(shared: Shared, path: Path, stored: store.Stored | None, number: int | None) -> bool:
    """Whether nothing can still come of it. `stored` is its run's lease, `number` the newest that it took it as."""
    if stored is None or number is None:
        return path in shared.earlier or shared.unix_clock() - path.stat().st_mtime >= ABANDONED_SECONDS
    current = decode(LeaseRecord, stored.body)
    if current.attempt > number:
        return True
    if not current.released and stored.age_seconds < lease.TTL_SECONDS:
        return False
    return not handover.waiting(path / shared.checkpoints) or stored.age_seconds >= ABANDONED_SECONDS


def _numbers(s3: S3Client, bucket: str, prefix: str, run: str) -> dict[str, int]:
    """Holder of the lease to the newest attempt that it began."""
    found = {}
    for attempt in resolve.attempts(s3, bucket, prefix, run):
        record = resolve.attempt_record(s3, bucket, prefix, attempt)
        if record is not None:
            found[record.holder] = attempt.number
    return found


def _remove(shared: Shared, path: Path) -> None:
    # Pods that are being deleted may still write there, and another attempt may remove it too.
    shutil.rmtree(path, ignore_errors=True)
    left = ", not all of it" if path.exists() else ""
    shared.report(f"checkpoint: removed what {path.parent.name}/{path.name} left on scratch{left}")


def _folders(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (found for found in sorted(path.iterdir()) if found.is_dir() and not found.is_symlink())
