"""What this agent has leased and what it has asked the engine for. Nothing else knows, so nothing else is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from moerl_runtime.protocol import TaskMessage, TaskPayload


class Stage(StrEnum):
    WAITING = "waiting"
    """For a newer look at current.json, or for weights."""
    READING = "reading"
    """Its payload."""
    WORKING = "working"
    CLOSING = "closing"
    """Being deleted, given back or failed: nothing of it is begun any more."""


@dataclass(slots=True)
class Receipt:
    """One delivery of a task's message; a task that was issued again has several."""

    first_seconds: float
    ends_seconds: float


@dataclass(slots=True, kw_only=True)
class Lease:
    number: int
    message: TaskMessage
    fresh: bool
    """Nobody else can have stored anything of it: its first delivery, of a message that was never sent again."""
    receipts: dict[str, Receipt]
    """Those that are still ours. Empty: others may have the task; what runs goes on, but nothing is deleted."""
    arrived_seconds: float
    """When its newest delivery came."""
    stage: Stage = Stage.WAITING
    payload: TaskPayload | None = None
    todo: set[int] = field(default_factory=set)
    """Samples that nobody works at."""
    running: set[int] = field(default_factory=set)
    publishing: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    """Samples that are stored and announced."""
    tries: dict[int, int] = field(default_factory=dict)
    """Times that the engine put off or lost a sample."""
    offers: dict[int, int] = field(default_factory=dict)
    """Times that nobody had time to grade a sample."""
    admitted: bool = False
    """Its samples may go to the engine."""
    sent_again_as: str = "failed"
    """Outcome of a task that goes back with something counted: `crashed` for an engine that ended with others in it too."""
    alone: bool = False
    """Nothing else was in the engine since then."""

    @property
    def open(self) -> bool:
        return self.stage is not Stage.CLOSING

    @property
    def inside(self) -> bool:
        """The engine has something of it, or will get it."""
        return self.stage is Stage.WORKING and self.admitted and bool(self.running or self.todo)

    @property
    def idle(self) -> bool:
        """Nothing of it is on its way."""
        return not self.running and not self.publishing

    @property
    def complete(self) -> bool:
        return self.payload is not None and len(self.done) == self.payload.samples


@dataclass(slots=True)
class Run:
    """One request that the engine has. `lease` is None once nobody wants its answer."""

    lease: int | None
    sample: int
    versions: list[int]
    """Weights since it was sent, oldest first."""


class Ledger:
    """All leases and all requests of this process."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        self.runs: dict[str, Run] = {}
        self._numbers = 0
        self._requests = 0

    def add(self, message: TaskMessage, receipt: str, delivery: Receipt, *, now: float, fresh: bool) -> Lease | None:
        """The new lease; None where the group is being worked at already, which then has one delivery more."""
        for lease in self.leases.values():
            if lease.open and (lease.message.of, lease.message.group) == (message.of, message.group):
                lease.receipts[receipt], lease.arrived_seconds = delivery, now
                lease.message = replace(
                    lease.message,
                    failures=max(message.failures, lease.message.failures),
                    crashes=max(message.crashes, lease.message.crashes),
                )
                return None
        self._numbers += 1
        lease = Lease(
            number=self._numbers, message=message, fresh=fresh, receipts={receipt: delivery}, arrived_seconds=now
        )
        self.leases[lease.number] = lease
        return lease

    def next_request(self) -> int:
        """A number that no other request of this process has or had."""
        self._requests += 1
        return self._requests

    def open(self, *stages: Stage) -> list[Lease]:
        """Leases that are not closing, or those in the given stages."""
        return [lease for lease in self.leases.values() if (lease.stage in stages if stages else lease.open)]

    def wanted(self, number: int) -> Lease | None:
        """The lease, unless it is gone or closing."""
        lease = self.leases.get(number)
        return lease if lease is not None and lease.open else None

    def orphan(self, lease: Lease) -> Iterator[str]:
        """Marks the requests of a lease as unwanted and gives their names. They stay until the engine has answered."""
        lease.todo.clear()
        lease.running.clear()
        for name, run in self.runs.items():
            if run.lease == lease.number:
                run.lease = None
                yield name
