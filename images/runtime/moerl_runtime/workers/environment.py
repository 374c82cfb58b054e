"""`environment`: rewards of answers, away from the GPUs and from every AWS role.

    POST /v1/score   {grader, prompt, response, label, metadata} -> 200 {reward, metadata}
                     400 the body is none of these; 422 the grader gave no reward, {error}; 504 it took too long, {error};
                     503 every process is busy or the worker is ending: ask again, another worker may be free
    /live, /ready; /metrics on the metrics port

As many grades at once as the container has CPUs, each with its share of the container's memory. On SIGTERM the worker
turns unready, refuses new work, and lets running grades end.

Metrics: moerl_environment_running, moerl_environment_scores_total{outcome="scored|failed|timed_out|refused"},
moerl_environment_seconds_total.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import Metrics
from moerl_runtime.serve import Answer, Request
from moerl_runtime.workers import cgroup, running
from moerl_runtime.workers.grading import Ask, Grade, Grading, Limits

SCORE_PATH = "/v1/score"
SECONDS_MAX = 30.0
QUEUE_SECONDS = 10.0
"""How long a request waits for a free process before it is told to go elsewhere."""
DRAIN_SECONDS = 50.0
"""Of the pod's grace of 60."""
MEMORY_SHARE = 0.8
TEXT_BYTES_MAX = 8 * 2**20
FIELDS = frozenset({"grader", "prompt", "response", "label", "metadata"})

EPILOG = """exit codes: 0 after SIGTERM, 2 wrong input.

examples:
  python -m moerl_runtime environment --pool environment --listen 10.0.1.3:8091
"""


class Grader(Protocol):
    def grade(self, ask: Ask) -> Grade: ...


def new_metrics() -> Metrics:
    return Metrics(
        {
            "moerl_environment_running": ("gauge", "Grades under way."),
            "moerl_environment_scores_total": ("counter", "Requests: scored, failed, timed_out or refused."),
            "moerl_environment_seconds_total": ("counter", "Time spent grading."),
        }
    )


class Scores:
    """At most `slots` grades at once; none after `drain` has begun."""

    def __init__(
        self,
        grading: Grader,
        exported: Metrics,
        *,
        slots: int,
        queue_seconds: float = QUEUE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grading, self._metrics, self._slots = grading, exported, slots
        self._queue_seconds, self._clock = queue_seconds, clock
        self._changed = threading.Condition()
        self._running = 0
        self._ending = False

    @property
    def ready(self) -> bool:
        with self._changed:
            return not self._ending

    def score(self, ask: Ask) -> Grade | None:
        """The grade, or None where no process became free in time or the worker is ending."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._ending or self._running < self._slots, self._queue_seconds)
            if self._ending or not free:
                self._metrics.add("moerl_environment_scores_total", outcome="refused")
                return None
            self._take(1)
        begun = self._clock()
        try:
            grade = self._grading.grade(ask)
        finally:
            with self._changed:
                self._take(-1)
            self._metrics.add("moerl_environment_seconds_total", self._clock() - begun)
        outcome = "timed_out" if grade.timed_out else "scored" if grade.failure is None else "failed"
        self._metrics.add("moerl_environment_scores_total", outcome=outcome)
        return grade

    def drain(self, seconds: float) -> bool:
        """Refuses new work and waits for what runs. False where some still runs."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._running == 0, seconds)

    def _take(self, number: int) -> None:
        self._running += number
        self._metrics.set("moerl_environment_running", self._running)
        self._changed.notify_all()


def answer(scores: Scores, request: Request) -> Answer:
    if request.method == "GET" and request.path == running.LIVE_PATH:
        return Answer()
    if request.method == "GET" and request.path == running.READY_PATH:
        return Answer(status=200 if scores.ready else 503)
    if request.path != SCORE_PATH:
        return running.NOT_FOUND
    if request.method != "POST":
        return Answer(status=405)
    try:
        ask = read_ask(request.body)
    except InputFault as fault:
        return _json(400, {"error": str(fault)})
    grade = scores.score(ask)
    if grade is None:
        return _json(503, {"error": "every process is busy, or this worker is ending"})
    if grade.failure is not None:
        return _json(504 if grade.timed_out else 422, {"error": grade.failure})
    return _json(200, {"reward": grade.reward, "metadata": dict(grade.metadata)})


def read_ask(body: bytes) -> Ask:
    """Raises InputFault for a body that is not exactly the five fields."""
    if len(body) > TEXT_BYTES_MAX:
        raise InputFault("body", len(body), f"is larger than {TEXT_BYTES_MAX} bytes", "Send a shorter answer.")
    try:
        written = json.loads(body)
    except ValueError as error:
        raise InputFault("body", "", f"is no JSON: {error}", f"Send {sorted(FIELDS)}.") from error
    if not isinstance(written, dict) or set(written) != FIELDS:
        found = sorted(written) if isinstance(written, dict) else type(written).__name__
        raise InputFault("body", found, "has other fields", f"Send {sorted(FIELDS)}.")
    texts = all(isinstance(written[name], str) for name in ("grader", "prompt", "response"))
    label, metadata = written["label"], written["metadata"]
    if not texts or not (label is None or isinstance(label, str)) or not isinstance(metadata, dict):
        raise InputFault(
            "body",
            {name: type(value).__name__ for name, value in written.items()},
            "has fields of another type",
            "Send texts, a label that is a text or null, and metadata that is an object.",
        )
    return Ask(**written)


def _json(status: int, document: dict[str, Any]) -> Answer:
    return Answer(status=status, body=json.dumps(document).encode())


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "environment",
        help="rewards of answers, for the rollout agents",
        description="Grades answers, each in a process of its own with a limit of time and memory.",
        epilog=EPILOG,
    )
    running.add_arguments(parser)
    parser.add_argument(
        "--seconds-max", type=float, default=SECONDS_MAX, help=f"time limit of one grade (default: {SECONDS_MAX:g})"
    )
    parser.add_argument("--cgroup", type=Path, default=cgroup.ROOT, help=argparse.SUPPRESS)
    parser.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.seconds_max <= 0:
        raise InputFault("--seconds-max", arguments.seconds_max, "is no time", "Write a number above 0.")
    slots = cgroup.cpus(arguments.cgroup)
    memory_bytes = int(cgroup.memory_bytes(arguments.cgroup) * MEMORY_SHARE) // slots
    exported = new_metrics()
    scores = Scores(Grading(Limits(seconds=arguments.seconds_max, memory_bytes=memory_bytes)), exported, slots=slots)
    return running.until_stopped(
        arguments, lambda request: answer(scores, request), exported, on_stop=lambda: scores.drain(DRAIN_SECONDS)
    )
