"""The newest complete checkpoint of a run, along the lineage of its attempts.

The newest attempt's own checkpoints come first. Below them come those of the attempt that it resumed from, up to the step
that it resumed, and so on to the attempt that began anew. Whatever else lies in the bucket was written by an attempt after
another one had taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moerl_runtime import names, store
from moerl_runtime.checkpoint import layout
from moerl_runtime.checkpoint.layout import AttemptRecord, Complete, Position
from moerl_runtime.protocol import Attempt, decode
from moerl_runtime.store import S3Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint. `prefix` is its own, in the checkpoint bucket."""

    run: str
    attempt: int
    step: int
    prefix: str
    complete: Complete

    @property
    def position(self) -> Position:
        return Position(attempt=self.attempt, step=self.step)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.complete.metadata


def resolve(s3: S3Client, bucket: str, prefix: str, run: str) -> Checkpoint | None:
    """What a new attempt resumes from; None for a run that has nothing complete."""
    while True:
        position = next(iter(line(s3, bucket, prefix, run)), None)
        if position is None:
            return None
        found = at(s3, bucket, prefix, run, position)
        if found is not None:
            return found
        # Pruned since it was listed: a newer one is complete.


def lineage(s3: S3Client, bucket: str, prefix: str, run: str) -> Iterator[Checkpoint]:
    """Complete checkpoints that a resume may come back to, newest first."""
    for position in line(s3, bucket, prefix, run):
        found = at(s3, bucket, prefix, run, position)
        if found is not None:
            yield found


def line(s3: S3Client, bucket: str, prefix: str, run: str) -> list[Position]:
    """Their positions, from one listing: what is pruned while one looks is seen, or what has taken its place.

    An attempt that committed nothing, and whose own beginning is gone, was overtaken between its look at what there was and
    its record: the one before it decides then.
    """
    complete = _complete(s3, bucket, prefix, run)
    for attempt in reversed(attempts(s3, bucket, prefix, run)):
        record = attempt_record(s3, bucket, prefix, attempt)
        found = list(_followed(s3, bucket, prefix, attempt, record, complete))
        if found or record is None or record.resumed_from is None:
            return found
    return []


def _followed(
    s3: S3Client,
    bucket: str,
    prefix: str,
    attempt: Attempt,
    record: AttemptRecord | None,
    complete: Collection[Position],
) -> Iterator[Position]:
    """Those of an attempt, then those of the attempt that it resumed from, and so on."""
    last_step = None
    while True:
        for position in sorted(complete, key=lambda position: -position.step):
            if position.attempt == attempt.number and (last_step is None or position.step <= last_step):
                yield position
        if record is None or record.resumed_from is None:
            return
        attempt = Attempt(run=attempt.run, number=record.resumed_from.attempt)
        last_step = record.resumed_from.step
        record = attempt_record(s3, bucket, prefix, attempt)


def _complete(s3: S3Client, bucket: str, prefix: str, run: str) -> set[Position]:
    below = layout.steps_prefix(prefix, run)
    found = set()
    for key in store.keys(s3, bucket, below):
        attempt_text, _, rest = key.removeprefix(below).partition("/")
        step_text, _, name = rest.partition("/")
        if name != layout.COMPLETE_NAME:
            continue
        attempt = names.number(attempt_text, 6, key=key)
        step = names.number(step_text, 8, key=key)
        if attempt is not None and step is not None:
            found.add(Position(attempt=attempt, step=step))
    return found


def at(s3: S3Client, bucket: str, prefix: str, run: str, position: Position) -> Checkpoint | None:
    """The checkpoint at that place, if it is complete; whether the lineage leads there is not asked."""
    below = layout.step_prefix(prefix, Attempt(run=run, number=position.attempt), position.step)
    stored = store.get(s3, bucket, layout.complete_key(below))
    if stored is None:
        return None
    return Checkpoint(
        run=run,
        attempt=position.attempt,
        step=position.step,
        prefix=below,
        complete=decode(Complete, stored.body),
    )


def attempts(s3: S3Client, bucket: str, prefix: str, run: str) -> list[Attempt]:
    """Attempts that left their record, in order; one that died before has committed nothing."""
    below = layout.attempts_prefix(prefix, run)
    found = []
    for key in store.keys(s3, bucket, below):
        number = names.number(key.removeprefix(below).removesuffix(".json"), 6, key=key)
        if number is None or key != layout.attempt_key(prefix, attempt := Attempt(run=run, number=number)):
            names.pass_over(key)
        else:
            found.append(attempt)
    return sorted(found, key=lambda attempt: attempt.number)


def newest_attempt(s3: S3Client, bucket: str, prefix: str, run: str) -> Attempt | None:
    return next(reversed(attempts(s3, bucket, prefix, run)), None)


def attempt_record(s3: S3Client, bucket: str, prefix: str, attempt: Attempt) -> AttemptRecord | None:
    stored = store.get(s3, bucket, layout.attempt_key(prefix, attempt))
    return None if stored is None else decode(AttemptRecord, stored.body)


def steps(s3: S3Client, bucket: str, prefix: str, attempt: Attempt) -> list[int]:
    """Steps of which an attempt has stored anything, in order."""
    below = layout.attempt_steps_prefix(prefix, attempt)
    read = [names.number(name, 8, key=f"{below}{name}/") for name in store.folders(s3, bucket, below)]
    return [step for step in read if step is not None]


def stored_attempts(s3: S3Client, bucket: str, prefix: str, run: str) -> list[Attempt]:
    """Attempts that have stored anything of a checkpoint, in order."""
    below = layout.steps_prefix(prefix, run)
    read = [names.number(name, 6, key=f"{below}{name}/") for name in store.folders(s3, bucket, below)]
    return [Attempt(run=run, number=number) for number in read if number is not None]
