"""Agents in virtual time: the real core and the real `work` on services in memory and an engine that is a timetable.

Everything runs in one thread in the order of a heap, so a seed gives the same run every time. Killed agents leave their
leases behind as a lost node does.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moerl_runtime import protocol
from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import Core
from moerl_runtime.agent.exported import METRICS
from moerl_runtime.agent.follow import REPORT_SECONDS
from moerl_runtime.agent.grading import Grade
from moerl_runtime.agent.settings import Settings
from moerl_runtime.agent.states import State
from moerl_runtime.agent.weights import tag_of
from moerl_runtime.agent.work import Around, Queues, perform
from moerl_runtime.engine.answers import Answer
from moerl_runtime.engine.client import NotListening, Refused
from moerl_runtime.graders import GradeError
from moerl_runtime.imds import Notice
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Attempt, Current, TaskMessage, TaskPayload
from tests.images.runtime.agent.services import S3, Interfere, Moment, S3Client, Sqs, SqsClient, nothing

QUEUES = Queues(tasks="tasks", results="results", dead_letters="dead")
WEIGHTS = "weights/"
BASE = Path("/models/base")
FIRST = Attempt(run="run", number=1)
SETTINGS = Settings(
    lease_seconds=120,
    tasks_max=4,
    requests_max=16,
    drain_seconds=100.0,
    engine_arguments={"ep_size": 16, "moe_a2a_backend": "deepep_v2"},
    poll_seconds=10,
    current_seconds=5.0,
)


class Killed(Exception):
    """SIGKILL, at this very call."""


class World:
    """Time, services, and everything that is going to happen."""

    def __init__(self, seed: int = 0, *, duplicates: float = 0.0) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)  # noqa: S311 - a seed has to give the same run
        self.sqs = Sqs(lambda: self.now, self.chance, duplicates=duplicates)
        self.s3 = S3(lambda: self.now)
        self.sqs.watch = self._believes
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.metrics = Metrics(METRICS)
        """Of all agents together."""
        self.logs: list[str] = []

    def at(self, seconds: float, happens: Callable[[], None]) -> None:
        """After so many seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, happens))

    def run(self, until: Callable[[], bool], *, limit_seconds: float) -> None:
        end = self.now + limit_seconds
        while not until():
            assert self._heap, "nothing will ever happen again"
            when, _, happens = heapq.heappop(self._heap)
            assert when <= end, f"not over after {limit_seconds} s of virtual time:\n" + "\n".join(self.logs[-30:])
            self.now = when
            happens()

    def run_for(self, seconds: float) -> None:
        """Everything of the next seconds."""
        over: list[bool] = []
        self.at(seconds, lambda: over.append(True))
        self.run(lambda: bool(over), limit_seconds=seconds + 1)

    # --- the trainer's part ---

    def _believes(self, url: str, body: str) -> None:
        """A trainer reads what is announced, so nothing may be announced before it is stored."""
        if url == QUEUES.results:
            assert protocol.decode(protocol.ResultMessage, body).key in self.s3.objects, "announced and not stored"

    def point_at(self, current: Current) -> None:
        self.s3.put(WEIGHTS + protocol.CURRENT_NAME, protocol.encode(current).encode())

    def issue(self, group: int, *, samples: int = 4, of: Attempt = FIRST, **fields: Any) -> TaskMessage:
        key = protocol.task_key(of, group)
        payload = TaskPayload(
            group=group,
            prompt=f"prompt {group}",
            prompt_tokens=(group, 1, 2),
            samples=samples,
            sampling={"max_new_tokens": 4, "sampling_seed": 7},
            label="3",
            grader="exact",
        )
        self.s3.put(key, protocol.encode(payload).encode())
        message = TaskMessage(
            run=of.run, attempt=of.number, group=group, key=key, version_min=fields.pop("version_min", 0), **fields
        )
        self.sqs.send(QUEUES.tasks, protocol.encode(message))
        return message

    def stored(self, of: Attempt = FIRST) -> dict[int, set[int]]:
        """group → samples in the bucket."""
        found: dict[int, set[int]] = {}
        for key in self.s3.objects:
            if key.startswith(protocol.attempt_prefix(of) + "samples/"):
                group, sample = key.rsplit("/", 2)[1:]
                found.setdefault(int(group), set()).add(int(sample.removesuffix(".json")))
        return found

    def announced(self) -> dict[int, set[int]]:
        """group → samples that the result queue has, however often."""
        found: dict[int, set[int]] = {}
        for message in self.sqs.queue(QUEUES.results).messages.values():
            result = protocol.decode(protocol.ResultMessage, message.body)
            found.setdefault(result.group, set()).add(result.sample)
        return found

    def finished(self, groups: int, samples: int = 4) -> bool:
        """All samples stored and announced, and no task left."""
        whole = {group: set(range(samples)) for group in range(groups)}
        return not self.sqs.queue(QUEUES.tasks).messages and self.announced() == whole and self.stored() == whole


@dataclass
class Asked:
    effect: do.Generate
    answer: Callable[[do.Event], None]
    tag: str
    tags: list[str] = field(default_factory=list)


