"""Who may write for a run: one holder at a time, and a number that every taking raises.

The lease is one object that its holder rewrites every RENEW_SECONDS. How old it is S3 says itself (its clock now less its
clock at the last write), so clocks of machines are never compared: others take it once S3 calls it TTL_SECONDS old. The
holder counts from before it sent its last successful write, on its own monotonic clock, and stops MARGIN_SECONDS earlier;
S3 states both times in whole seconds, and an answer is under way for a while.

The number of the attempt is the fencing token. Whatever a former holder still stores lies below its own number and off the
lineage that readers follow (`checkpoint.resolve`), and on shared scratch in its own directory (`checkpoint.shared`), so even
a process that wakes up after the fact can do no harm.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import store
from moerl_runtime.checkpoint import layout, resolve
from moerl_runtime.checkpoint.layout import AttemptRecord, LeaseRecord, Position
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.protocol import Attempt, decode, encode
from moerl_runtime.store import S3Client

TTL_SECONDS = 120.0
RENEW_SECONDS = 20.0
MARGIN_SECONDS = 10.0
LOOK_SECONDS = 10.0
"""Between two looks at a lease that is waited for."""

Clock = Callable[[], float]
Wait = Callable[[float], object]
Report = Callable[[str], None]


def _silent(_line: str) -> None:
    pass


class LeaseHeld(RuntimeFault):
    """Another holder is alive."""

    exit_code = 3


class LeaseLost(RuntimeFault):
    """This attempt is over: another one was begun, or S3 could not be reached for too long."""

    exit_code = 4


class Lease:
    """A lease that was taken. A context manager that renews it in a thread and releases it at the end."""

    def __init__(
        self,
        s3: S3Client,
        *,
        bucket: str,
        key: str,
        record: LeaseRecord,
        etag: str,
        written_at: float,
        resumed_from: Position | None,
        clock: Clock,
        report: Report,
    ) -> None:
        self._s3, self._bucket, self._key = s3, bucket, key
        self._clock, self._report = clock, report
        self._record, self._etag, self._written_at = record, etag, written_at
        self._renewals = record.renewal
        self._taken_over, self._stopped = threading.Event(), threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None
        self.resumed_from = resumed_from
        """The checkpoint that this attempt goes on from."""

    @property
    def attempt(self) -> Attempt:
        return Attempt(run=self._record.run, number=self._record.attempt)

    def held(self) -> bool:
        """Whether nobody else can have it yet, judged without asking S3."""
        return not self._taken_over.is_set() and self._clock() - self._written_at < TTL_SECONDS - MARGIN_SECONDS

    def check(self) -> None:
        """Asks S3. Raises LeaseLost unless this attempt is still the one; to be called right before a commit."""
        if self.held():
            stored = store.get(self._s3, self._bucket, self._key)
            if stored is not None and decode(LeaseRecord, stored.body).token == self._record.token:
                return
            self._taken_over.set()
        raise LeaseLost(
            "lease", self._key, f"attempt {self.attempt.number} no longer holds it", "Stop; the newer attempt goes on."
        )

    def renew(self) -> bool:
        """Writes it anew. False once another attempt has it; raises what S3 raised where the outcome is not known."""
        with self._writing:
            if self._stopped.is_set():
                return self.held()
            for _ in range(2):
                began = self._clock()
                # Never the same body twice: an earlier write that turns out to be stored is older than this one.
                self._renewals += 1
                record = replace(self._record, renewal=self._renewals)
                etag = _write(self._s3, self._bucket, self._key, record, etag=self._etag)
                if etag is not None:
                    self._record, self._etag, self._written_at = record, etag, began
                    return True
                # An earlier renewal may have been stored although its answer never came: go on from what is there.
                stored = store.get(self._s3, self._bucket, self._key)
                found = None if stored is None else decode(LeaseRecord, stored.body)
                if stored is None or found is None or found.token != self._record.token:
                    break
                self._record, self._etag = found, stored.etag
            self._taken_over.set()
            return False

    def start(self) -> Lease:
        """Renews in a thread from now on."""
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()
        return self

    def release(self) -> None:
        """Lets the next one have it at once. What cannot be reached any more runs out by itself."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        with self._writing:
            if self._taken_over.is_set() or self._record.released:
                return
            record = replace(self._record, renewal=self._renewals + 1, released=True)
            try:
                _write(self._s3, self._bucket, self._key, record, etag=self._etag)
                self._record = record
            except (BotoCoreError, ClientError) as error:
                self._report(f"lease: not released, it runs out in {TTL_SECONDS:g} s: {error}")
        self._taken_over.set()

    def _keep(self) -> None:
        while not self._stopped.wait(RENEW_SECONDS):
            try:
                if not self.renew():
                    self._report(f"lease: attempt {self.attempt.number} lost it to another one")
                    return
            except (BotoCoreError, ClientError) as error:
                self._report(f"lease: not renewed, trying again: {error}")

    def __enter__(self) -> Lease:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(
    s3: S3Client,
    *,
    bucket: str,
    prefix: str,
    run: str,
    holder: str,
    clock: Clock = time.monotonic,
    resumed_from: Position | Literal["newest"] | None = "newest",
    wait_seconds: float = 0.0,
    wait: Wait = time.sleep,
    report: Report = _silent,
) -> Lease:
    """Begins an attempt of the run. Enter the lease, or `start` it, to have it renewed.

    `resumed_from` is what was restored to scratch, and None where nothing was: the lineage then says what the attempt
    really goes on from, also where something was committed since. 'newest' looks in S3, for a trainer that has no files.
    A holder that finds its own name in the lease takes it at once, since a name is used by one process at a time. Raises
    LeaseHeld if another holder is still alive after `wait_seconds`.
    """
    key = layout.lease_key(prefix, run)
    deadline = clock() + wait_seconds
    while True:
        written_at = clock()
        stored = store.get(s3, bucket, key)
        current = None if stored is None else decode(LeaseRecord, stored.body)
        if stored is not None and current is not None and not current.released and current.holder != holder:
            left = TTL_SECONDS - stored.age_seconds
            if left > 0:
                if clock() >= deadline:
                    raise LeaseHeld(
                        "lease",
                        f"s3://{bucket}/{key}",
                        f"{current.holder} holds it as attempt {current.attempt} and renewed it "
                        f"{stored.age_seconds:.0f} s ago",
                        f"Stop it, or try again in {left:.0f} s if it is dead.",
                    )
                report(f"lease: held by {current.holder}, renewed {stored.age_seconds:.0f} s ago; waiting")
                wait(max(1.0, min(left, LOOK_SECONDS, deadline - clock())))
                continue
        number = 1 + (_last_number(s3, bucket, prefix, run) if current is None else current.attempt)
        record = LeaseRecord(run=run, attempt=number, holder=holder, token=secrets.token_hex(8))
        etag = _write(s3, bucket, key, record, etag=None if stored is None else stored.etag)
        if etag is not None:
            break
        # Someone was faster: look who.
    position = _begin(s3, bucket, prefix, record, resumed_from)
    return Lease(
        s3,
        bucket=bucket,
        key=key,
        record=record,
        etag=etag,
        written_at=written_at,
        resumed_from=position,
        clock=clock,
        report=report,
    )


