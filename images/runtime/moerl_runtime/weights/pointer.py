"""current.json: which attempt and version engines should serve.

It never goes back: a newer attempt first, then a higher version, each move only from what was read (If-Match).
"""

from __future__ import annotations

from dataclasses import dataclass

from moerl_runtime import protocol, store
from moerl_runtime.faults import RuntimeFault

MOVE_TRIES = 20


class Fenced(RuntimeFault):
    """A newer attempt, or another run, has the pointer."""

    exit_code = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    current: protocol.Current
    etag: str


def read_current(s3: store.S3Client, bucket: str, weights_prefix: str, etag: str | None = None) -> Pointer | None:
    """The pointer. None where there is none yet, or where it still is the one that has `etag`."""
    stored = store.get(s3, bucket, weights_prefix + protocol.CURRENT_NAME, unless_etag=etag)
    if stored is None:
        return None
    return Pointer(current=protocol.decode(protocol.Current, stored.body), etag=stored.etag)


def move_current(s3: store.S3Client, bucket: str, weights_prefix: str, to: protocol.Current, *, begin: bool) -> None:
    """Points engines at a version. Nothing happens where they are pointed at it already.

    Raises Fenced where the pointer belongs to a newer attempt, or, unless this `begin`s an attempt, to another run.
    """
    key, body = weights_prefix + protocol.CURRENT_NAME, protocol.encode(to)
    for _ in range(MOVE_TRIES):
        found = read_current(s3, bucket, weights_prefix)
        if found is None:
            moved = store.put_new(s3, bucket, key, body)
        elif found.current == to:
            # Also the answer to a write of ours whose answer was lost.
            return
        else:
            _may_move(found.current, to, begin=begin)
            moved = store.replace(s3, bucket, key, body, etag=found.etag)
        if moved is not None:
            return
    raise RuntimeFault(
        "current.json", key, f"was moved by others {MOVE_TRIES} times in a row", "End the other publishers."
    )


def _may_move(found: protocol.Current, to: protocol.Current, *, begin: bool) -> None:
    if found.run == to.run:
        if found.attempt > to.attempt:
            raise Fenced("attempt", to.attempt, f"has been replaced by attempt {found.attempt}", "End this one.")
        if found.attempt == to.attempt and found.version >= to.version:
            raise RuntimeFault(
                "version",
                to.version,
                f"is not after version {found.version} of the same attempt",
                "Take a new attempt for every start of the trainer.",
            )
    elif not begin:
        raise Fenced("run", to.run, f"has been replaced by run {found.run}", "End this one.")
