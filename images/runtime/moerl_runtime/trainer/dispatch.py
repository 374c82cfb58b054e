"""Keeps tasks out with the agents and brings their samples in, while the trainer trains.

Three threads around one ledger: the dispatcher writes payloads and then messages, up to the window, and sends again what is
late; the collector follows the result queue; the sweeper lists S3, so that a sample whose message was lost is found, and
reads the dead-letter queue. Each is a loop around one `*_once` method. What they cannot mend ends the wait of `batch`, which
never waits in silence.

Groups are trained on in the order of their ids as far as they are ready. The window is never wider than `staleness` batches:
a group that waits in it is then still young enough when its turn comes, and no task ever asks for weights that do not exist.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import protocol, sqs, store
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Attempt, DeadLetter, ResultMessage, Sample, TaskMessage, TaskPayload
from moerl_runtime.sqs import Received, SqsClient
from moerl_runtime.store import S3Client
from moerl_runtime.trainer.ledger import Group, Ledger, Taken
from moerl_runtime.trainer.results import judged, letter

log = logging.getLogger(__name__)

WORKERS = 16
POSTPONED_MAX = 3
"""Times that a late task waits on because the queue seems to hold it. SQS's counts are estimates."""
SKIPPED_MAX = 1_000
"""Unusable prompts in a row."""

Clock = Callable[[], float]
Payload = Callable[[int, int], TaskPayload | None]
"""(position, group) to the task; None for a prompt that cannot be used."""
Fetch = Callable[[int, str], bytes | None]
"""(group, key) of a stored sample to its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    task: str
    result: str
    dead_letter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things may take, in seconds."""

    reissue_seconds: float = 1_800.0
    """Of a task without all results, the first time; doubled each time, three times."""
    stall_seconds: float = 7_200.0
    """Without a single new sample, while a batch is waited for. Spot may have no capacity for hours; GPUs that wait cost."""
    log_seconds: float = 30.0
    sweep_seconds: float = 60.0
    poll_seconds: float = 5.0
    """Longest sleep of a thread that nothing wakes."""
    long_poll_seconds: int = sqs.LONG_POLL_SECONDS
    result_lease_seconds: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    batch: int
    """Groups of one step."""
    staleness: int
    """Versions that the weights of a sample may be older than those which train on it."""
    steps_per_version: int = 1
    dead_share_max: float = 0.1
    dead_min: int = 20
    """Below it no share says anything."""

    def __post_init__(self) -> None:
        if self.staleness < 1:
            raise InputFault(
                "--max-weight-staleness",
                self.staleness,
                "samples are generated while the trainer trains, so they are one version old at least",
                "Write 1 or more.",
            )

    @property
    def window(self) -> int:
        return self.batch * self.staleness


class Stalled(RuntimeFault):
    """No sample came for too long."""


class TooManyDead(RuntimeFault):
    """Agents fail at more tasks than chance explains."""


