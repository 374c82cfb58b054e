"""`buffer`: finished samples in memory, so that the trainer reads a batch from few hosts and not object by object from S3.

    PUT /v1/samples/KEY   the sample object of that key; what is there already stays
    GET /v1/samples/KEY   the sample, or 404: read it from S3
    /live, /ready; /metrics on the metrics port

KEY is the sample's key in the bucket. An agent puts a sample here only after it stored it in S3 as the first one, so both
say the same. Memory is bounded by the container's own limit: the oldest samples go first, whoever may still want them.

Metrics: moerl_buffer_bytes, moerl_buffer_samples, moerl_buffer_puts_total, moerl_buffer_gets_total{outcome="hit|miss"},
moerl_buffer_evicted_total.
"""

from __future__ import annotations

import argparse
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import Metrics
from moerl_runtime.serve import Answer, Request
from moerl_runtime.workers import cgroup, running
from moerl_runtime.workers.buffer_client import SAMPLES_PATH

MEMORY_SHARE = 0.7
"""Of the container's memory. The rest is the interpreter, bodies in transit and what the allocator cannot give back."""
ENTRY_BYTES = 512
"""Of a sample beside its body: key, entry, object headers."""
KEY = re.compile(r"samples/[a-z0-9][a-z0-9.-]*/\d{6}/samples/\d{10}/\d{4}\.json")

EPILOG = """exit codes: 0 after SIGTERM, 2 wrong input.

examples:
  python -m moerl_runtime buffer --pool buffer --listen 10.0.1.2:8092
"""


def new_metrics() -> Metrics:
    return Metrics(
        {
            "moerl_buffer_bytes": ("gauge", "Memory that samples take."),
            "moerl_buffer_samples": ("gauge", "Samples in memory."),
            "moerl_buffer_puts_total": ("counter", "Samples taken."),
            "moerl_buffer_gets_total": ("counter", "Samples asked for: hit or miss."),
            "moerl_buffer_evicted_total": ("counter", "Samples removed for newer ones."),
        }
    )


class Samples:
    """Bodies by key, at most `limit_bytes` of them; the oldest go first. Thread-safe."""

    def __init__(self, limit_bytes: int, exported: Metrics) -> None:
        self._limit_bytes, self._metrics = limit_bytes, exported
        self._lock = threading.Lock()
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def put(self, key: str, body: bytes) -> bool:
        """Keeps the body unless the key has one. False for one that would not fit even alone."""
        size = len(body) + ENTRY_BYTES
        if size > self._limit_bytes:
            return False
        with self._lock:
            if key in self._bodies:
                return True
            while self._bytes + size > self._limit_bytes:
                _, old = self._bodies.popitem(last=False)
                self._bytes -= len(old) + ENTRY_BYTES
                self._metrics.add("moerl_buffer_evicted_total")
            self._bodies[key] = body
            self._bytes += size
            self._metrics.add("moerl_buffer_puts_total")
            self._metrics.set("moerl_buffer_bytes", self._bytes)
            self._metrics.set("moerl_buffer_samples", len(self._bodies))
        return True

    def get(self, key: str) -> bytes | None:
        with self._lock:
            body = self._bodies.get(key)
        self._metrics.add("moerl_buffer_gets_total", outcome="miss" if body is None else "hit")
        return body


def answer(samples: Samples, request: Request) -> Answer:
    if request.method == "GET" and request.path in (running.LIVE_PATH, running.READY_PATH):
        return Answer()
    key = request.path.removeprefix(SAMPLES_PATH)
    if key == request.path or KEY.fullmatch(key) is None:
        return running.NOT_FOUND
    if request.method == "PUT":
        return Answer(status=200 if samples.put(key, request.body) else 507)
    if request.method == "GET":
        body = samples.get(key)
        return running.NOT_FOUND if body is None else Answer(body=body)
    return Answer(status=405)


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "buffer",
        help="finished samples in memory, for the trainer",
        description="Keeps finished samples in memory, within the container's limit. S3 stays the truth.",
        epilog=EPILOG,
    )
    running.add_arguments(parser)
    parser.add_argument("--cgroup", type=Path, default=cgroup.ROOT, help=argparse.SUPPRESS)
    parser.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    limit_bytes = int(cgroup.memory_bytes(arguments.cgroup) * MEMORY_SHARE)
    if limit_bytes < 64 * 2**20:
        raise InputFault("memory", limit_bytes, "is too little for a buffer", "Give the container more memory.")
    exported = new_metrics()
    samples = Samples(limit_bytes, exported)
    return running.until_stopped(arguments, lambda request: answer(samples, request), exported, on_stop=lambda: None)
