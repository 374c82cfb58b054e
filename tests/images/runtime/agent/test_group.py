"""What pods of one engine tell each other, over HTTP, and that nothing else is understood."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.agent import effects as do
from moerl_runtime.agent import follow, group
from moerl_runtime.agent.core import View
from moerl_runtime.agent.group import LeaderAway, Report, Told
from moerl_runtime.agent.states import State
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.imds import Notice
from moerl_runtime.protocol import Current
from moerl_runtime.serve import Answer, Request, serving
from tests.images.runtime.agent.simulation import current

PATIENCE_SECONDS = 20.0


class Leader:
    """The leader's routes over a view that the test sets."""

    def __init__(self) -> None:
        self.view = View(state=State.SERVING, ready=True, target=current(1))
        self.told: list[do.Event] = []
        self.idle_seconds = 0.0

    def answer(self, request: Request) -> Answer:
        return group.answer(
            request,
            group_size=3,
            tell=self.told.append,
            view=lambda: self.view,
            idle_seconds=lambda: self.idle_seconds,
        )


@pytest.fixture
def leader() -> Iterator[tuple[Leader, str]]:
    made = Leader()
    with serving("127.0.0.1:0", made.answer) as url:
        yield made, url


def test_a_report_reaches_the_core_and_is_answered_with_what_to_bring(leader: tuple[Leader, str]) -> None:
    made, url = leader
    told = group.report(url, Report(member=2, engine=True, brought=current(0), reason="it takes time"))
    assert told == Told(state=State.SERVING, target=current(1))
    assert made.told == [do.Reported(2, current(0), True, "it takes time")]


def test_a_follower_that_has_not_looked_at_its_engine_says_so(leader: tuple[Leader, str]) -> None:
    made, url = leader
    group.report(url, Report(member=1, engine=None, brought=None))
    assert made.told == [do.Reported(1, None, None)]


def test_a_notice_of_a_follower_reaches_the_core_with_its_report(leader: tuple[Leader, str]) -> None:
    made, url = leader
    notice = Notice(reason="spot", text="{}")
    group.report(url, Report(member=1, engine=True, brought=None, notice=notice))
    assert made.told[-1] == do.Noticed(notice, 1)


def test_a_follower_that_is_stopped_has_the_leader_drain(leader: tuple[Leader, str]) -> None:
    made, url = leader
    assert group.ask_to_drain(url, 2).state is State.SERVING
    (stopped,) = made.told
    assert isinstance(stopped, do.Stopped)
    assert "pod 2" in stopped.why
    made.view = View(state=State.DONE, ready=False, target=None)
    assert group.state(url) == Told(state=State.DONE, target=None)


GOOD = asdict(Report(member=1, engine=True, brought=current(1), notice=Notice(reason="spot", text="x")))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"not json",
        json.dumps({**GOOD, "more": 1}).encode(),
        json.dumps({**GOOD, "member": 0}).encode(),
        json.dumps({**GOOD, "member": 3}).encode(),
        json.dumps({**GOOD, "member": True}).encode(),
        json.dumps({**GOOD, "member": "1"}).encode(),
        json.dumps({**GOOD, "engine": "yes"}).encode(),
        json.dumps({**GOOD, "brought": {"run": "x"}}).encode(),
        json.dumps({**GOOD, "brought": {**asdict(current(1)), "attempt": "1"}}).encode(),
        json.dumps({**GOOD, "notice": {"reason": "boredom", "text": ""}}).encode(),
        json.dumps({**GOOD, "notice": {"reason": "spot"}}).encode(),
        json.dumps({**GOOD, "reason": 7}).encode(),
        b"x" * (group.BODY_BYTES_MAX + 1),
    ],
)
def test_anything_but_a_report_of_this_group_is_refused_and_changes_nothing(body: bytes) -> None:
    made = Leader()
    found = made.answer(Request(method="POST", path="/group/report", body=body))
    assert found.status == 400
    assert b"error" in found.body
    assert made.told == []