class Engine:
    """A timetable of answers. Keeps SGLang's rules for pauses, loads and aborts."""

    def __init__(self, world: World, *, seconds: Callable[[], float] = lambda: 2.0) -> None:
        self.world, self.seconds = world, seconds
        self.tag = "0"
        self.shown: dict[str, object] = dict(SETTINGS.engine_arguments)
        self.alive, self.paused = True, False
        self.stuck = False
        """Aborts are taken and nothing ends: a hung scheduler."""
        self.bad_paths: set[str] = set()
        self.half_loaded = False
        self.marked = False
        """Its node has the mark of an agent that loaded something."""
        self.spans = True
        self.asked: dict[str, Asked] = {}
        self.met_half_loaded = 0
        """Requests sent to weights that are neither old nor new."""
        self.done_while_paused: list[str] = []
        self.calls: list[str] = []

    def ask(self, effect: do.Generate, answer: Callable[[do.Event], None]) -> None:
        if not self.alive:
            self.world.at(0.01, lambda: answer(do.Unanswered(effect, "lost", "refused")))
            return
        assert effect.request_id not in self.asked, "a live rid was used again: SGLang answers 400"
        self.met_half_loaded += self.half_loaded
        self.asked[effect.request_id] = Asked(effect, answer, self.tag, [self.tag])
        self.world.at(self.seconds(), lambda: self._finish(effect.request_id))

    def die(self) -> None:
        self.alive = False
        for name in list(self.asked):
            asked = self.asked.pop(name)
            asked.answer(do.Unanswered(asked.effect, "lost", "connection reset"))

    def restart(self) -> None:
        self.alive, self.paused, self.half_loaded, self.tag = True, False, False, "0"
        self.done_while_paused.clear()

    def forget_clients(self) -> None:
        """The agent is gone and its connections with it; SGLang notices after a while."""
        for asked in self.asked.values():
            asked.answer = lambda _: None

    def _finish(self, name: str) -> None:
        if name not in self.asked or not self.alive:
            return
        if self.paused or self.stuck:
            self.done_while_paused.append(name)
            return
        asked = self.asked.pop(name)
        tokens = (5, 6, asked.effect.sample)
        tags = tuple(dict.fromkeys(asked.tags)) if self.spans else (self.tag,)
        answer = Answer(
            ending="completed",
            tokens=tokens,
            text=f"it is {asked.effect.sample}",
            log_probs=(-0.1, -0.2, -0.3),
            tags=tags,
            spans=self.spans,
        )
        asked.answer(do.Answered(asked.effect, answer))

    # --- EngineApi ---

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if not self.alive:
            raise NotListening(f"{name}: refused")

    def healthy(self) -> bool:
        self._call("healthy")
        return True

    def weight_tag(self) -> str:
        self._call("weight_tag")
        return self.tag

    def arguments(self, names: Sequence[str]) -> dict[str, object]:
        self._call("arguments")
        return {name: self.shown.get(name) for name in names}

    def generate(self, **_: Any) -> Answer:
        raise AssertionError("the simulation asks the timetable")

    def abort(self, request_id: str) -> None:
        self._call("abort")
        self._end({name for name in self.asked if name.startswith(request_id)})

    def abort_all(self) -> None:
        self._call("abort_all")
        self._end(set(self.asked))

    def _end(self, names: set[str]) -> None:
        if self.paused or self.stuck:
            return  # running requests of a pause end at its end
        for name in names:
            asked = self.asked.pop(name)
            event = do.Answered(asked.effect, Answer(ending="aborted"))
            self.world.at(0.05, lambda asked=asked, event=event: asked.answer(event))  # type: ignore[misc]

    def pause(self, mode: str) -> None:
        self._call("pause")
        assert mode == "retract"
        self.paused = True

    def resume(self) -> None:
        self._call("resume")
        self.paused = False
        for name in self.done_while_paused:
            self.world.at(0.5, lambda name=name: self._finish(name))  # type: ignore[misc]
        self.done_while_paused.clear()

    def load(self, path: str, *, tag: str, flush: bool) -> None:
        self._call("load")
        assert not (flush and self.asked), "a flush with live requests ends SGLang's scheduler"
        if path in self.bad_paths:
            self.half_loaded = True
            raise Refused(400, "rolling back")
        self.tag, self.half_loaded = tag, False
        for asked in self.asked.values():
            asked.tags.append(tag)

    def live_requests(self) -> int:
        self._call("live_requests")
        return len(self.asked)


