"""What an agent does next, as a function of what happened: no thread, no clock, no network.

`handle` takes one event and returns the effects it asks for; each effect is answered by one event. A failed effect is
asked for again later, since every one may be done twice: samples are stored once by name, a result may be announced twice,
a deleted message may be deleted again. So an agent may end between any two effects, and whoever leases its tasks after it
does what is left.

Order of a drain, for a budget of 100 s; a Spot notice leaves 120:

    at once   nothing is leased or begun; the router forgets the engine; a pause ends; tasks not begun are given back
    to 60 s   what runs may end by itself, is published, and its task is deleted
    then      abort of everything, again each second until the last reply of the ledger is read
    + 5 s     every task that is not finished is given back, whatever the engine does
    at 95 s   the end, whatever anybody does
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.agenda import Agenda
from moerl_runtime.agent.ledger import Ledger
from moerl_runtime.agent.settings import (
    ABORT_SECONDS,
    COUNT_SECONDS,
    DEPTH_SECONDS,
    GIVE_BACK_SECONDS,
    HEAR_SECONDS,
    PROBE_SECONDS,
    RETRY_SECONDS,
    START_PROBE_SECONDS,
    STOP_SHARE,
    UNHEALTHY_PROBES,
    UNREACHABLE_PROBES,
    WORK_SHARE,
    Settings,
)
from moerl_runtime.agent.states import State, Turn, after
from moerl_runtime.agent.tasks import Tasks
from moerl_runtime.agent.weights import Loaded, Weights
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Current
from moerl_runtime.weights.retain import REPORT_SECONDS

ORDERLY, BROKEN, LEFT_LEASED = 0, 1, 3
"""Exit codes: drained; cannot serve; the budget ended before every task was given back (its lease runs out by itself)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What other threads may know of the core."""

    state: State
    ready: bool
    target: Current | None
    """What the pods of the group have to bring."""


@dataclass(slots=True)
class Drain:
    began_seconds: float
    aborting_since: float | None = None
    deregistering: bool = False
    others_live: int = 0
    """Requests of the router's clients."""
    calling: bool = False
    """An abort is under way: a stuck engine gets no second one."""


