"""Which weights the engine holds, which it should hold, and the way from one to the other.

A reload, by engine-contract: fetch to every node while the engine serves on; then, where requests are live, pause them
(retract: they give up their KV and are computed anew), load without a flush (a failed flush ends SGLang's scheduler), verify
the tag, continue. Without live requests there is nothing to pause, and the cache is flushed. Either way new requests never
meet KV of old weights, since each version has a cache key of its own.

A load that SGLang refuses leaves neither the old weights nor the new: the last good ones are loaded again, and if that
fails the engine serves no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.agenda import Agenda
from moerl_runtime.agent.ledger import Ledger
from moerl_runtime.agent.settings import (
    BAD_WEIGHTS_SECONDS,
    HEAR_SECONDS,
    REFETCH_SECONDS,
    SILENT_LOOKS,
    Settings,
)
from moerl_runtime.arguments import digits
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Attempt, Current

FRESH_TAGS = frozenset({"0", "default"})
"""What an engine calls the weights that it was started with."""
_VERSIONS = 10**8


class Step(StrEnum):
    FETCHING = "fetching"
    GATHERING = "gathering"
    """Until every node of the engine has its copy."""
    PAUSING = "pausing"
    LOADING = "loading"
    VERIFYING = "verifying"
    RESUMING = "resuming"


SWAPPING = frozenset({Step.PAUSING, Step.LOADING, Step.VERIFYING, Step.RESUMING})
"""Nothing is sent to the engine meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Weights that the engine holds, verified. `of` is None for a base model that no attempt has claimed yet."""

    path: Path
    tag: str
    version: int
    of: Attempt | None


@dataclass(slots=True, kw_only=True)
class Reload:
    target: Current
    began_seconds: float
    step: Step = Step.FETCHING
    path: Path | None = None
    tag: str = ""
    """What is being loaded: the answer to a load that was given up before says nothing about this one."""
    live: bool = False
    """Requests are held by a pause."""
    restoring: bool = False
    let_go: bool = False
    """A drain has ended the pause before the load was over."""


def tag_of(current: Current) -> str:
    """Digits only: whoever reads staleness out of the engine's answers expects a number."""
    return f"{current.attempt:06d}{current.version:08d}"


def version_of(tag: str, of: Attempt) -> int | None:
    """The version that a tag names, None where it is not of that attempt."""
    if tag in FRESH_TAGS:
        return 0
    number = digits(tag)
    if number is None:
        return None
    attempt, version = divmod(number, _VERSIONS)
    return version if attempt == of.number else None