class Agent:
    """One process: a core, its effects under way, and the clock of its own machine."""

    def __init__(
        self,
        world: World,
        engine: Engine,
        name: str = "agent",
        *,
        settings: Settings = SETTINGS,
        interfere: Interfere = nothing,
        latency: Callable[[], float] = lambda: 0.02,
        skew_seconds: float = 0.0,
        fetch_seconds: float = 3.0,
        load_seconds: float = 5.0,
        grade: Grade | None = None,
    ) -> None:
        self.world, self.engine, self.name = world, engine, name
        self.metrics = Metrics(METRICS)
        self.core = Core(settings, base=BASE, touched=engine.marked, metrics=self.metrics, log=self._log)
        self.alive = True
        self.ended_seconds: float | None = None
        self.hung: set[type[do.Effect]] = set()
        """Effects that never come back."""
        self.performed: list[do.Effect] = []
        self._interfere, self._latency, self._skew = interfere, latency, skew_seconds
        self._fetch_seconds, self._load_seconds = fetch_seconds, load_seconds
        self._due_seconds = float("inf")
        engine.forget_clients()
        self.around = Around(
            engine=engine,
            s3=S3Client(world.s3, self._fault),
            sqs=SqsClient(world.sqs, self._fault),
            bucket="bucket",
            weights_prefix=WEIGHTS,
            queues=QUEUES,
            lease_seconds=settings.lease_seconds,
            failures_max=settings.failures_max,
            worker=name,
            clock=self._clock,
            unix_seconds=self._clock,
            fetch=self._fetch,
            mark_loading=self._mark,
            grade=grade or self.grade,
            buffer=lambda *_: None,
        )
        self.apply(self.core.begin(self._clock()))
        self.tell(do.Looked())

    def kill(self) -> None:
        """SIGKILL: nothing that is under way comes back."""
        self.alive = False
        self.engine.forget_clients()

    def tell(self, event: do.Event) -> None:
        if self.alive:
            self.apply(self.core.handle(event, self._clock()))

    def notice(self, reason: str = "spot") -> None:
        self.tell(do.Noticed(Notice(reason=reason, text="{}")))  # type: ignore[arg-type]

    def apply(self, effects: list[do.Effect]) -> None:
        for effect in effects:
            self._begin(effect)
        if self.core.state is State.DONE:
            self.alive, self.ended_seconds = False, self.world.now
            self.engine.forget_clients()
            return
        due = self.core.next_seconds - self._skew
        if due < self._due_seconds:
            self._due_seconds = due
            self.world.at(max(0.0, due - self.world.now), lambda: self._wake(due))

    def grade(self, payload: TaskPayload, text: str) -> tuple[float, dict[str, Any]]:
        if payload.grader == "broken":
            raise GradeError("it always fails")
        return float(len(text)), {}

    def _wake(self, due_seconds: float) -> None:
        if due_seconds != self._due_seconds:
            return  # an earlier one was set after it
        self._due_seconds = float("inf")
        if self.alive:
            self.apply(self.core.due(self._clock()))

    def _begin(self, effect: do.Effect) -> None:
        self.performed.append(effect)
        if type(effect) in self.hung:
            return
        if isinstance(effect, do.Generate):
            self.engine.ask(effect, self.tell)
        elif isinstance(effect, do.Receive):
            self._poll(effect, self.world.now + effect.wait_seconds)
        else:
            seconds = self._latency()
            seconds += self._fetch_seconds if isinstance(effect, do.Fetch) else 0.0
            seconds += self._load_seconds if isinstance(effect, do.Load) else 0.0
            self.world.at(seconds, lambda: self._perform(effect))

    def _poll(self, effect: do.Receive, until_seconds: float) -> None:
        """A long poll: looks often, returns at the first message or at its end. It was asked for when it began."""
        began = self._clock()

        def look() -> None:
            if self.alive and not self.world.sqs.visible(QUEUES.tasks) and self.world.now < until_seconds:
                self.world.at(0.5, look)
            else:
                self._perform(effect, replace(self.around, clock=lambda: began))

        self.world.at(self._latency(), look)

    def _perform(self, effect: do.Effect, around: Around | None = None) -> None:
        if not self.alive:
            return
        try:
            event = perform(effect, around or self.around)
        except Killed:
            self.kill()
            return
        self.world.at(self._latency(), lambda: self.tell(event))

    def _fetch(self, current: Current) -> Path:
        return BASE if current.manifest is None else Path(f"/models/{tag_of(current)}")

    def _mark(self) -> None:
        self.engine.marked = True

    def _fault(self, name: str, moment: Moment) -> None:
        self._interfere(name, moment)

    def _clock(self) -> float:
        return self.world.now + self._skew

    def _log(self, line: str) -> None:
        self.world.logs.append(f"{self.world.now:9.2f} {self.name}: {line}")


class Member:
    """A follower of the agent's group: says every two seconds what it said last."""

    def __init__(self, world: World, agent: Agent, member: int = 1) -> None:
        self.world, self.agent, self.member = world, agent, member
        self.last: do.Reported | None = None
        self._repeat()

    def say(self, brought: Current | None = None, *, engine: bool | None = True, reason: str | None = None) -> None:
        self.last = do.Reported(self.member, brought, engine, reason)
        self.agent.tell(self.last)

    def fall_silent(self) -> None:
        self.last = None

    def _repeat(self) -> None:
        if self.last is not None:
            self.agent.tell(self.last)
        self.world.at(REPORT_SECONDS, self._repeat)


def current(version: int = 0, *, attempt: int = 1, run: str = "run") -> Current:
    manifest = f"weights/{run}/{attempt}/{version}/manifest.json" if version else None
    return Current(run=run, attempt=attempt, version=version, manifest=manifest)