@pytest.mark.parametrize("body", [b"{}", b'{"member": 9}', b'{"member": 1, "now": true}'])
def test_a_wrong_request_to_drain_is_refused(body: bytes) -> None:
    made = Leader()
    assert made.answer(Request(method="POST", path="/group/drain", body=body)).status == 400
    assert made.told == []


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/group/report"), ("POST", "/ready"), ("PUT", "/group/drain")]
)
def test_there_are_no_other_routes(method: str, path: str) -> None:
    assert Leader().answer(Request(method=method, path=path)).status == 404


def test_probes_say_whether_it_takes_tasks_and_whether_it_turns() -> None:
    made = Leader()

    def status(path: str) -> int:
        return made.answer(Request(method="GET", path=path)).status

    assert (status("/live"), status("/ready")) == (200, 200)
    made.view = View(state=State.DRAINING, ready=False, target=None)
    assert (status("/live"), status("/ready")) == (200, 503)
    made.idle_seconds = 61.0
    assert status("/live") == 503


def test_a_leader_that_is_away_or_talks_nonsense_is_away() -> None:
    with pytest.raises(LeaderAway):
        group.state("http://127.0.0.1:9")
    with (
        serving("127.0.0.1:0", lambda _: Answer(body=b'{"state": "asleep", "target": null}')) as url,
        pytest.raises(LeaderAway),
    ):
        group.state(url)


# --- the follower -----------------------------------------------------------------------------------------------------


class Line:
    """A leader on the other end: hands over what is reported and answers as it is told."""

    def __init__(self) -> None:
        self.reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.told = Told(state=State.SERVING, target=None)
        self.away = False
        self.asked_to_drain: list[int] = []

    def report(self, what: Report) -> Told:
        if self.away:
            raise LeaderAway("nobody")
        self.reports.put(what)
        return self.told

    def ask_to_drain(self, member: int) -> Told:
        self.asked_to_drain.append(member)
        if self.away:
            raise LeaderAway("nobody")
        return self.told

    def until(self, **wanted: Any) -> Report:
        """The first report that says this."""
        while True:
            found = self.reports.get(timeout=PATIENCE_SECONDS)
            if all(getattr(found, name) == value for name, value in wanted.items()):
                return found


