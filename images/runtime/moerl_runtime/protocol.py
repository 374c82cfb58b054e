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
from typing import Any, Literal, TypeVar

from moerl_runtime.faults import InputFault

PROTOCOL = 1
"""Raised when a reader of the old form would misread the new one."""
SAMPLES_PREFIX = "samples/"
CURRENT_NAME = "current.json"
MANIFEST_NAME = "manifest.json"

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


def group_prefix(attempt: Attempt, group: int) -> str:
    return f"{attempt_prefix(attempt)}samples/{group:010d}/"


def sample_key(attempt: Attempt, group: int, sample: int) -> str:
    return f"{group_prefix(attempt, group)}{sample:04d}.json"


def dead_key(attempt: Attempt, group: int) -> str:
    """Of a DeadLetter that the trainer has read: people find the reason there, and the queue empties."""
    return f"{attempt_prefix(attempt)}dead/{group:010d}.json"


def sample_number(key: str) -> int:
    """The sample's number in its group, from its key."""
    return int(key.rsplit("/", 1)[1].removesuffix(".json"))


def version_prefix(weights_prefix: str, attempt: Attempt, version: int) -> str:
    """`weights_prefix` is plan.json's storage.weights_prefix, with its slash."""
    return f"{weights_prefix}{attempt.run}/{attempt.name}/{version:08d}/"


def request_id(attempt: Attempt, group: int, sample: int, lease: int) -> str:
    """SGLang's rid: unique among live requests, and no prefix of another. `lease` tells two leases of one process apart."""
    return f"{attempt.name}-{group:010d}-{sample:04d}-{lease % 10**6:06d}"


def encode(body: Any) -> str:
    """A message or object of this module as JSON: one line, the same bytes for the same content."""
    return json.dumps({"protocol": PROTOCOL, **_fields(body)}, sort_keys=True, separators=(",", ":"), default=_fields)


def _fields(body: Any) -> dict[str, Any]:
    """One level of a dataclass. `asdict` would copy every token of a sample, and take four times as long as the JSON."""
    return {each.name: getattr(body, each.name) for each in fields(body)}


def decode(kind: type[Body], text: str | bytes) -> Body:
    """Reads what `encode` wrote. Raises InputFault for another protocol, a missing or unknown field."""
    try:
        written = json.loads(text)
        protocol = written.pop("protocol")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputFault("message", _shortened(text), f"is no {kind.__name__} in JSON", "Send it anew.") from error
    if protocol != PROTOCOL:
        raise InputFault(
            "protocol", protocol, f"is not {PROTOCOL}", "Run trainer and rollouts from images of the same release."
        )
    try:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in written.items()})
    except TypeError as error:
        raise InputFault("message", _shortened(text), f"is no {kind.__name__}: {error}", "Send it anew.") from error


def _shortened(text: str | bytes) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
