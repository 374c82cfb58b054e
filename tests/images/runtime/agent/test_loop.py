"""Threads around the core: the deciding one never waits for a call, and an unexpected error is loud."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import BROKEN, ORDERLY, Core
from moerl_runtime.agent.exported import METRICS
from moerl_runtime.agent.loop import SERVERS, Loop, Servers
from moerl_runtime.imds import Notice
from moerl_runtime.metrics import Metrics
from tests.images.runtime.agent.simulation import SETTINGS, current

PATIENCE_SECONDS = 20.0


def loop(perform: Callable[[do.Effect], do.Event], *, drain_seconds: float = 100.0) -> Loop:
    settings = replace(SETTINGS, drain_seconds=drain_seconds)
    core = Core(settings, base=Path("/b"), touched=False, metrics=Metrics(METRICS), log=lambda _: None)
    return Loop(core, perform, clock=time.monotonic)


def nobody(effect: do.Effect) -> do.Event:
    """No network at all."""
    return do.NotDone(effect, "nobody listens")


def test_a_stop_before_anything_came_up_ends_it_in_order() -> None:
    made = loop(nobody)
    made.tell(do.Stopped())
    assert made.run() == ORDERLY
    assert made.done.is_set()


def test_calls_that_never_return_hold_up_neither_the_drain_nor_the_end() -> None:
    """Every call hangs, so the budget ends it: 95 % of it, whatever the calls do."""
    never = threading.Event()
    hung = threading.Semaphore(0)

    def hang(effect: do.Effect) -> do.Event:
        if isinstance(effect, do.Probe):
            return do.Probed("0")
        if isinstance(effect, do.Reset):
            return do.Done(effect)
        if isinstance(effect, do.Inspect):
            return do.Inspected(SETTINGS.engine_arguments)
        if isinstance(effect, do.ReadCurrent):
            return do.CurrentRead(time.monotonic(), True, current(), '"1"')
        hung.release()
        never.wait()
        return do.NotDone(effect, "at last")

    made = loop(hang, drain_seconds=0.5)
    made.tell(do.Looked())
    code: list[int] = []
    thread = threading.Thread(target=lambda: code.append(made.run()), daemon=True)
    thread.start()
    assert hung.acquire(timeout=PATIENCE_SECONDS), "it serves, and its long poll hangs"
    made.tell(do.Noticed(Notice(reason="spot", text="{}")))
    thread.join(PATIENCE_SECONDS)
    assert code == [ORDERLY], "nothing was leased, so nothing is left behind"
    never.set()


def test_a_mistake_in_a_thread_ends_the_agent_and_is_named() -> None:
    logs: list[str] = []

    def mistaken(effect: do.Effect) -> do.Event:
        if isinstance(effect, do.ReadCurrent):
            raise KeyError("a mistake")
        return do.NotDone(effect, "nobody listens")

    core = Core(SETTINGS, base=Path("/b"), touched=False, metrics=Metrics(METRICS), log=logs.append)
    assert Loop(core, mistaken, clock=time.monotonic).run() == BROKEN
    assert any("ReadCurrent ended: KeyError: 'a mistake'" in line for line in logs)


def test_every_effect_has_threads() -> None:
    served = {kind for _, kinds in SERVERS.values() for kind in kinds} | {do.Generate}
    assert served == set(do.Effect.__args__)


def test_threads_are_started_as_they_are_needed_and_reused() -> None:
    started: list[str] = []
    gate, served = threading.Event(), threading.Semaphore(0)

    def serve(_effect: do.Effect) -> None:
        started.append(threading.current_thread().name)
        gate.wait()
        served.release()

    servers = Servers("few", 3, serve)
    for _ in range(5):
        servers.submit(do.Depth())
    gate.set()
    for _ in range(5):
        assert served.acquire(timeout=PATIENCE_SECONDS)
    assert servers._threads == 3
    assert len(started) == 5
