"""Threads around a core: one decides, the others wait for the network.

The deciding thread never waits for anything but the next event or timer, so a drain ends in time whatever an engine, S3 or
SQS does. All other threads are daemons: the process does not wait for a call that hangs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import Core, View

TURN_SECONDS = 5.0
"""Longest wait of the deciding thread: `/live` looks at when it turned last."""

Clock = Callable[[], float]
Perform = Callable[[do.Effect], do.Event]

SERVERS: Mapping[str, tuple[int, tuple[type[do.Effect], ...]]] = MappingProxyType(
    {
        "receive": (1, (do.Receive,)),
        # One after the other: an extension that overtook a return would hide the task again.
        "leases": (1, (do.Extend, do.GiveBack)),
        "queue": (8, (do.Delete, do.Fail, do.Bury, do.Depth)),
        "read": (8, (do.ReadTask, do.ReadCurrent, do.ReportLoaded)),
        "publish": (64, (do.Publish,)),
        "fetch": (1, (do.Fetch,)),
        "probe": (2, (do.Probe, do.Inspect, do.CountLive)),
        # One after the other: whatever a load does to the engine is over before the next thing is begun there. One that hangs
        # holds a reset, so the engine serves nothing; it could not. Its connection ends with its process, and Kubernetes makes
        # all pods of an engine anew where one is lost. A drain asks for nothing of these but to leave a router.
        "weights": (1, (do.Load, do.Verify, do.Reset, do.Register, do.Deregister)),
        "pause": (4, (do.Pause, do.Resume)),
        "abort": (4, (do.AbortAll,)),
        "abort one": (4, (do.AbortRequest,)),
    }
)
"""Threads by what they do: a call that hangs holds up its own kind alone."""


class Servers:
    """Daemon threads that run effects of one kind, started as they are needed."""

    def __init__(self, name: str, most: int, serve: Callable[[do.Effect], None]) -> None:
        self._name, self._most, self._serve = name, most, serve
        self._effects: queue.SimpleQueue[do.Effect] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def submit(self, effect: do.Effect) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._effects.put(effect)

    def _run(self) -> None:
        while True:
            self._serve(self._effects.get())
            with self._lock:
                self._idle += 1


class Loop:
    """Runs a core until it is done. `tell` may be called from any thread and from a signal handler."""

    def __init__(self, core: Core, perform: Perform, *, clock: Clock) -> None:
        self._core, self._perform, self._clock = core, perform, clock
        self._inbox: queue.SimpleQueue[do.Event] = queue.SimpleQueue()
        self._servers: dict[type[do.Effect], Servers] = {
            do.Generate: Servers("generate", core.settings.requests_max, self._serve)
        }
        for name, (most, kinds) in SERVERS.items():
            servers = Servers(name, most, self._serve)
            self._servers |= dict.fromkeys(kinds, servers)
        self.view: View = core.view
        self.turned_seconds = clock()
        self.done = threading.Event()

    def tell(self, event: do.Event) -> None:
        self._inbox.put(event)

    def run(self) -> int:
        """The exit code, once the core is done."""
        core, clock = self._core, self._clock
        self._begin(core.begin(clock()))
        while not core.over:
            try:
                event = self._inbox.get(timeout=max(0.0, min(core.next_seconds - clock(), TURN_SECONDS)))
            except queue.Empty:
                pass
            else:
                self._begin(core.handle(event, clock()))
            if core.next_seconds <= clock() and not core.over:
                self._begin(core.due(clock()))
        self.done.set()
        return core.exit_code

    def _begin(self, effects: list[do.Effect]) -> None:
        self.turned_seconds, self.view = self._clock(), self._core.view
        for effect in effects:
            self._servers[type(effect)].submit(effect)

    def _serve(self, effect: do.Effect) -> None:
        try:
            event = self._perform(effect)
        except Exception as error:  # the boundary of a thread: silence would be worse than any error
            event = do.Crashed(type(effect).__name__, f"{type(error).__name__}: {error}")
        self._inbox.put(event)