class Running:
    """A follower in a thread of its own, with short waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(follow, "REPORT_SECONDS", 0.005)
        monkeypatch.setattr(follow, "START_SECONDS", 0.005)
        monkeypatch.setattr(follow, "REFETCH_SECONDS", 0.0)
        self.line, self.engine_up, self.now = Line(), True, 0.0
        self.fetched: list[Current] = []
        self.failures: list[Exception] = []
        self.logs: list[str] = []
        self.follower = follow.Follower(
            member=2,
            leader=self.line,
            healthy=lambda: self.engine_up,
            fetch=self._fetch,
            clock=lambda: self.now,
            log=self.logs.append,
        )
        self.code: list[int] = []
        self._thread = threading.Thread(target=lambda: self.code.append(self.follower.run()), daemon=True)
        self._thread.start()

    def _fetch(self, wanted: Current) -> Path:
        if self.failures:
            raise self.failures.pop(0)
        self.fetched.append(wanted)
        return Path("/models/x")

    def stop(self) -> int:
        self.follower.tell(follow.Stop())
        return self.ended()

    def ended(self) -> int:
        self._thread.join(PATIENCE_SECONDS)
        return self.code[0]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    made = Running(monkeypatch)
    yield made
    made.follower.tell(follow.Stop())


def test_a_follower_brings_what_the_leader_names_and_says_so(running: Running) -> None:
    running.line.until(brought=None)
    running.line.told = Told(state=State.SERVING, target=current(1))
    running.line.until(brought=current(1))
    running.line.told = Told(state=State.SERVING, target=current(2))
    running.line.until(brought=current(2))
    assert running.fetched == [current(1), current(2)]
    assert running.stop() == 0
    assert running.line.asked_to_drain == [2]


def test_a_fetch_that_fails_is_reported_and_tried_again(running: Running) -> None:
    running.failures = [RuntimeFault("disk", "/models", "is full", "Make room.")]
    running.line.told = Told(state=State.SERVING, target=current(1))
    failed = running.line.until(brought=None, reason="disk = '/models': is full. Make room.")
    assert failed.member == 2
    running.line.until(brought=current(1), reason=None)


def test_a_mistake_in_a_fetch_ends_the_follower(running: Running) -> None:
    running.failures = [KeyError("a mistake")]
    running.line.told = Told(state=State.SERVING, target=current(1))
    assert running.ended() == 1
    assert any("KeyError" in line for line in running.logs)


def test_a_notice_is_passed_on_at_once_and_again_to_a_leader_that_was_away(running: Running) -> None:
    running.line.until(notice=None)
    running.line.away = True
    notice = Notice(reason="spot", text="{}")
    running.follower.tell(notice)
    running.line.away = False
    running.line.until(notice=notice)
    running.line.until(notice=notice)


def test_an_engine_that_hangs_holds_up_no_notice(running: Running) -> None:
    running.line.until(engine=True)
    hung, let_go = threading.Event(), threading.Event()

    def hang() -> bool:
        hung.set()
        return let_go.wait(PATIENCE_SECONDS)

    running.follower._healthy = hang
    assert hung.wait(PATIENCE_SECONDS)
    notice = Notice(reason="spot", text="{}")
    running.follower.tell(notice)
    running.line.until(notice=notice)
    let_go.set()


def test_a_follower_that_is_started_again_does_not_call_its_engine_lost(running: Running) -> None:
    """It cannot know yet, and the leader would end the work of the whole engine."""
    assert running.line.reports.get(timeout=PATIENCE_SECONDS).engine is None
    while (found := running.line.reports.get(timeout=PATIENCE_SECONDS).engine) is None:
        pass
    assert found is True


def test_a_lost_engine_is_reported(running: Running) -> None:
    running.line.until(engine=True)
    running.engine_up = False
    running.line.until(engine=False)
    assert not running.follower.ready


def test_a_draining_leader_has_nothing_fetched(running: Running) -> None:
    running.line.told = Told(state=State.DRAINING, target=current(1))
    for _ in range(3):
        running.line.until(brought=None)
    assert running.fetched == []


def test_a_follower_is_ready_while_it_hears_its_leader(running: Running) -> None:
    running.line.until(engine=True)
    running.line.until(engine=True)
    assert running.follower.ready
    ready = follow.answer(Request(method="GET", path="/ready"), running.follower, lambda: running.now)
    assert ready.status == 200
    running.line.away = True
    while not running.line.reports.empty():
        running.line.reports.get()
    running.now = follow.AWAY_SECONDS + 1
    assert not running.follower.ready


def test_a_follower_that_is_stopped_without_a_leader_ends_all_the_same(running: Running) -> None:
    running.line.away = True
    assert running.stop() == 0


# --- the preStop hook -------------------------------------------------------------------------------------------------


def hook(states: list[State | None]) -> tuple[bool, list[float]]:
    """What the hook returns and how it waited; None: nobody listens."""
    waited: list[float] = []
    now = [0.0]

    def look() -> Told:
        state = states.pop(0)
        if state is None:
            raise LeaderAway("gone")
        return Told(state=state, target=None)

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    return follow.await_drain(look, look, seconds=3.0, clock=lambda: now[0], wait=wait), waited


@pytest.mark.parametrize(
    ("states", "waits"),
    [
        ([State.DRAINING, State.DRAINING, State.DONE], 2),
        ([State.DRAINING, None], 1),
        ([None], 0),
        ([State.DONE], 0),
    ],
)
def test_the_hook_waits_until_the_leader_is_done_or_gone(states: list[State | None], waits: int) -> None:
    drained, waited = hook(states)
    assert drained
    assert len(waited) == waits


def test_the_hook_waits_no_longer_than_it_may() -> None:
    drained, waited = hook([State.DRAINING] * 10)
    assert not drained
    assert sum(waited) == 3.0
