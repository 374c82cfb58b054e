"""The head's view of a run: it exports what the other processes report, and keeps the time of each phase.

    GET  /metrics              the trainer's families, summed over processes
    GET  /framework/metrics    what Miles exports on its own port; empty where there is nothing
    POST /v1/series            {source, series: [[name, labels, value]]}: totals of one process
    POST /v1/phase             {phase, step}: it begins now
    POST /v1/history           {batches, reward_lowest}: the latest batches, as `gates` writes them

Phases are told apart by what this package sees of them. `wait` is the rollout class waiting for samples, `train` all until
the next thing begins, Megatron's own save included; `save` is the hand-over to the uploader and `publish` that of weights.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import urllib3

from moerl_runtime.metrics import CONTENT_TYPE, Metrics
from moerl_runtime.serve import Answer, Request
from moerl_runtime.trainer import gates, report
from moerl_runtime.trainer.gates import History
from moerl_runtime.trainer.metrics import FAMILIES, PHASES, metrics

FRAMEWORK_TIMEOUT_SECONDS = 5.0
POSTS = (report.SERIES_PATH, report.PHASE_PATH, report.HISTORY_PATH)

Clock = Callable[[], float]
Scrape = Callable[[], bytes]


class Control:
    """State of the handler; thread-safe."""

    def __init__(self, *, clock: Clock, unix_clock: Clock, scrape: Scrape) -> None:
        self._clock, self._unix_clock, self._scrape = clock, unix_clock, scrape
        self._lock = threading.Lock()
        self._sources: dict[str, list[tuple[str, dict[str, str], float]]] = {}
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._phase: report.Phase | None = None
        self._phase_since = clock()
        self._step: int | None = None
        self._step_since_unix = unix_clock()
        self._committed_step: int | None = None
        self._history = History()

    @property
    def step(self) -> int | None:
        """The newest step that any process spoke of; None before the first."""
        with self._lock:
            return self._step

    @property
    def history(self) -> History:
        """The latest batches that the data source spoke of."""
        with self._lock:
            return self._history

    @property
    def weight_version(self) -> int:
        """The newest version that any process published; 0 before the first."""
        with self._lock:
            found = [
                value
                for series in self._sources.values()
                for name, _, value in series
                if name == "moerl_trainer_weight_version"
            ]
        return int(max(found, default=0))

    def committed(self, step: int) -> None:
        with self._lock:
            self._committed_step = step

    def handle(self, request: Request) -> Answer:
        if request.method == "GET" and request.path == "/metrics":
            return Answer(body=self.exposition().encode(), content_type=CONTENT_TYPE)
        if request.method == "GET" and request.path == "/framework/metrics":
            return Answer(body=self._scrape(), content_type=CONTENT_TYPE)
        if request.method == "POST" and request.path in POSTS:
            try:
                body = json.loads(request.body)
                if request.path == report.PHASE_PATH:
                    self._begin(body["phase"], int(body["step"]))
                elif request.path == report.HISTORY_PATH:
                    history = gates.history(body)
                    with self._lock:
                        self._history = history
                else:
                    self._take(str(body["source"]), body["series"])
            except (ValueError, KeyError, TypeError) as error:
                return Answer(status=400, body=f"{type(error).__name__}: {error}\n".encode(), content_type="text/plain")
            return Answer()
        return Answer(status=404)

    def exposition(self) -> str:
        shown = metrics()
        with self._lock:
            for series in self._sources.values():
                for name, labels, value in series:
                    _write(shown, name, labels, value)
            for phase in PHASES:
                since = self._clock() - self._phase_since if phase == self._phase else 0.0
                shown.set("moerl_trainer_phase", float(phase == self._phase), phase=phase)
                shown.add("moerl_trainer_phase_seconds_total", self._seconds[phase] + since, phase=phase)
            if self._step is not None:
                shown.set("moerl_trainer_step", self._step)
            shown.set("moerl_trainer_step_started_timestamp_seconds", self._step_since_unix)
            if self._committed_step is not None:
                shown.set("moerl_trainer_checkpoint_step", self._committed_step)
        return shown.exposition()

    def _begin(self, phase: report.Phase, step: int) -> None:
        if phase not in PHASES:
            raise ValueError(f"{phase!r} is no phase")
        with self._lock:
            now = self._clock()
            if self._phase is not None:
                self._seconds[self._phase] += now - self._phase_since
            self._phase, self._phase_since = phase, now
            if step != self._step:
                self._step, self._step_since_unix = step, self._unix_clock()

    def _take(self, source: str, series: list[Any]) -> None:
        parsed = [
            (str(name), {str(key): str(label) for key, label in labels.items()}, float(value))
            for name, labels, value in series
        ]
        for name, _, _ in parsed:
            if name not in FAMILIES:
                raise ValueError(f"{name!r} is no family of the trainer")
        with self._lock:
            self._sources[source] = parsed


def scraper(port: int) -> Scrape:
    """Reads what the framework exports on this pod; nothing while it does not answer."""
    pool = urllib3.PoolManager(timeout=FRAMEWORK_TIMEOUT_SECONDS, retries=False)

    def scrape() -> bytes:
        try:
            answer = pool.request("GET", f"http://127.0.0.1:{port}/metrics")
        except urllib3.exceptions.HTTPError:
            return b""
        return answer.data if answer.status == 200 else b""

    return scrape


def _write(shown: Metrics, name: str, labels: dict[str, str], value: float) -> None:
    if FAMILIES[name][0] == "counter":
        shown.add(name, value, **labels)
    else:
        shown.set(name, value, **labels)
