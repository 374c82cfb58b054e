"""A follower: a pod of a multi-node engine that does not lead it.

It keeps its leader told: that it is there, whether its part of the engine is up, which version its node has. It brings the
version that the leader names, and passes a Spot notice on at once, so that the leader drains. It takes no tasks and decides
nothing, so nothing is lost with it but the engine.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moerl_runtime.agent import group
from moerl_runtime.agent.group import LeaderAway, Report, Told
from moerl_runtime.agent.loop import Clock
from moerl_runtime.agent.states import State
from moerl_runtime.agent.work import SERVICE_ERRORS
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.imds import Notice
from moerl_runtime.protocol import Current
from moerl_runtime.serve import Answer, Request

REPORT_SECONDS = 2.0
START_SECONDS = 0.5
"""Between looks for an engine that is not up."""
AWAY_SECONDS = 30.0
"""Without an answer of the leader for so long a follower is not ready."""
REFETCH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Brought:
    """A fetch ended: `reason` says why it brought nothing."""

    current: Current
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM."""


@dataclass(frozen=True, slots=True)
class Crashed:
    reason: str


Event = Brought | Notice | Stop | Crashed


class Leader(Protocol):
    """The leader's routes (`group`), bound to its address."""

    def report(self, what: Report) -> Told: ...
    def ask_to_drain(self, member: int) -> Told: ...


class Follower:
    """`healthy` asks the pod's own part of the engine, `fetch` brings a version to the node and raises RuntimeFault or
    an error of S3."""

    def __init__(
        self,
        *,
        member: int,
        leader: Leader,
        healthy: Callable[[], bool],
        fetch: Callable[[Current], Path],
        clock: Clock,
        log: Callable[[str], None],
    ) -> None:
        self._member, self._leader, self._healthy, self._fetch = member, leader, healthy, fetch
        self._clock, self._log = clock, log
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._engine: bool | None = None
        self._brought: Current | None = None
        self._reason: str | None = None
        self._notice: Notice | None = None
        self._fetching: Current | None = None
        self._fetch_after_seconds = float("-inf")
        self._heard_seconds = float("-inf")
        self.turned_seconds = clock()

    def tell(self, event: Event) -> None:
        """From any thread or a signal handler."""
        self._inbox.put(event)

    @property
    def ready(self) -> bool:
        return self._engine is True and self._clock() - self._heard_seconds < AWAY_SECONDS

    def run(self) -> int:
        """Until it is told to stop: exit code 0. A notice alone does not end it; the leader drains, and the pods go."""
        threading.Thread(target=self._watch_engine, name="engine", daemon=True).start()
        while True:
            self.turned_seconds = self._clock()
            self._report()
            try:
                event = self._inbox.get(timeout=REPORT_SECONDS)
            except queue.Empty:
                continue
            match event:
                case Stop():
                    self._stopped.set()
                    self._pass_on_stop()
                    return 0
                case Crashed():
                    self._log(f"cannot go on: {event.reason}")
                    return 1
                case Notice():
                    self._log(f"notice for {event.reason}: the leader is told")
                    self._notice = event
                case Brought():
                    self._fetching, self._reason = None, event.reason
                    if event.reason is None:
                        self._brought = event.current
                    else:
                        self._log(f"version {event.current.version} was not fetched: {event.reason}")
                        self._fetch_after_seconds = self._clock() + REFETCH_SECONDS

    def _report(self) -> None:
        what = Report(
            member=self._member,
            engine=self._engine,
            brought=self._brought,
            notice=self._notice,
            reason=self._reason,
        )
        try:
            told = self._leader.report(what)
        except LeaderAway as error:
            if self._heard_seconds > float("-inf"):
                self._log(str(error))
            return
        self._heard_seconds = self._clock()
        wanted = told.target is not None and told.target != self._brought and told.state is not State.DRAINING
        if wanted and self._fetching is None and self._clock() >= self._fetch_after_seconds:
            self._fetching = told.target
            threading.Thread(target=self._bring, args=(told.target,), name="fetch", daemon=True).start()

    def _watch_engine(self) -> None:
        """In a thread of its own: an engine that hangs must not hold up a notice."""
        while not self._stopped.wait(REPORT_SECONDS if self._engine else START_SECONDS):
            self._engine = self._healthy()

    def _bring(self, current: Current) -> None:
        try:
            self._fetch(current)
        except (RuntimeFault, *SERVICE_ERRORS) as error:
            self._inbox.put(Brought(current, str(error)))
        except Exception as error:  # the boundary of a thread: silence would be worse than any error
            self._inbox.put(Crashed(f"fetch: {type(error).__name__}: {error}"))
        else:
            self._inbox.put(Brought(current))

    def _pass_on_stop(self) -> None:
        try:
            self._leader.ask_to_drain(self._member)
        except LeaderAway:
            self._log("the leader is gone already")


def answer(request: Request, follower: Follower, clock: Clock) -> Answer:
    """The follower's own probes."""
    match request.method, request.path:
        case "GET", "/live":
            return Answer(status=200 if clock() - follower.turned_seconds < group.LIVE_SECONDS else 503)
        case "GET", "/ready":
            return Answer(status=200 if follower.ready else 503)
        case _:
            return Answer(status=404)


def await_drain(
    ask: Callable[[], Told], look: Callable[[], Told], *, seconds: float, clock: Clock, wait: Callable[[float], object]
) -> bool:
    """The preStop hook: has the leader drain and returns when that is over, or at once where no leader listens. False
    where it took longer than `seconds`."""
    end = clock() + seconds
    try:
        told = ask()
        while told.state is not State.DONE:
            if clock() >= end:
                return False
            wait(1.0)
            told = look()
    except LeaderAway:
        pass
    return True