class Weights:
    """Part of a core. What it finds that the core has to know stands in `lost` and `broken` until it is taken."""

    def __init__(
        self,
        agenda: Agenda,
        ledger: Ledger,
        settings: Settings,
        *,
        base: Path,
        touched: bool,
        metrics: Metrics,
        log: Callable[[str], None],
    ) -> None:
        self._agenda, self._ledger, self._settings = agenda, ledger, settings
        self._base, self._metrics, self._log = base, metrics, log
        self.current: Current | None = None
        self.looked_seconds = float("-inf")
        """When the last look at current.json began."""
        self.loaded: Loaded | None = None
        self.reload: Reload | None = None
        self.members: dict[int, do.Reported] = {}
        """The last report of every follower that is heard."""
        self._unheard: dict[int, int] = {}
        """Looks since then, by its number."""
        self.touched = touched
        """Something was loaded since the engine's process began. A load that failed leaves the engine's first tag on weights
        that are not its first any more, so the tag alone is not believed then."""
        self.lost: str | None = None
        self.broken: str | None = None
        self._etag: str | None = None
        self._reading = False
        self._served: Current | None = None
        """What the last reload loaded."""
        self._bad: Current | None = None
        self._fetch_after_seconds = float("-inf")

    # --- state ---

    @property
    def swapping(self) -> bool:
        return self.reload is not None and self.reload.step in SWAPPING

    @property
    def held(self) -> bool:
        """Whether a pause of ours may hold requests."""
        return self.swapping and self.reload is not None and self.reload.live

    @property
    def uncertain(self) -> bool:
        """Whether nobody knows which weights an answer of this moment is from."""
        return self.reload is not None and self.reload.let_go and self.reload.step in (Step.LOADING, Step.VERIFYING)

    def serves(self, of: Attempt) -> bool:
        """Whether the engine holds weights of that attempt, the newest or some before."""
        return self.loaded is not None and self.loaded.of == of

    def serves_current(self) -> bool:
        return self.current is not None and self.serves(self.current.of)

    def cannot_load(self, current: Current) -> bool:
        """Whether the engine refused it a moment ago."""
        return current == self._bad

    def complete_group(self) -> bool:
        """Whether every follower is there, with its part of the engine."""
        return sum(report.engine is True for report in self.members.values()) >= self._settings.group_size - 1

    # --- current.json ---

    def look(self) -> None:
        """Reads current.json, unless that is under way."""
        if not self._reading:
            self._reading = True
            self._agenda.do(do.ReadCurrent(self._etag))

    def looked(self, event: do.CurrentRead) -> None:
        self._reading = False
        self.looked_seconds = event.asked_seconds
        if event.changed:
            self.current, self._etag = event.current, event.etag

    def not_looked(self) -> None:
        self._reading = False

    # --- the engine's own weights ---

    def engine_began(self, tag: str) -> None:
        """An engine came up, or this agent found one that was up."""
        # What another process loaded is not trusted either: it may be another run's version of the same number.
        fresh = tag in FRESH_TAGS and not self.touched
        self.loaded = Loaded(path=self._base, tag=tag, version=0, of=None) if fresh else None

    def engine_ended(self) -> None:
        self.loaded, self.reload = None, None

    # --- reload ---

    def go_on(self) -> None:
        """Begins a reload where one is due."""
        current, loaded = self.current, self.loaded
        if self.reload is not None or current is None or current == self._bad:
            return
        if loaded is not None and _holds(loaded, current):
            if loaded.of != current.of:
                self.loaded = replace(loaded, of=current.of)
        elif self._agenda.now >= self._fetch_after_seconds:
            self.reload = Reload(target=current, began_seconds=self._agenda.now)
            self._agenda.do(do.Fetch(current))

    def fetched(self, event: do.Fetched) -> None:
        reload = self.reload
        if reload is not None and reload.step is Step.FETCHING and reload.target == event.current:
            reload.path, reload.step = event.path, Step.GATHERING
            self._swap_if_gathered(reload)

    def not_fetched(self, effect: do.Fetch, reason: str) -> None:
        reload = self.reload
        if reload is not None and reload.step is Step.FETCHING and reload.target == effect.current:
            self._log(f"version {effect.current.version} was not fetched: {reason}")
            self.reload = None
            self._fetch_after_seconds = self._agenda.now + REFETCH_SECONDS
            self._agenda.later(REFETCH_SECONDS, do.Due("go on"))

    def reported(self, event: do.Reported) -> None:
        before = self.members.get(event.member)
        if before is None or event.reason:
            self._log(f"pod {event.member} of the group: {event.reason or 'is there'}")
        if event.engine is None and before is not None:
            event = replace(event, engine=before.engine)
        self.members[event.member], self._unheard[event.member] = event, 0
        if before is not None and before.engine and not event.engine:
            self.lost = f"its part on pod {event.member} is gone"
        reload = self.reload
        if reload is None or reload.step is not Step.GATHERING:
            return
        if event.reason and self.current != reload.target:
            self.reload = None  # a node that cannot have it any more shall bring the newest
        else:
            self._swap_if_gathered(reload)

    def hear(self) -> None:
        """To be called each HEAR_SECONDS. Looks are counted and not seconds: a process that stood still itself has heard nobody.

        A node that is gone says nothing more, and the engine waits for it: it answers its probes and no request."""
        for member, report in list(self.members.items()):
            self._unheard[member] += 1
            if self._unheard[member] <= SILENT_LOOKS:
                continue
            del self.members[member]
            self._log(f"pod {member} of the group is silent for {SILENT_LOOKS * HEAR_SECONDS:g} s")
            if report.engine:
                self.lost = f"its part on pod {member} is silent"

    def drain(self) -> None:
        """What has not reached the engine is not begun; a pause ends, for requests that it holds can be neither finished
        nor aborted."""
        if self.reload is not None and not self.swapping:
            self.reload = None
        self.let_go()

    def let_go(self) -> None:
        if self.reload is not None and self.held:
            self.reload.let_go = True
            self._agenda.do(do.Resume())

    def paused(self) -> None:
        """The pause is in force. In a drain it ends again."""
        reload = self.reload
        if reload is None or reload.step is not Step.PAUSING:
            return
        if reload.let_go:
            self._agenda.do(do.Resume())
            self.reload = None
        else:
            assert reload.path is not None, "a pause follows the fetch"
            self._load(reload, reload.path, tag_of(reload.target))

    def load_ended(self, effect: do.Load) -> None:
        reload = self.reload
        if reload is None or reload.step is not Step.LOADING or reload.tag != effect.tag:
            return
        version = self.loaded.version if reload.restoring and self.loaded else reload.target.version
        for run in self._ledger.runs.values():
            run.versions.append(version)
        reload.step = Step.VERIFYING
        self._agenda.do(do.Verify(effect.tag))

    def verified(self, event: do.Verified) -> None:
        """The engine names what it was told to load, so this very load has ended there, in a process that was not started again.
        That the files are the version was proven when they came.

        SGLang (0.5.19) also has `/weights_checker`, a checksum of what lies on the GPUs. It is not asked: it is over the engine's
        own layout, sharded, fused and dequantized, which cannot be computed from files. It could only be told from that of the
        version before, which it may rightly equal: a warm-up's first step changes nothing. Each call reads all weights, with
        copies in bfloat16 beside a full KV cache, while requests are held.
        """
        reload = self.reload
        if reload is None or reload.step is not Step.VERIFYING or reload.tag != event.effect.tag:
            return
        if event.found != event.effect.tag:
            self._restore(reload, f"the engine calls its weights {event.found!r} after loading {reload.tag!r}")
        elif reload.live:
            reload.step = Step.RESUMING
            self._agenda.do(do.Resume())
        else:
            self._reloaded(reload)

    def resumed(self) -> None:
        if self.reload is not None and self.reload.step is Step.RESUMING:
            self._reloaded(self.reload)

    def refused(self, event: do.LoadRefused) -> None:
        reload = self.reload
        if reload is not None and reload.step is Step.LOADING and reload.tag == event.effect.tag:
            self._restore(reload, f"weights {reload.tag} were not loaded: {event.reason}")

    def failed(self, effect: do.Effect, reason: str) -> None:
        """A step of a reload got no answer: nobody knows what the engine holds."""
        if self.swapping:
            self.lost = f"{type(effect).__name__.lower()}: {reason}"

    def report(self) -> None:
        """Tells retention what this engine may still need."""
        if self._served is not None and self.loaded is not None and self.loaded.tag == tag_of(self._served):
            self._agenda.do(do.ReportLoaded(self._served))

    def forget_bad(self) -> None:
        self._bad = None

    def _swap_if_gathered(self, reload: Reload) -> None:
        """Every node of the engine reads its own copy, so all have to have one before any loads."""
        if self.current is not None and self.current.of != reload.target.of:
            self.reload = None  # a new attempt began meanwhile
            return
        brought = sum(report.brought == reload.target for report in self.members.values())
        if brought < self._settings.group_size - 1:
            return
        assert reload.path is not None, "gathering follows the fetch"
        reload.live = bool(self._ledger.runs)
        if reload.live:
            reload.step = Step.PAUSING
            self._agenda.do(do.Pause("retract"))
        else:
            self._load(reload, reload.path, tag_of(reload.target))

    def _restore(self, reload: Reload, reason: str) -> None:
        """The engine holds neither old nor new weights: it gets the last good ones back, or it serves no more."""
        self._log(reason)
        good = self.loaded
        if reload.restoring or reload.let_go or good is None:
            self.broken = reason
            return
        reload.restoring = True
        self._load(reload, good.path, good.tag)

    def _load(self, reload: Reload, path: Path, tag: str) -> None:
        reload.step, reload.tag, self.touched = Step.LOADING, tag, True
        self._agenda.do(do.Load(path, tag, flush=not reload.live))

    def _reloaded(self, reload: Reload) -> None:
        self.reload = None
        self._metrics.set("moerl_agent_weight_load_seconds", self._agenda.now - reload.began_seconds)
        target = reload.target
        if reload.restoring:
            self._log("the last good weights are back")
            self._bad = target
            self._agenda.later(BAD_WEIGHTS_SECONDS, do.Due("bad"))
            return
        assert reload.path is not None, "a load follows the fetch"
        self.loaded = Loaded(path=reload.path, tag=tag_of(target), version=target.version, of=target.of)
        self._served = target
        self._log(f"serves version {target.version} of attempt {target.attempt}")
        self.report()


def _holds(loaded: Loaded, current: Current) -> bool:
    base = loaded.tag in FRESH_TAGS and current.version == 0 and current.manifest is None
    return base or (loaded.of is not None and loaded.of.run == current.run and loaded.tag == tag_of(current))
