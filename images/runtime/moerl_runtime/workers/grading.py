"""Grades an answer in a process of its own, which ends with the grade.

A grader may run what a model wrote. Each grade gets a fresh fork of a process that has imported the graders and nothing else
has touched, so no answer can change how the next one is graded. It has its own session, which is killed as a whole, at its
time limit or after its grade, and its own limit of address space. Only JSON comes back, never a pickle.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from multiprocessing.connection import Connection
from typing import Any

from moerl_runtime import graders

END = b"\n"
REPLY_BYTES_MAX = 2**20
FILE_BYTES_MAX = 2**30
"""Of any file that a grade writes below /tmp, its only writable directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    grader: str
    prompt: str
    response: str
    label: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A reward, or the reason why there is none."""

    reward: float | None
    metadata: Mapping[str, Any]
    failure: str | None = None
    timed_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    seconds: float
    memory_bytes: int


class Grading:
    """Starts the process from which every grade is forked."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._context = multiprocessing.get_context("forkserver")
        installed = {entry.module for entry in entry_points(group=graders.GROUP)}
        self._context.set_forkserver_preload([__name__, *sorted(installed)])

    def grade(self, ask: Ask) -> Grade:
        """Blocks for at most the time limit."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_child, args=(sender, json.dumps(asdict(ask)), self._limits.memory_bytes), daemon=True
        )
        process.start()
        sender.close()
        try:
            return _read(receiver, self._clock, self._clock() + self._limits.seconds)
        finally:
            receiver.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()
            process.close()


def _read(receiver: Connection, clock: Callable[[], float], end: float) -> Grade:
    """One line of JSON, waited for until the end. What the child writes is input like any other, also half a line."""
    text = bytearray()
    while not text.endswith(END):
        ready, _, _ = select.select([receiver], [], [], max(0.0, end - clock()))
        if not ready:
            return _failed("no grade within the time limit", timed_out=True)
        piece = os.read(receiver.fileno(), REPLY_BYTES_MAX)
        if not piece:
            return _failed("the grader's process ended without a grade: killed, or out of memory")
        text += piece
        if len(text) > REPLY_BYTES_MAX:
            return _failed(f"the grader's reply is larger than {REPLY_BYTES_MAX} bytes")
    try:
        written = json.loads(text)
        if written["failure"] is not None:
            return _failed(str(written["failure"]))
        return Grade(reward=float(written["reward"]), metadata=dict(written["metadata"]))
    except (ValueError, KeyError, TypeError) as error:
        return _failed(f"the grader's reply cannot be read: {error}")


def _failed(reason: str, *, timed_out: bool = False) -> Grade:
    return Grade(reward=None, metadata={}, failure=reason, timed_out=timed_out)


def _child(sender: Connection, text: str, memory_bytes: int) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    ask = Ask(**json.loads(text))
    try:
        reward, metadata = graders.grade(
            ask.grader, prompt=ask.prompt, response=ask.response, label=ask.label, metadata=ask.metadata
        )
        reply = json.dumps({"reward": reward, "metadata": metadata, "failure": None})
    except (graders.GradeError, MemoryError, TypeError, ValueError) as error:
        reply = json.dumps({"failure": f"{type(error).__name__}: {error}"})
    with os.fdopen(os.dup(sender.fileno()), "wb") as stream:
        stream.write(reply.encode() + END)