def check_attempt(s3: S3Client, *, bucket: str, prefix: str, attempt: Attempt) -> None:
    """For processes beside the holder: raises LeaseLost once a newer attempt was begun.

    A lease that merely ran out stops nobody here: the uploader of a trainer that has died may still commit what it has, as
    long as no other attempt has looked for a checkpoint to resume.
    """
    key = layout.lease_key(prefix, attempt.run)
    stored = store.get(s3, bucket, key)
    current = None if stored is None else decode(LeaseRecord, stored.body)
    if current is None or current.attempt != attempt.number:
        raise LeaseLost(
            "lease",
            f"s3://{bucket}/{key}",
            "is gone" if current is None else f"attempt {current.attempt} ({current.holder}) has it",
            f"Attempt {attempt.number} is over; nothing of it is committed any more.",
        )


def _begin(
    s3: S3Client, bucket: str, prefix: str, lease: LeaseRecord, resumed_from: Position | Literal["newest"] | None
) -> Position | None:
    """Writes the attempt's record, from which on it is part of the lineage. Returns where it resumes."""
    if resumed_from == "newest":
        found = resolve.resolve(s3, bucket, prefix, lease.run)
        position = None if found is None else found.position
    else:
        position = resumed_from
        if position is not None and resolve.at(s3, bucket, prefix, lease.run, position) is None:
            raise InputFault(
                "resumed_from",
                str(position),
                "is no complete checkpoint of the run",
                "Restore before the trainer starts.",
            )
    attempt = Attempt(run=lease.run, number=lease.attempt)
    record = AttemptRecord(
        run=lease.run,
        attempt=lease.attempt,
        holder=lease.holder,
        token=lease.token,
        resumed_attempt=None if position is None else position.attempt,
        resumed_step=None if position is None else position.step,
    )
    if _write(s3, bucket, layout.attempt_key(prefix, attempt), record, etag=None) is None:
        raise LeaseLost(
            "attempt", attempt.number, "has a record that this process did not write", "Take the lease again."
        )
    return position


def _last_number(s3: S3Client, bucket: str, prefix: str, run: str) -> int:
    """The highest number ever used, for a lease whose object is gone: numbers only grow."""
    newest = resolve.newest_attempt(s3, bucket, prefix, run)
    stepped = [attempt.number for attempt in resolve.stored_attempts(s3, bucket, prefix, run)]
    return max([0 if newest is None else newest.number, *stepped])


def _write(s3: S3Client, bucket: str, key: str, record: LeaseRecord | AttemptRecord, *, etag: str | None) -> str | None:
    """Writes on the version that was read, or anew where `etag` is None. None for the one who came second.

    boto3 repeats a request whose answer was lost, and S3 refuses the repetition of a write that had succeeded: what is
    stored then says whose it is, since every record has its writer's token.
    """
    body = encode(record)
    written = store.put_new(s3, bucket, key, body) if etag is None else store.replace(s3, bucket, key, body, etag=etag)
    if written is not None:
        return written
    stored = store.get(s3, bucket, key)
    return stored.etag if stored is not None and stored.body == body.encode() else None
