"""Which checkpoints are kept, and in which order the others go.

Kept are the newest ones of the lineage, pinned ones, and whatever may still become complete. Of the others the commit
marker goes first: nothing that is half deleted can be resolved. The bucket keeps deleted objects for a while (it is
versioned), so a checkpoint that was pruned by mistake can be brought back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moerl_runtime import lease, names, store
from moerl_runtime.checkpoint import layout, resolve
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import Attempt
from moerl_runtime.store import S3Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What `prune` removed."""

    positions: tuple[Position, ...]
    objects: int
    uploads: int
    """Uploads in parts that were given up."""


def prune(s3: S3Client, bucket: str, prefix: str, run: str, *, retain_last: int, dry_run: bool = False) -> Pruned:
    """Removes checkpoints that are neither among the newest `retain_last` of the lineage nor pinned.

    Nothing is removed while the run has no complete checkpoint, nothing newer than the newest complete one ever. Raises
    LeaseLost while an attempt is beginning, which may resume from what would go.
    """
    if retain_last < 1:
        raise InputFault("retain_last", retain_last, "would remove the only checkpoint", "Keep at least 1.")
    attempt = resolve.newest_attempt(s3, bucket, prefix, run)
    lineage = list(resolve.lineage(s3, bucket, prefix, run))
    if attempt is None or not lineage:
        return Pruned(positions=(), objects=0, uploads=0)
    newest = lineage[0].position
    kept = {found.position for found in lineage[:retain_last]} | set(pins(s3, bucket, prefix, run))
    gone = [
        position
        for position in positions(s3, bucket, prefix, run)
        if position not in kept and (position.attempt, position.step) < (newest.attempt, newest.step)
    ]
    # In this order: an attempt that begins after this look sees what is kept here, or something newer.
    lease.check_attempt(s3, bucket=bucket, prefix=prefix, attempt=attempt)
    objects = uploads = 0
    for position in gone:
        below = layout.step_prefix(prefix, Attempt(run=run, number=position.attempt), position.step)
        if not dry_run:
            store.delete(s3, bucket, layout.complete_key(below))
        objects += _delete_below(s3, bucket, below, dry_run=dry_run)
        uploads += _abort_below(s3, bucket, below, dry_run=dry_run)
    return Pruned(positions=tuple(gone), objects=objects, uploads=uploads)


def positions(s3: S3Client, bucket: str, prefix: str, run: str) -> Iterator[Position]:
    """Every checkpoint of the run of which anything is stored, complete or not, oldest first."""
    for attempt in resolve.stored_attempts(s3, bucket, prefix, run):
        for step in resolve.steps(s3, bucket, prefix, attempt):
            yield Position(attempt=attempt.number, step=step)


def pins(s3: S3Client, bucket: str, prefix: str, run: str) -> list[Position]:
    below = layout.pins_prefix(prefix, run)
    found = []
    for key in store.keys(s3, bucket, below):
        attempt, _, step = key.removeprefix(below).partition("-")
        # Without a fixed width: in doubt a checkpoint is kept.
        if attempt.isdecimal() and step.isdecimal():
            found.append(Position(attempt=int(attempt), step=int(step)))
        else:
            names.pass_over(key)
    return found


def pin(s3: S3Client, bucket: str, prefix: str, run: str, position: Position) -> None:
    """Keeps a complete checkpoint from being pruned. Raises InputFault for one that is not complete."""
    if resolve.at(s3, bucket, prefix, run, position) is None:
        raise InputFault("checkpoint", str(position), "is no complete checkpoint", "See `checkpoint list`.")
    store.put(s3, bucket, layout.pin_key(prefix, run, position), b"")
    if resolve.at(s3, bucket, prefix, run, position) is None:
        store.delete(s3, bucket, layout.pin_key(prefix, run, position))
        raise InputFault("checkpoint", str(position), "was pruned meanwhile", "Pin another one.")


def unpin(s3: S3Client, bucket: str, prefix: str, run: str, position: Position) -> None:
    if position not in pins(s3, bucket, prefix, run):
        raise InputFault("checkpoint", str(position), "is not pinned", "See `checkpoint list`.")
    store.delete(s3, bucket, layout.pin_key(prefix, run, position))


def _delete_below(s3: S3Client, bucket: str, below: str, *, dry_run: bool) -> int:
    keys = list(store.keys(s3, bucket, below))
    if not dry_run:
        store.delete_all(s3, bucket, keys)
    return len(keys)


def _abort_below(s3: S3Client, bucket: str, below: str, *, dry_run: bool) -> int:
    count = 0
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=below):
        for entry in page.get("Uploads", ()):
            if not dry_run:
                s3.abort_multipart_upload(Bucket=bucket, Key=entry["Key"], UploadId=entry["UploadId"])
            count += 1
    return count