class Feed:
    """One attempt's tasks and samples."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        attempt: Attempt,
        payload: Payload,
        limits: Limits,
        queues: Queues,
        bucket: str,
        s3: S3Client,
        sqs_client: SqsClient,
        fetch: Fetch,
        metrics: Metrics,
        clock: Clock,
        pace: Pace | None = None,
    ) -> None:
        self._ledger, self._attempt, self._payload, self._limits = ledger, attempt, payload, limits
        self._queues, self._bucket, self._s3, self._sqs, self._fetch = queues, bucket, s3, sqs_client, fetch
        self._metrics, self._clock, self._pace = metrics, clock, pace or Pace()
        self._changed = threading.Condition()
        """Guards the ledger and everything below; notified whenever it changes."""
        self._version, self._next_version = 0, 0
        self._progress_at = clock()
        self._fault: BaseException | None = None
        self._trouble: dict[str, str] = {}
        """Of each thread, while it lasts."""
        self._skipped_in_a_row = 0
        self._asked: dict[int, tuple[int, ...]] = {}
        """Prompt tokens of the groups that were sent: answers have to begin with them."""
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="feed")

    # --- for the rollout class and the data source

    def start(self) -> None:
        """Starts the threads, once."""
        if self._threads:
            return
        loops: Mapping[str, tuple[Callable[[], object], float]] = {
            "dispatcher": (self.dispatch_once, self._pace.poll_seconds),
            "collector": (lambda: self.collect_once(self._pace.long_poll_seconds), 0.0),
            "sweeper": (self.sweep_once, self._pace.sweep_seconds),
        }
        for name, (once, pause) in loops.items():
            thread = threading.Thread(target=self._loop, args=(name, once, pause), daemon=True, name=name)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stops the threads; what is under way is stored or asked for again by the next attempt."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=self._pace.long_poll_seconds + self._pace.poll_seconds)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def batch(self, step: int, version: int) -> list[Taken]:
        """The step's groups, in order of their ids. Waits for them, logs what for, and raises rather than wait for ever."""
        oldest = version - self._limits.staleness
        with self._changed:
            began = logged = self._clock()
            self._progress_at = max(self._progress_at, began)
            self._version = self._next_version = version
            while True:
                if self._fault is not None:
                    raise self._fault
                stale = self._ledger.counters.stale
                taken = self._ledger.take(step, self._limits.batch, oldest_version=oldest)
                self._count("stale", (self._ledger.counters.stale - stale) * self._ledger.samples)
                if taken is not None:
                    self._next_version = version + (1 if self._limits.steps_per_version == 1 else 0)
                    self._gauges()
                    self._changed.notify_all()
                    return taken
                self._check_dead()
                now = self._clock()
                if now - self._progress_at > self._pace.stall_seconds:
                    raise Stalled(
                        "rollouts",
                        self._status(),
                        f"no sample came for {now - self._progress_at:.0f} s while step {step} waits",
                        "Look at the rollout pods and the task queue; the run resumes from its last checkpoint.",
                    )
                if now - logged >= self._pace.log_seconds:
                    logged = now
                    log.warning("step %d has waited %.0f s for samples: %s", step, now - began, self._status())
                if stale != self._ledger.counters.stale:
                    self._changed.notify_all()
                self._changed.wait(self._pace.poll_seconds)

    def state(self, step: int) -> dict[str, Any]:
        """The ledger as of that step."""
        with self._changed:
            return self._ledger.state(step)

    def saved(self, step: int) -> None:
        """That step's state is with the uploader."""
        with self._changed:
            self._ledger.saved(step)

    def lend(self, step: int, count: int) -> list[tuple[int, int]]:
        """(group, position) of prompts that the caller answers himself."""
        with self._changed:
            return [self._ledger.lend(step) for _ in range(count)]

    def give_back(self, groups: Sequence[int]) -> None:
        with self._changed:
            for group in groups:
                if not self._ledger.give_back(group):
                    log.warning("group %d was not lent, so it cannot be given back", group)
            self._changed.notify_all()

    def waiting(self) -> int:
        """Complete groups that no step has taken."""
        with self._changed:
            return self._ledger.ready_count()

    # --- what the threads do

    def dispatch_once(self) -> int:
        """Sends what is missing in the window and what is late. Returns how many messages."""
        with self._changed:
            unsent = [(group.id, group.position) for group in self._ledger.fill()]
            first = self._ledger.first_open()
            self._asked = {group: tokens for group, tokens in self._asked.items() if group >= first}
        payloads = list(self._pool.map(lambda entry: self._write(*entry), unsent))
        skipped = [group for (group, _), written in zip(unsent, payloads, strict=True) if not written]
        with self._changed:
            for group in skipped:
                log.warning("the prompt of group %d is empty or too long; the next one takes its place", group)
                self._ledger.skip(group)
            fresh = [self._message(group, issue=0) for (group, _), good in zip(unsent, payloads, strict=True) if good]
        self._skipped_in_a_row = 0 if fresh or not unsent else self._skipped_in_a_row + len(skipped)
        if self._skipped_in_a_row > SKIPPED_MAX:
            raise InputFault(
                "--rollout-max-prompt-len",
                self._skipped_in_a_row,
                "prompts in a row were too long or empty",
                "Raise it, or look at the prompt file.",
            )
        return self._send([*fresh, *self._late()])

    def collect_once(self, wait_seconds: int) -> int:
        """Takes results from the queue. Returns how many messages it was."""
        received = sqs.receive(
            self._sqs,
            self._queues.result,
            most=sqs.BATCH,
            wait_seconds=wait_seconds,
            lease_seconds=self._pace.result_lease_seconds,
        )
        wanted: list[ResultMessage] = []
        with self._changed:
            for message in received:
                result = self._result(message)
                if result is None:
                    continue
                if result.of != self._attempt:
                    self._count("stale")
                elif self._ledger.missing(result.group, result.sample):
                    wanted.append(result)
                else:
                    self._count("duplicate")
        self._load([(result.group, result.sample) for result in wanted])
        # Only now: a crash before it brings the messages again.
        sqs.delete(self._sqs, self._queues.result, [message.receipt for message in received])
        return len(received)

    def sweep_once(self) -> int:
        """Finds stored samples without a message, and reads dead letters. Returns how many of both."""
        return self._found_in_s3() + self._read_dead_letters()

    # --- sending

    def _write(self, group: int, position: int) -> bool:
        payload = self._payload(position, group)
        if payload is None:
            return False
        self._asked[group] = payload.prompt_tokens
        store.put(self._s3, self._bucket, protocol.task_key(self._attempt, group), protocol.encode(payload))
        return True

    def _message(self, group: int, *, issue: int) -> TaskMessage:
        return TaskMessage(
            run=self._attempt.run,
            attempt=self._attempt.number,
            group=group,
            key=protocol.task_key(self._attempt, group),
            version_min=self._version_min(group),
            issue=issue,
        )

    def _version_min(self, group: int) -> int:
        """The oldest weights whose samples are still young enough when the group's turn comes."""
        steps_ahead = self._ledger.place(group) // self._limits.batch
        at_its_turn = self._next_version + steps_ahead // self._limits.steps_per_version
        return max(0, min(at_its_turn - self._limits.staleness, self._version))

    def _late(self) -> list[TaskMessage]:
        """Messages of overdue groups, unless the queue still holds as many tasks as are out."""
        with self._changed:
            if not self._ledger.overdue(self._clock()):
                return []
        held = sum(sqs.depth(self._sqs, self._queues.task))
        messages = []
        with self._changed:
            now = self._clock()
            outstanding = len(self._ledger.outstanding())
            for group in self._ledger.overdue(now):
                if held >= outstanding and group.postponed < POSTPONED_MAX:
                    self._ledger.postpone(group.id, now)
                else:
                    messages.append(self._again(group))
        return messages

    def _again(self, group: Group) -> TaskMessage:
        log.warning("group %d has %d of its samples and is issued again", group.id, len(group.samples))
        self._metrics.add("moerl_trainer_tasks_reissued_total")
        return self._message(group.id, issue=group.issues + 1)

    def _send(self, messages: Sequence[TaskMessage]) -> int:
        if messages:
            sqs.send(self._sqs, self._queues.task, [protocol.encode(message) for message in messages])
            with self._changed:
                for message in messages:
                    self._ledger.sent(message.group, self._clock())
                self._gauges()
        return len(messages)

    # --- receiving

    def _result(self, message: Received) -> ResultMessage | None:
        try:
            return protocol.decode(ResultMessage, message.body)
        except InputFault as fault:
            log.warning("dropped from the result queue: %s", fault)
            self._count("invalid")
            return None

    def _load(self, wanted: Sequence[tuple[int, int]]) -> int:
        """Reads those samples and records them. Returns how many were of use."""
        read = list(self._pool.map(lambda entry: self._read(*entry), wanted))
        used = 0
        with self._changed:
            for (group, number), found in zip(wanted, read, strict=True):
                used += self._record(group, number, found)
            if used:
                self._progress_at = self._clock()
            self._gauges()
            self._changed.notify_all()
        return used

    def _read(self, group: int, number: int) -> Sample | str | None:
        """The sample, why it is none, or None where it is not stored. Without the lock: decoding takes its time."""
        body = self._fetch(group, protocol.sample_key(self._attempt, group, number))
        return None if body is None else judged(body, group, number, self._asked.get(group))

    def _record(self, group: int, number: int, found: Sample | str | None) -> bool:
        if found is None:
            log.warning("sample %d of group %d was announced and is not stored", number, group)
            self._count("invalid")
            return False
        if isinstance(found, str):
            self._count("invalid")
            fate = self._ledger.damaged(group)
            log.error("sample %d of group %d cannot be trained on (%s): %s", number, group, fate, found)
            return False
        outcome = self._ledger.record(found)
        self._count("used" if outcome == "used" else "duplicate")
        return outcome == "used"

    def _found_in_s3(self) -> int:
        with self._changed:
            first = self._ledger.first_open()
        below, after = protocol.stored_prefix(self._attempt), protocol.group_prefix(self._attempt, first)
        keys = store.keys(self._s3, self._bucket, below, after=after)
        stored = [protocol.sample_of(self._attempt, key) for key in keys]
        with self._changed:
            wanted = [entry for entry in stored if entry is not None and self._ledger.missing(*entry)]
        return self._load(wanted) if wanted else 0

    def _read_dead_letters(self) -> int:
        received = sqs.receive(self._sqs, self._queues.dead_letter, most=sqs.BATCH, wait_seconds=0, lease_seconds=30)
        done, again = [], []
        for message in received:
            found = letter(message.body)
            if found is None:
                continue
            if isinstance(found, DeadLetter):
                self._bury(found)
            elif found.of == self._attempt:
                # SQS moved it after a thousand receives: interruptions, which say nothing against the task.
                with self._changed:
                    again += [self._again(group) for group in self._ledger.outstanding() if group.id == found.group]
            done.append(message.receipt)
        self._send(again)
        sqs.delete(self._sqs, self._queues.dead_letter, done)
        return len(done)

    def _bury(self, dead: DeadLetter) -> None:
        """Keeps the reason where people find it, and gives the group's place to the next prompt."""
        attempt = Attempt(run=dead.run, number=dead.attempt)
        key = protocol.dead_key(attempt, dead.group)
        store.put(self._s3, self._bucket, key, protocol.encode(dead))
        if attempt != self._attempt:
            return
        log.error("group %d is dead after %d failures: %s", dead.group, dead.failures, dead.reason)
        with self._changed:
            self._ledger.dead(dead.group)
            self._changed.notify_all()

    # --- state of the wait

    def _check_dead(self) -> None:
        counters = self._ledger.counters
        finished = counters.dead + counters.taken + self._ledger.ready_count()
        if counters.dead >= self._limits.dead_min and counters.dead > self._limits.dead_share_max * finished:
            raise TooManyDead(
                "dead tasks",
                f"{counters.dead} of {finished}",
                "agents fail at more than chance explains",
                f"Their reasons are below s3://{self._bucket}/{protocol.attempt_prefix(self._attempt)}dead/.",
            )

    def _status(self) -> str:
        ledger, counters = self._ledger, self._ledger.counters
        outstanding = ledger.outstanding()
        samples = sum(len(group.samples) for group in outstanding)
        text = (
            f"{ledger.ready_count()} of {self._limits.batch} groups ready, {len(outstanding)} outstanding with"
            f" {samples} of {len(outstanding) * ledger.samples} samples, {counters.reissued} reissued,"
            f" {counters.dead} dead, {counters.stale} stale, {counters.invalid} damaged"
        )
        return "; ".join((text, *list(self._trouble.values())))

    def _gauges(self) -> None:
        outstanding = self._ledger.outstanding()
        oldest = min((group.sent_at for group in outstanding), default=None)
        self._metrics.set("moerl_trainer_tasks_outstanding", len(outstanding))
        self._metrics.set("moerl_trainer_oldest_task_age_seconds", 0.0 if oldest is None else self._clock() - oldest)

    def _count(self, outcome: str, amount: int = 1) -> None:
        if amount:
            self._metrics.add("moerl_trainer_results_total", amount, outcome=outcome)

    def _loop(self, name: str, once: Callable[[], object], pause_seconds: float) -> None:
        while not self._stopped.is_set():
            try:
                once()
                self._trouble.pop(name, None)
            except (BotoCoreError, ClientError) as error:
                # boto3 has tried already. What lasts ends in a stall, which names it.
                self._trouble[name] = f"{name}: {error}"
                log.warning("%s: %s; going on in %.0f s", name, error, self._pace.poll_seconds)
                self._stopped.wait(self._pace.poll_seconds)
            except BaseException as error:
                with self._changed:
                    self._fault = error
                    self._changed.notify_all()
                return
            if once == self.dispatch_once:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped.is_set() or self._ledger.room() > 0, pause_seconds)
            elif pause_seconds:
                self._stopped.wait(pause_seconds)
