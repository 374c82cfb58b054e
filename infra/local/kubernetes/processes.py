"""The control plane's processes: one group, ended as a whole, also when whoever started it dies, until it is released."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from infra.local.processes import tail

READ_BACK_LINES = 25


class ProcessFault(RuntimeError):
    """A program ended by itself, or did not become ready in time; the text carries the end of its log."""


class Group:
    """Processes in one process group, each with its own log file.

    The group ends when this Python process does, however it does: the group's leader is a watchdog at the other end of a
    pipe. After `release` the processes live on.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchdog = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-I", str(Path(__file__).with_name("watchdog.py"))],
            stdin=subprocess.PIPE,
            process_group=0,
        )

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Starts a program; its output goes to NAME.log. Not after `release`."""
        with (self.logs / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - argument lists built here, no shell
                list(command),
                cwd=self.logs,
                env={"PATH": os.defpath, "HOME": str(self.logs), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=self._watchdog.pid,
            )
        self._running[name] = process

    def wait(self, name: str, ready: Callable[[], bool], deadline_seconds: float) -> None:
        """Until `ready`. Raises ProcessFault when any program of the group ends, or at the deadline."""
        deadline = time.monotonic() + deadline_seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ProcessFault(f"{name} was not ready within {deadline_seconds:g} s:\n{self._tail(name)}")
            time.sleep(0.1)

    def check(self) -> None:
        """Raises ProcessFault when a program of the group has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise ProcessFault(f"{name} exited with {process.returncode}:\n{self._tail(name)}")

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def _tail(self, name: str) -> str:
        return tail(self.logs / f"{name}.log", READ_BACK_LINES)

    def end(self) -> None:
        """Kills every program and waits for it. The state is thrown away, so none is asked first."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()
        self._running.clear()
        self.release()

    def release(self) -> None:
        """From here on the programs outlive this process."""
        self._watchdog.kill()
        self._watchdog.communicate()