class Core:
    """One agent. `base` is the directory of the base model, which the engine was started from; `touched` says that an agent
    before this one may have loaded something else."""

    def __init__(
        self, settings: Settings, *, base: Path, touched: bool, metrics: Metrics, log: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.state = State.STARTING
        self.exit_code = ORDERLY
        self.ledger = Ledger()
        self._metrics, self._log = metrics, log
        self._agenda = agenda = Agenda()
        self.weights = Weights(agenda, self.ledger, settings, base=base, touched=touched, metrics=metrics, log=log)
        self.tasks = Tasks(agenda, self.ledger, self.weights, settings, metrics=metrics, log=log)
        self._engine_up = False
        self._greeted = False
        """The engine that answered the probe is told to forget a former agent, or put on the router's list, and asked whether
        it is the planned one."""
        self._probing = False
        self._next_probe_seconds = 0.0
        self._suspected = False
        """It did not answer a request: until a probe finds it well it gets no other one to lose."""
        self._bad_probes = 0
        self._probed_weights: Loaded | None = None
        """What was loaded when the probe that is under way began: an answer that a reload overtook says nothing."""
        self._placed_for: Loaded | None = None
        self._looked = False
        self._drain: Drain | None = None

    def begin(self, now: float) -> list[do.Effect]:
        """The first effects."""
        self._agenda.now = now
        self._probe()
        for name in ("current", "extend", "depth", "report", "hear"):
            self._agenda.later(0.0, do.Due(name))
        return self.due(now)

    def handle(self, event: do.Event, now: float) -> list[do.Effect]:
        self._agenda.now = now
        self._apply(event)
        self._go_on()
        return self._agenda.taken()

    def due(self, now: float) -> list[do.Effect]:
        """Effects of the timers that have run out."""
        self._agenda.now = now
        while (timer := self._agenda.run_out()) is not None:
            self._timer(timer)
        self._go_on()
        return self._agenda.taken()

    @property
    def over(self) -> bool:
        return self.state is State.DONE

    @property
    def next_seconds(self) -> float:
        """When `due` has to be called at the latest."""
        return self._agenda.next_seconds

    @property
    def view(self) -> View:
        reload = self.weights.reload
        return View(
            state=self.state, ready=self._ready(), target=reload.target if reload is not None else self.weights.current
        )

    # --- what happened ---

    def _apply(self, event: do.Event) -> None:
        match event:
            case do.Answered():
                self.tasks.answered(event)
            case do.Published():
                self.tasks.published(event)
            case do.Done():
                self._done(event.effect)
            case do.TaskRead():
                self.tasks.read(event)
            case do.Arrived():
                self.tasks.arrived(event, engine_up=self._engine_up)
            case do.Unanswered():
                if event.kind == "lost":
                    self._suspected = True
                    self._probe()
                self.tasks.unanswered(event)
            case do.NotDone():
                self._not_done(event.effect, event.reason)
            case do.Ungraded():
                self.tasks.ungraded(event)
            case do.GraderBusy():
                self.tasks.grader_busy(event)
            case do.TaskUnreadable():
                self.tasks.unreadable(event)
            case do.FailureSent():
                self.tasks.sent_again(event)
            case do.Extended():
                self.tasks.extended(event)
            case do.CurrentRead():
                self.weights.looked(event)
                self.tasks.place_again()
            case do.Fetched():
                self.weights.fetched(event)
            case do.LoadRefused():
                self.weights.refused(event)
            case do.Verified():
                self.weights.verified(event)
            case do.Reported():
                self.weights.reported(event)
            case do.Inspected():
                self._inspected(event.found)
            case do.Probed() if event.listening:
                self._probed(event.tag)
            case do.Probed():
                self.weights.touched = False  # whatever comes up next has just been started
                self._not_probed("nobody listens")
            case do.Depths():
                self.tasks.held = event.results > self.settings.results_max
            case do.Live():
                self._counted(event.requests)
            case do.Looked():
                self._looked = True
            case do.Noticed():
                self._drain_for(event.notice.reason, f"pod {event.member}: {event.notice.text}")
            case do.Stopped():
                self._drain_for("stop", event.why)
            case do.Crashed():
                self._break(f"{event.where} ended: {event.reason}")
            case do.Due():
                self._timer(event)

    def _timer(self, due: do.Due) -> None:
        match due.name:
            case "sample":
                self.tasks.ask_again(due.lease, due.sample)
            case "retry" if due.effect is not None:
                self._again(due.effect)
            case "pull":
                self.tasks.receiving = False
            case "probe" if self._agenda.now >= self._next_probe_seconds:
                self._probe()
            case "current":
                if self._drain is None and self.settings.takes_tasks:
                    self.weights.look()
                self._agenda.later(self.settings.current_seconds, do.Due("current"))
            case "hear":
                self.weights.hear()
                self._agenda.later(HEAR_SECONDS, do.Due("hear"))
            case "extend":
                self.tasks.extend()
                self._agenda.later(self.settings.lease_seconds / 8, do.Due("extend"))
            case "depth":
                if self.state is State.SERVING and self.settings.takes_tasks:
                    self._agenda.do(do.Depth())
                self._agenda.later(DEPTH_SECONDS, do.Due("depth"))
            case "report":
                self.weights.report()
                self._agenda.later(REPORT_SECONDS, do.Due("report"))
            case "bad":
                self.weights.forget_bad()
            case "count" if self._drain is not None and self._drain.others_live:
                self._agenda.do(do.CountLive())
            case "abort":
                self._abort()
            case "overdue":
                self._overdue()
            case _:  # "go on", a count that nobody needs, a probe that another has replaced: the time has come, and that is all
                pass

    def _go_on(self) -> None:
        """Whatever it was that happened: what can be begun now."""
        self._mind_engine()
        if self.state is not State.DRAINING and self.state is not State.DONE:
            if self._engine_up and self.settings.takes_tasks:
                self.weights.go_on()
            if self.weights.loaded is not self._placed_for:
                self._placed_for = self.weights.loaded
                self.tasks.place_again()
            if self.state is State.STARTING and self._can_serve():
                self._turn(Turn.READY)
            if self._may_submit():
                self.tasks.submit()
            if self._ready() and self.settings.takes_tasks:
                self.tasks.pull()
        elif self.state is State.DRAINING:
            self._settle()
        self._measure()

    def _mind_engine(self) -> None:
        if self.weights.broken is not None:
            reason, self.weights.broken = self.weights.broken, None
            self._break(reason)
        if self.weights.lost is not None:
            reason, self.weights.lost = self.weights.lost, None
            self._engine_lost(reason, blame=False)
            if self._drain is not None:
                self.tasks.trusted = False
                self._abort()

    def _can_serve(self) -> bool:
        return (
            self._engine_up
            and self._looked
            and self.weights.complete_group()
            and (not self.settings.takes_tasks or self.weights.serves_current())
        )

    def _may_submit(self) -> bool:
        return self._engine_up and not self._suspected and self.weights.serves_current() and not self.weights.swapping

    def _ready(self) -> bool:
        return self.state is State.SERVING and self._can_serve()

    def _turn(self, turn: Turn) -> None:
        before, self.state = self.state, after(self.state, turn)
        if before is not self.state:
            self._log(f"{before.value} -> {self.state.value} ({turn.value})")

    def _measure(self) -> None:
        self._metrics.set("moerl_agent_ready", self._ready())
        self._metrics.set("moerl_agent_tasks_in_flight", len(self.ledger.leases))
        self._metrics.set("moerl_agent_held", self.tasks.held)
        if self.weights.loaded is not None:
            self._metrics.set("moerl_agent_weight_version", self.weights.loaded.version)
        if self._drain is not None:
            self._metrics.set("moerl_agent_draining_seconds", self._agenda.now - self._drain.began_seconds)

    # --- the engine ---

    def _probe(self) -> None:
        if not self._probing:
            self._probing, self._probed_weights = True, self.weights.loaded
            self._agenda.do(do.Probe())

    def _probe_after(self, seconds: float) -> None:
        """The next one, instead of any that was planned."""
        self._next_probe_seconds = self._agenda.now + seconds
        self._agenda.later(seconds, do.Due("probe"))

    def _probed(self, tag: str | None) -> None:
        self._probing = False
        self._probe_after(PROBE_SECONDS if self._engine_up else START_PROBE_SECONDS)
        if self.weights.swapping or self._drain is not None:
            return
        if not self._engine_up:
            if tag is not None and not self._greeted:
                self._greeted = True
                self.weights.engine_began(tag)
                self._agenda.do(do.Reset() if self.settings.takes_tasks else self._inspect())
            return
        self._bad_probes = 0 if tag is not None else self._bad_probes + 1
        self._suspected = self._suspected and tag is None
        loaded = self.weights.loaded
        expected = loaded.tag if loaded is not None and loaded is self._probed_weights else tag
        if self._bad_probes >= UNHEALTHY_PROBES:
            self._engine_lost("it says that it is not healthy")
        elif self.settings.takes_tasks and tag is not None and tag != expected:
            self._engine_lost(f"it was started again, with weights {tag}")

    def _inspect(self) -> do.Inspect:
        return do.Inspect(tuple(self.settings.engine_arguments))

    def _inspected(self, found: Mapping[str, object]) -> None:
        if not self._greeted or self._engine_up or self._drain is not None:
            return
        wrong = [
            f"{name} is {found.get(name)!r}, planned {planned!r}"
            for name, planned in self.settings.engine_arguments.items()
            if found.get(name) != planned
        ]
        if wrong:
            self._greeted = False
            self._break(f"the engine is not as planned: {', '.join(wrong)}; compare its command and its log")
        elif self.settings.takes_tasks:
            self._engine_up = True
        else:
            self._agenda.do(do.Register())

    def _not_probed(self, reason: str) -> None:
        self._probing = False
        self._probe_after(START_PROBE_SECONDS)
        if self.weights.swapping or self._drain is not None or not self._engine_up:
            return
        self._bad_probes += 1
        if self._bad_probes >= UNREACHABLE_PROBES:
            self._engine_lost(reason)

    def _engine_lost(self, reason: str, *, blame: bool = True) -> None:
        self._log(f"the engine is lost: {reason}")
        self._turn(Turn.ENGINE_LOST)
        self._engine_up, self._greeted, self._suspected, self._bad_probes = False, False, False, 0
        self.weights.engine_ended()
        if self._drain is None:
            self.tasks.engine_lost(reason, blame=blame)

    def _break(self, reason: str) -> None:
        """It cannot serve and cannot mend it: what it has goes back at once, and it ends with an error."""
        if self.state is State.DONE:
            return
        self._log(f"cannot go on: {reason}")
        self.exit_code = BROKEN
        self.tasks.trusted = False
        if self._drain is None:
            self._start_drain(Turn.BROKEN)
        self._abort()

    # --- drain ---

    def _drain_for(self, reason: str, text: str) -> None:
        if self._drain is not None:
            return
        if self._suspected:
            # Where an engine's end is its pod's, the stop may come before the probes that tell; what ended it has to be counted.
            self._engine_lost("it did not answer just before a drain")
        self._log(f"drains for {reason}: {text}")
        self._metrics.add("moerl_agent_interruptions_total", reason=reason)
        self._start_drain(Turn.NOTICE)
        self._agenda.later(WORK_SHARE * self.settings.drain_seconds, do.Due("abort"))

    def _start_drain(self, turn: Turn) -> None:
        self._turn(turn)
        self._drain = drain = Drain(self._agenda.now)
        self.tasks.draining = True
        if self.tasks.receiving:
            self._agenda.later(max(0.0, self.tasks.poll_ends_seconds - self._agenda.now), do.Due("go on"))
        self._agenda.later(STOP_SHARE * self.settings.drain_seconds, do.Due("overdue"))
        if not self.settings.takes_tasks and self._greeted:
            drain.deregistering, drain.others_live = True, 1  # until the engine has counted
            self._agenda.do(do.Deregister())
            self._agenda.do(do.CountLive())
        self.weights.drain()

    def _counted(self, requests: int) -> None:
        if self._drain is not None:
            self._drain.others_live = requests
            self._agenda.later(COUNT_SECONDS, do.Due("count"))

    def _abort(self) -> None:
        """Again each second, until nothing of the ledger runs any more."""
        drain = self._drain
        if drain is None or self.state is not State.DRAINING:
            return
        if drain.aborting_since is None:
            drain.aborting_since = self._agenda.now
            self._agenda.later(GIVE_BACK_SECONDS, do.Due("go on"))
        if not self.ledger.runs and not drain.others_live:
            return
        self._agenda.later(ABORT_SECONDS, do.Due("abort"))
        if not drain.calling:
            drain.calling = True
            self.weights.let_go()
            self._agenda.do(do.AbortAll())

    def _settle(self) -> None:
        """Gives back what ended unfinished, or is late, and ends when nothing is left."""
        drain = self._drain
        assert drain is not None, "draining has begun"
        since = drain.aborting_since
        late = since is not None and self._agenda.now - since >= GIVE_BACK_SECONDS
        self.tasks.give_back([lease for lease in self.ledger.open() if late or lease.idle])
        polls = self.tasks.receiving and self._agenda.now < self.tasks.poll_ends_seconds
        # A router that is away finds out by itself, in minutes.
        deregistering = drain.deregistering and since is None
        live = self.ledger.runs or drain.others_live or polls or deregistering
        if not self.ledger.leases and not live:
            self._turn(Turn.SETTLED)

    def _overdue(self) -> None:
        if self.state is not State.DRAINING:
            return
        left = len(self.ledger.leases)
        if left:
            self._log(
                f"the time to drain is over; {left} tasks were not given back, their leases run out by themselves"
            )
            self.exit_code = self.exit_code or LEFT_LEASED
        self._turn(Turn.OVERDUE)

    # --- effects that ended ---

    def _done(self, effect: do.Effect) -> None:
        match effect:
            case do.Delete():
                self.tasks.close(effect.lease, effect.outcome)
            case do.GiveBack():
                for number in effect.leases:
                    self.tasks.close(number, "returned")
            case do.Pause():
                self.weights.paused()
            case do.Load():
                self.weights.load_ended(effect)
            case do.Resume():
                self.weights.resumed()
            case do.Bury():
                self._metrics.add("moerl_agent_tasks_total", outcome="dead_lettered")
            case do.Reset() if self._greeted:
                self._agenda.do(self._inspect())
            case do.Register() if self._greeted:
                self._engine_up = True
            case do.Deregister() if self._drain is not None:
                self._drain.deregistering = False
            case do.AbortAll() if self._drain is not None:
                self._drain.calling = False
            case _:
                pass

    def _not_done(self, effect: do.Effect, reason: str) -> None:
        draining = self._drain is not None
        match effect:
            case do.Probe():
                self._not_probed(reason)
                return
            case do.ReadCurrent():
                self.weights.not_looked()
            case do.Fetch():
                self.weights.not_fetched(effect, reason)
                return
            case do.Receive() if draining:
                self.tasks.receiving = False
            case do.Receive():
                self._agenda.later(RETRY_SECONDS, do.Due("pull"))
            case do.Pause() if draining:
                self.weights.paused()  # it may have come into force
            case do.Pause() | do.Load() | do.Verify() | do.Resume():
                self.weights.failed(effect, reason)
            case do.Reset() | do.Inspect():
                self._greeted = False
            case do.AbortAll() if self._drain is not None:
                self._drain.calling = False
            case (
                do.Publish() | do.Delete() | do.GiveBack() | do.Fail() | do.Bury() | do.ReadTask() | do.Register()
                | do.Deregister() | do.CountLive()
            ):  # fmt: skip
                self._agenda.later(RETRY_SECONDS / 2 if draining else RETRY_SECONDS, do.Due("retry", effect))
            case _:  # Extend, Depth, ReportLoaded and aborts come again by themselves
                pass
        self._log(f"{type(effect).__name__}: {reason}")

    def _again(self, effect: do.Effect) -> None:
        """Asks for a failed effect again, unless nobody needs it any more."""
        match effect:
            case do.Publish() | do.ReadTask():
                needed = self.ledger.wanted(effect.lease) is not None
            case do.Delete() | do.Fail():
                needed = effect.lease in self.ledger.leases
            case do.Register():
                needed = self._drain is None
            case do.CountLive():
                needed = self._drain is not None
            case _:
                needed = True
        if needed:
            self._agenda.do(effect)
