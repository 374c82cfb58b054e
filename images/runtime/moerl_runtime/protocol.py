"""What the two halves of a run tell each other: names of S3 objects, bodies of SQS messages, the form of a sample.

A run is one RayJob; an attempt is one taking of its lease (`moerl_runtime.lease`), a number that only grows. A group is one
prompt with its `samples` answers, which GRPO compares with each other: the unit that is leased. Queues carry ids and
keys, never payloads, and nothing rests on them alone: what was issued and what was finished are objects.

    weights bucket, samples/RUN/ATTEMPT/tasks/GROUP.json            written before the group is sent
                    samples/RUN/ATTEMPT/samples/GROUP/SAMPLE.json   written once, by whoever finishes first
                    samples/RUN/ATTEMPT/dead/GROUP.json             why a group was given up, by the trainer
                    samples/RUN/ATTEMPT/loaded/HOST.json            which version an engine serves, by its agent
                    weights/current.json                            which attempt and version engines should serve
                    weights/RUN/ATTEMPT/VERSION/manifest.json       written last; the version's files beside it
                    weights/RUN/ATTEMPT/VERSION/full/manifest.json  an anchor: the whole of a version published as a delta
    checkpoint bucket, checkpoints/RUN/lease.json                   who may write
                    checkpoints/RUN/attempts/ATTEMPT.json           where that attempt resumed from
                    checkpoints/RUN/steps/ATTEMPT/STEP/complete.json  the commit marker; files and node manifests beside it

Numbers in names have a fixed width, so that a listing is in order and no name is the beginning of another: SGLang aborts
requests by prefix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from moerl_runtime import names
from moerl_runtime.faults import InputFault

PROTOCOL = 1
"""Of every kind that REVISED does not name."""
SAMPLES_PREFIX = "samples/"
CURRENT_NAME = "current.json"
MANIFEST_NAME = "manifest.json"
NUMBER_MAX = 2**63 - 1

Body = TypeVar("Body")

Status = Literal["completed", "truncated"]
"""Only these are trained on. An aborted answer is no sample: its group stays unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Who issued something: everything of an older attempt is void once a newer one is current."""

    run: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.number:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """Body of a message on the task queue."""

    run: str
    attempt: int
    group: int
    key: str
    """Of the TaskPayload in the weights bucket."""
    version_min: int
    """Oldest weights that may sample this group."""
    failures: int = 0
    """Times an agent failed at it by itself. Interruptions are not counted, so a receive count says nothing."""
    crashes: int = 0
    """Times an engine ended while it worked at it. Only those are failures too in which nothing else was in that engine."""
    issue: int = 0
    """0, or how often the trainer issued it again."""

    @property
    def of(self) -> Attempt:
        return Attempt(run=self.run, number=self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMessage:
    """Body of a message on the result queue: one sample is stored."""

    run: str
    attempt: int
    group: int
    sample: int
    key: str

    @property
    def of(self) -> Attempt:
        return Attempt(run=self.run, number=self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Body of a message that an agent itself puts on the dead-letter queue. One that SQS moved there is a TaskMessage."""

    run: str
    attempt: int
    group: int
    key: str
    failures: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPayload:
    """What an agent needs to finish a group."""

    group: int
    prompt: str
    """As text, the chat template applied."""
    prompt_tokens: tuple[int, ...]
    samples: int
    sampling: Mapping[str, Any]
    """SGLang's sampling_params, one for all samples; the seed of sample i is `sampling_seed` + i where one is given."""
    label: str | None
    grader: str
    """Name of the grader that turns an answer into a reward."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One finished answer, as stored. Lists have one entry per token of the answer."""

    group: int
    sample: int
    tokens: tuple[int, ...]
    """Prompt and answer."""
    response_length: int
    response: str
    status: Status
    reward: float
    log_probs: tuple[float, ...]
    loss_mask: tuple[int, ...] | None
    """None: every token of the answer is the model's own."""
    versions: tuple[int, ...]
    """Weights that served it, oldest first: more than one where a reload came in between."""
    worker: str
    finished_unix_seconds: float
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """Body of current.json: what an engine should serve. Version 0 is what the attempt began with."""

    run: str
    attempt: int
    version: int
    manifest: str | None
    """Key of the version's manifest in the weights bucket; None for the base model, which every node has."""

    @property
    def of(self) -> Attempt:
        return Attempt(run=self.run, number=self.attempt)


def attempt_prefix(attempt: Attempt) -> str:
    """Below it lies everything that an attempt's tasks and samples wrote."""
    return f"{SAMPLES_PREFIX}{attempt.run}/{attempt.name}/"


def task_key(attempt: Attempt, group: int) -> str:
    return f"{attempt_prefix(attempt)}tasks/{group:010d}.json"


