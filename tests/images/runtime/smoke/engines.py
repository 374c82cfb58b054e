"""A local engine whose steps are turned by hand, and calls to it that may be left waiting."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moerl_runtime.smoke.engine_http import serving
from moerl_runtime.smoke.engine_server import EngineServer
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.smoke.stepper import ScriptedStepper, Turn

PATIENCE_SECONDS = 20.0
"""A bound for what must happen; nothing waits so long that works."""
SHORT: dict[str, Any] = {
    "health_probe_seconds": 0.0,
    "disconnect_tick_seconds": 0.02,
    "stream_disconnect_seconds": 0.02,
    "abort_repeat_seconds": 0.02,
    "sigterm_tick_seconds": 0.02,
}


class Cranked(ScriptedStepper):
    """Makes a step for each turn of the crank; `free` lets it run."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = threading.Semaphore(0)
        self.free = threading.Event()

    def turn(self, times: int = 1) -> None:
        self._turns.release(times)

    def step(self, batch: Sequence[Turn]) -> list[tuple[int, float]]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.free.is_set() and not self._turns.acquire(timeout=0.01):
            assert time.monotonic() < deadline, "nobody turned the crank"
        return super().step(batch)


@dataclass
class Bench:
    """An engine, its URL, and calls that run beside the test."""

    url: str
    server: EngineServer
    stepper: Cranked
    crashes: list[str]
    pool: ThreadPoolExecutor
    headers: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, body): JSON where it is JSON, else text. ConnectionError where the engine is gone."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)  # noqa: S310 - our own loopback
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:  # noqa: S310
                return reply.status, _read(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, _read(error.read())

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call("POST", path, body)

    def get(self, path: str) -> tuple[int, Any]:
        return self.call("GET", path)

    def begin(self, path: str, body: Any = None) -> Future[tuple[int, Any]]:
        """The call, left waiting."""
        return self.pool.submit(self.post, path, body)

    def ask(self, text: str, rid: str | None = None, **more: Any) -> Future[tuple[int, Any]]:
        body = {"text": text, "sampling_params": more.pop("sampling", {}), **more}
        return self.begin("/generate", body if rid is None else {**body, "rid": rid})

    def numbers(self) -> dict[str, int]:
        engine = self.server.engine
        with engine._lock:
            return {"front": len(engine._front), "waiting": len(engine._waiting), "running": len(engine._running)}

    def until(self, condition: Callable[[], bool], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what or 'it'} did not happen: {self.numbers()}"
            time.sleep(0.002)

    def until_numbers(self, **wanted: int) -> None:
        self.until(lambda: wanted.items() <= self.numbers().items(), str(wanted))

    def steps(self, times: int) -> None:
        """Exactly so many more steps are made."""
        before = self.server.engine.counts["steps"]
        self.stepper.turn(times)
        self.until(lambda: self.server.engine.counts["steps"] == before + times, f"step {before + times}")


@contextmanager
def bench(**settings: Any) -> Iterator[Bench]:
    stepper, crashes = Cranked(), list[str]()
    with (
        ThreadPoolExecutor(max_workers=16) as pool,
        serving(stepper, EngineSettings(**{**SHORT, **settings}), clock=time.monotonic, on_crash=crashes.append) as (
            url,
            server,
        ),
    ):
        try:
            yield Bench(url, server, stepper, crashes, pool)
        finally:
            stepper.free.set()


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()
