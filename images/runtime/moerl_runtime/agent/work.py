"""Does one effect with the clients that it is given, and says how it ended.

What a network, a service or an engine may do wrong becomes an event here. Anything else is a mistake in this package and
ends the agent (`loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import protocol, sqs, store
from moerl_runtime.agent import effects as do
from moerl_runtime.engine import router
from moerl_runtime.engine.answers import Answer, MalformedAnswer
from moerl_runtime.engine.client import NotListening, PauseMode, Refused, Unreachable
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.graders import GradeError
from moerl_runtime.protocol import Current, DeadLetter, ResultMessage, Sample, TaskMessage, TaskPayload
from moerl_runtime.weights import pointer, retain

SERVICE_ERRORS = (BotoCoreError, ClientError, OSError)
ENGINE_ERRORS = (Unreachable, Refused)
NEVER = frozenset({400, 404, 413, 422})
"""Answers of an engine to a request that will not become better. 499, 500 and 503 may."""

SAMPLES_MAX = 4_096
"""Of one group; names of samples have four digits."""


REASON_CHARACTERS_MAX = 2_000
"""Of a dead letter: a grader's error may quote the whole answer, and SQS takes no message above its limit."""


class GradingBusy(Exception):
    """Whoever grades has no time now."""


class EngineApi(Protocol):
    """What is asked of an engine (`moerl_runtime.engine.client.Engine`)."""

    def healthy(self) -> bool: ...
    def weight_tag(self) -> str: ...
    def arguments(self, names: Sequence[str]) -> Mapping[str, object]: ...
    def generate(
        self, *, request_id: str, prompt_tokens: Sequence[int], sampling: Mapping[str, Any], cache_key: str
    ) -> Answer: ...
    def abort(self, request_id: str) -> None: ...
    def abort_all(self) -> None: ...
    def pause(self, mode: PauseMode) -> None: ...
    def resume(self) -> None: ...
    def load(self, path: str, *, tag: str, flush: bool) -> None: ...
    def live_requests(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    tasks: str
    results: str
    dead_letters: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """The world of one agent."""

    engine: EngineApi
    s3: store.S3Client
    sqs: sqs.SqsClient
    bucket: str
    weights_prefix: str
    queues: Queues
    lease_seconds: int
    failures_max: int
    worker: str
    """Name of this pod, in its samples and reports."""
    clock: Callable[[], float]
    """Monotonic, the core's own."""
    unix_seconds: Callable[[], float]
    fetch: Callable[[Current], Path]
    mark_loading: Callable[[], None]
    """Leaves word for an agent after this one that the engine may not hold what it was started with."""
    grade: Callable[[TaskPayload, str], tuple[float, dict[str, Any]]]
    """Reward of an answer. Raises GradeError, or GradingBusy to be asked again."""
    buffer: Callable[[int, str, bytes], object]
    """Offers a stored sample to the buffer workers; whether they take it changes nothing."""
    router_url: str | None = None
    advertised_url: str | None = None


def perform(effect: do.Effect, around: Around) -> do.Event:
    """Runs it to its end and returns the event that answers it."""
    try:
        match effect:
            case do.Generate():
                return _generate(effect, around)
            case do.Publish():
                return _publish(effect, around)
            case do.ReadTask():
                return _read_task(effect, around)
            case do.Receive():
                return _receive(effect, around)
            case do.Delete():
                sqs.delete(around.sqs, around.queues.tasks, effect.receipts)
            case do.Extend():
                return _extend(effect, around)
            case do.GiveBack():
                sqs.extend(
                    around.sqs, around.queues.tasks, effect.receipts, lease_seconds=effect.delay_seconds
                )  # whoever has a lease that was over keeps it
            case do.Fail():
                return _fail(effect, around)
            case do.Bury():
                sqs.send(around.sqs, around.queues.dead_letters, [effect.body])
                sqs.delete(around.sqs, around.queues.tasks, [effect.receipt])
            case do.Depth():
                return do.Depths(sqs.depth(around.sqs, around.queues.results)[0])
            case do.ReadCurrent():
                return _read_current(effect, around)
            case do.Fetch():
                return do.Fetched(effect.current, around.fetch(effect.current))
            case do.ReportLoaded():
                retain.report_loaded(around.s3, around.bucket, effect.current, around.worker)
            case do.Register() | do.Deregister():
                _route(effect, around)
            case _:
                return _engine(effect, around)
    except (*SERVICE_ERRORS, *ENGINE_ERRORS, router.RouterFailed, RuntimeFault) as error:
        return do.NotDone(effect, f"{type(error).__name__}: {error}")
    return do.Done(effect)


def _engine(effect: do.Effect, around: Around) -> do.Event:
    engine = around.engine
    match effect:
        case do.Probe():
            try:
                return do.Probed(engine.weight_tag() if engine.healthy() else None)
            except NotListening:
                return do.Probed(None, listening=False)
        case do.Inspect():
            return do.Inspected(engine.arguments(effect.names))
        case do.Verify():
            return do.Verified(effect, engine.weight_tag())
        case do.CountLive():
            return do.Live(engine.live_requests())
        case do.Load():
            around.mark_loading()
            try:
                engine.load(str(effect.path), tag=effect.tag, flush=effect.flush)
            except Refused as error:
                return do.LoadRefused(effect, str(error))
        case do.Reset():
            engine.resume()
            engine.abort_all()
        case do.Pause():
            engine.pause(effect.mode)
        case do.Resume():
            engine.resume()
        case do.AbortRequest():
            engine.abort(effect.request_id)
        case do.AbortAll():
            engine.abort_all()
        case _:
            raise TypeError(f"nobody performs {effect}")
    return do.Done(effect)


def _route(effect: do.Register | do.Deregister, around: Around) -> None:
    if around.router_url is not None and around.advertised_url is not None:
        act = router.register if isinstance(effect, do.Register) else router.deregister
        act(around.router_url, around.advertised_url)


def _read_current(effect: do.ReadCurrent, around: Around) -> do.Event:
    asked = around.clock()
    found = pointer.read_current(around.s3, around.bucket, around.weights_prefix, effect.etag)
    if found is not None:
        return do.CurrentRead(asked, True, found.current, found.etag)
    return do.CurrentRead(asked, changed=False)


def _receive(effect: do.Receive, around: Around) -> do.Event:
    asked = around.clock()
    messages = sqs.receive(
        around.sqs,
        around.queues.tasks,
        most=effect.most,
        wait_seconds=effect.wait_seconds,
        lease_seconds=around.lease_seconds,
    )
    return do.Arrived(asked, tuple(messages))


def _extend(effect: do.Extend, around: Around) -> do.Event:
    asked = around.clock()
    lost = sqs.extend(around.sqs, around.queues.tasks, effect.receipts, lease_seconds=around.lease_seconds)
    return do.Extended(effect, asked, tuple(lost))


def _read_task(effect: do.ReadTask, around: Around) -> do.Event:
    message = effect.message
    stored = store.get(around.s3, around.bucket, message.key)
    if stored is None:
        return do.TaskUnreadable(effect.lease, f"its payload {message.key} does not exist")
    try:
        payload = protocol.decode(TaskPayload, stored.body)
    except RuntimeFault as fault:
        return do.TaskUnreadable(effect.lease, str(fault))
    if wrong := _fault_of(payload, message):
        return do.TaskUnreadable(effect.lease, wrong)
    if effect.fresh:
        return do.TaskRead(effect.lease, payload, ())
    prefix = protocol.group_prefix(message.of, message.group)
    found = [protocol.sample_of(message.of, key) for key in store.keys(around.s3, around.bucket, prefix)]
    numbers = [entry[1] for entry in found if entry is not None]
    sqs.send(around.sqs, around.queues.results, [_announcement(message.of, message.group, each) for each in numbers])
    return do.TaskRead(effect.lease, payload, tuple(numbers))


def _fault_of(payload: TaskPayload, message: TaskMessage) -> str | None:
    if payload.group != message.group:
        return f"its payload is of group {payload.group}"
    if not 1 <= payload.samples <= SAMPLES_MAX or not payload.prompt_tokens:
        return f"its payload asks for {payload.samples} samples of {len(payload.prompt_tokens)} prompt tokens"
    if type(seed := payload.sampling.get("sampling_seed", 0)) is not int:
        return f"its payload has the sampling_seed {seed!r}"
    return None


def _generate(effect: do.Generate, around: Around) -> do.Event:
    payload = effect.payload
    sampling = dict(payload.sampling)
    if "sampling_seed" in sampling:
        sampling["sampling_seed"] += effect.sample
    try:
        answer = around.engine.generate(
            request_id=effect.request_id,
            prompt_tokens=payload.prompt_tokens,
            sampling=sampling,
            cache_key=effect.cache_key,
        )
    except Unreachable as error:
        return do.Unanswered(effect, "lost", str(error))
    except Refused as error:
        return do.Unanswered(effect, "refused" if error.status in NEVER else "busy", str(error))
    except MalformedAnswer as error:
        return do.Unanswered(effect, "busy", f"malformed answer: {error}")
    return do.Answered(effect, answer)


def _publish(effect: do.Publish, around: Around) -> do.Event:
    """Store, then announce: an announcement of what is not stored would be believed."""
    payload, answer = effect.payload, effect.answer
    try:
        reward, found = around.grade(payload, answer.text)
    except GradeError as error:
        return do.Ungraded(effect.lease, effect.sample, str(error))
    except GradingBusy as error:
        return do.GraderBusy(effect, str(error))
    sample = Sample(
        group=payload.group,
        sample=effect.sample,
        tokens=payload.prompt_tokens + answer.tokens,
        response_length=len(answer.tokens),
        response=answer.text,
        status="truncated" if answer.ending == "truncated" else "completed",
        reward=reward,
        log_probs=answer.log_probs,
        loss_mask=None,
        versions=effect.versions,
        worker=around.worker,
        finished_unix_seconds=around.unix_seconds(),
        metadata={**payload.metadata, **found},
    )
    key = protocol.sample_key(effect.of, payload.group, effect.sample)
    body = protocol.encode(sample).encode()
    new = store.put_new(around.s3, around.bucket, key, body) is not None
    if new:
        around.buffer(payload.group, key, body)
    # The one who came second says it again: the first may have ended before he could.
    sqs.send(around.sqs, around.queues.results, [_announcement(effect.of, payload.group, effect.sample)])
    return do.Published(effect.lease, effect.sample, new)


def _fail(effect: do.Fail, around: Around) -> do.Event:
    """Send, then delete: a task may be there twice, and may not be there never."""
    message = effect.message
    dead = message.failures >= around.failures_max
    if dead:
        letter = DeadLetter(
            run=message.run,
            attempt=message.attempt,
            group=message.group,
            key=message.key,
            failures=message.failures,
            reason=effect.reason[:REASON_CHARACTERS_MAX],
        )
        sqs.send(around.sqs, around.queues.dead_letters, [protocol.encode(letter)])
    else:
        sqs.send(around.sqs, around.queues.tasks, [protocol.encode(message)])
    sqs.delete(around.sqs, around.queues.tasks, effect.receipts)
    return do.FailureSent(effect.lease, dead)


def _announcement(of: protocol.Attempt, group: int, sample: int) -> str:
    key = protocol.sample_key(of, group, sample)
    return protocol.encode(ResultMessage(run=of.run, attempt=of.number, group=group, sample=sample, key=key))