def stored_prefix(attempt: Attempt) -> str:
    """Below it lie the samples of all groups."""
    return f"{attempt_prefix(attempt)}samples/"


def group_prefix(attempt: Attempt, group: int) -> str:
    return f"{stored_prefix(attempt)}{group:010d}/"


def sample_key(attempt: Attempt, group: int, sample: int) -> str:
    return f"{group_prefix(attempt, group)}{sample:04d}.json"


def dead_key(attempt: Attempt, group: int) -> str:
    """Of a DeadLetter that the trainer has read: people find the reason there, and the queue empties."""
    return f"{attempt_prefix(attempt)}dead/{group:010d}.json"


def sample_of(attempt: Attempt, key: str) -> tuple[int, int] | None:
    """(group, sample) of a key below `stored_prefix`; None for one that is no sample's."""
    group_text, _, rest = key.removeprefix(stored_prefix(attempt)).partition("/")
    group = names.number(group_text, 10, key=key)
    sample = None if group is None else names.number(rest.removesuffix(".json"), 4, key=key)
    if group is None or sample is None:
        return None
    if key != sample_key(attempt, group, sample):
        names.pass_over(key)
        return None
    return group, sample


def version_prefix(weights_prefix: str, attempt: Attempt, version: int) -> str:
    """`weights_prefix` is plan.json's storage.weights_prefix, with its slash."""
    return f"{weights_prefix}{attempt.run}/{attempt.name}/{version:08d}/"


def request_id(attempt: Attempt, group: int, sample: int, lease: int) -> str:
    """SGLang's rid: unique among live requests, and no prefix of another. `lease` tells two leases of one process apart."""
    return f"{attempt.name}-{group:010d}-{sample:04d}-{lease % 10**6:06d}"


REVISED: Mapping[type[Any], int] = MappingProxyType({TaskMessage: 2})
"""Kinds of which a reader of the old form would misread the new one: agents of the first bury a task that counts crashes. Each
kind has a number of its own, since checkpoints and models are read for long by later releases."""


def encode(body: Any) -> str:
    """A message or object of this module as JSON: one line, the same bytes for the same content."""
    written = {"protocol": _protocol(type(body)), **_fields(body)}
    return json.dumps(written, sort_keys=True, separators=(",", ":"), default=_fields)


def _fields(body: Any) -> dict[str, Any]:
    """One level of a dataclass. `asdict` would copy every token of a sample, and take four times as long as the JSON."""
    return {each.name: getattr(body, each.name) for each in fields(body)}


def decode(kind: type[Body], text: str | bytes) -> Body:
    """Reads what `encode` wrote. Raises InputFault for another protocol, a missing or unknown field, a value of another type,
    a negative whole number, text that is not Unicode. A dataclass within another is left as a mapping."""
    try:
        written = json.loads(text)
        protocol = written.pop("protocol")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputFault("message", _shortened(text), f"is no {kind.__name__} in JSON", "Send it anew.") from error
    if protocol != (own := _protocol(kind)):
        raise InputFault(
            "protocol", protocol, f"is not {own}", "Run trainer and rollouts from images of the same release."
        )
    hints = _hints(kind)  # type: ignore[arg-type]  # every class is hashable
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    for name, value in values.items():
        if name in hints and not _fits(hints[name], value):
            why = f"is no {kind.__name__}: its {name} is of type {type(value).__name__} and not what it has to be"
            raise InputFault("message", _shortened(text), why, "Send it anew.")
    try:
        return kind(**values)
    except TypeError as error:
        raise InputFault("message", _shortened(text), f"is no {kind.__name__}: {error}", "Send it anew.") from error


def _protocol(kind: type[Any]) -> int:
    return REVISED.get(kind, PROTOCOL)


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value of JSON, lists made tuples, is one of the type. By maps and sets: an answer has thousands of tokens."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is int:
        return type(value) is int and 0 <= value <= NUMBER_MAX
    if hint is float:
        return type(value) in (int, float)
    if hint is str:
        return isinstance(value, str) and _is_unicode(value)
    if hint in (bool, NoneType):
        return type(value) is hint
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (Union, UnionType):
        return any(_fits(each, value) for each in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and _all_fit(arguments[0], value)
    return hint is Any or isinstance(value, dict)


def _all_fit(hint: Any, values: tuple[Any, ...]) -> bool:
    if hint is int and values:
        return set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= NUMBER_MAX
    if hint is float:
        return set(map(type, values)) <= {int, float}
    return all(_fits(hint, value) for value in values)


def _is_unicode(text: str) -> bool:
    """JSON can name half a character, which nothing can be called by."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shortened(text: str | bytes) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
