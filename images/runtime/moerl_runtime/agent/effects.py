"""What the core asks for, and what it is told. Each effect is answered by exactly one event.

Times are seconds of the agent's monotonic clock. A lease is named by its number, which only this process knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moerl_runtime.engine.answers import Answer
from moerl_runtime.engine.client import PauseMode
from moerl_runtime.imds import Notice
from moerl_runtime.protocol import Attempt, Current, TaskMessage, TaskPayload
from moerl_runtime.sqs import Received

# --- effects -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks the engine for its health and the tag of its weights."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends what a former agent may have left in the engine: a pause, then its requests."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Asks the engine for these of its start-up arguments."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Register:
    """Puts the engine on the router's list."""


@dataclass(frozen=True, slots=True)
class Deregister:
    """Takes it off."""


@dataclass(frozen=True, slots=True)
class ReadCurrent:
    """Reads current.json, unless it still has the ETag that was read last."""

    etag: str | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """Brings a version's full directory to this node."""

    current: Current


@dataclass(frozen=True, slots=True)
class Pause:
    mode: PauseMode


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Load:
    path: Path
    tag: str
    flush: bool


@dataclass(frozen=True, slots=True)
class Verify:
    """Asks the engine what it calls its weights."""

    tag: str


@dataclass(frozen=True, slots=True)
class ReportLoaded:
    """Tells retention which version this node has in use."""

    current: Current


@dataclass(frozen=True, slots=True)
class Receive:
    most: int
    wait_seconds: int


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Reads the payload, and lists which samples are stored already; those are announced again: whoever stored them may
    have ended before it said so."""

    lease: int
    message: TaskMessage
    fresh: bool
    """Nothing can be stored yet: no listing."""


@dataclass(frozen=True, slots=True)
class Generate:
    lease: int
    sample: int
    request_id: str
    payload: TaskPayload
    cache_key: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Grades an answer, stores the sample, announces it."""

    lease: int
    sample: int
    of: Attempt
    payload: TaskPayload
    answer: Answer
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a task's message: all its samples are stored and announced, or nobody wants them."""

    lease: int
    receipts: tuple[str, ...]
    outcome: Literal["completed", "stale"]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Makes tasks visible to others, after a delay."""

    leases: tuple[int, ...]
    receipts: tuple[str, ...]
    delay_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Extend:
    leases: tuple[int, ...]
    receipts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fail:
    """Sends the task again, or its dead letter once it has failed too often, and then deletes the message."""

    lease: int
    receipts: tuple[str, ...]
    message: TaskMessage
    """With this failure or crash counted."""
    reason: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Moves a message that nobody can read to the dead-letter queue as it is."""

    receipt: str
    body: str


@dataclass(frozen=True, slots=True)
class AbortRequest:
    request_id: str


@dataclass(frozen=True, slots=True)
class AbortAll:
    pass


@dataclass(frozen=True, slots=True)
class Depth:
    """Counts the results that wait for the trainer."""


@dataclass(frozen=True, slots=True)
class CountLive:
    """Counts the engine's live requests, whoever sent them."""


Effect = (
    Probe
    | Reset
    | Inspect
    | Register
    | Deregister
    | ReadCurrent
    | Fetch
    | Pause
    | Resume
    | Load
    | Verify
    | ReportLoaded
    | Receive
    | ReadTask
    | Generate
    | Publish
    | Delete
    | GiveBack
    | Extend
    | Fail
    | Bury
    | AbortRequest
    | AbortAll
    | Depth
    | CountLive
)


# --- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """It is done, and there is nothing to tell."""

    effect: Effect


@dataclass(frozen=True, slots=True)
class NotDone:
    """The network, the service or the engine failed at it; it may have happened all the same."""

    effect: Effect
    reason: str


@dataclass(frozen=True, slots=True)
class Probed:
    """`tag` is None where the engine listens but is not well, or does not listen."""

    tag: str | None
    listening: bool = True


@dataclass(frozen=True, slots=True)
class Inspected:
    """None stands for an argument that the engine does not show."""

    found: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CurrentRead:
    """`current` is None where there is no such object; `changed` is False where the ETag was the same."""

    asked_seconds: float
    changed: bool
    current: Current | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    current: Current
    path: Path


@dataclass(frozen=True, slots=True)
class LoadRefused:
    effect: Load
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    effect: Verify
    found: str


@dataclass(frozen=True, slots=True)
class Arrived:
    asked_seconds: float
    messages: tuple[Received, ...]


@dataclass(frozen=True, slots=True)
class TaskRead:
    lease: int
    payload: TaskPayload
    stored: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskUnreadable:
    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answered:
    effect: Generate
    answer: Answer


@dataclass(frozen=True, slots=True)
class Unanswered:
    """`lost`: nobody answered. `busy`: not now. `refused`: never, as the request stands."""

    effect: Generate
    kind: Literal["lost", "busy", "refused"]
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    lease: int
    sample: int
    new: bool
    """False for the one who came second."""


@dataclass(frozen=True, slots=True)
class Ungraded:
    lease: int
    sample: int
    reason: str


@dataclass(frozen=True, slots=True)
class GraderBusy:
    """Whoever grades had no time, which says nothing against the answer. Nothing of it is stored."""

    effect: Publish
    reason: str


@dataclass(frozen=True, slots=True)
class Extended:
    effect: Extend
    asked_seconds: float
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FailureSent:
    """`dead` tells a dead letter from a task that was sent again."""

    lease: int
    dead: bool


@dataclass(frozen=True, slots=True)
class Depths:
    results: int


@dataclass(frozen=True, slots=True)
class Live:
    requests: int


@dataclass(frozen=True, slots=True)
class Looked:
    """The watch for notices has asked once, with or without an answer."""


@dataclass(frozen=True, slots=True)
class Noticed:
    notice: Notice
    member: int = 0
    """Pod of the group that saw it."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """SIGTERM, or a follower that is being stopped."""

    why: str = "asked to stop"


@dataclass(frozen=True, slots=True)
class Reported:
    """A follower says where it is."""

    member: int
    brought: Current | None
    engine: bool | None = True
    """Whether its part of the engine is up. None: it has just been started itself and has not looked yet."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Crashed:
    """A thread of the agent ended with an error that nobody expected."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Due:
    """A timer of the core's own; `effect` is what to try again."""

    name: str
    effect: Effect | None = None
    lease: int = 0
    sample: int = 0


Event = (
    Done
    | NotDone
    | Probed
    | Inspected
    | CurrentRead
    | Fetched
    | LoadRefused
    | Verified
    | Arrived
    | TaskRead
    | TaskUnreadable
    | Answered
    | Unanswered
    | Published
    | Ungraded
    | GraderBusy
    | Extended
    | FailureSent
    | Depths
    | Live
    | Looked
    | Noticed
    | Stopped
    | Reported
    | Crashed
    | Due
)
