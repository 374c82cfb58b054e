"""Ctrl-C ends a command with 130, after its `finally`, and says nothing but that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAITS = """
import atexit, signal, sys, time
from infra.interrupt import interruptible

def goodbye():
    raise BrokenPipeError("Node is gone")

def run():
    try:
        print("waits", flush=True)
        time.sleep(60)
    finally:
        signal.raise_signal(signal.SIGINT)
        print("cleaned up", flush=True)

atexit.register(goodbye)
{entry}
"""
CLICK = "import typer; app = typer.Typer(); app.command()(run); interruptible(app)"


@pytest.mark.parametrize("entry", ["interruptible(run)", CLICK], ids=["function", "typer"])
def test_cleanup_runs_to_its_end_and_nothing_but_the_interruption_is_said(entry: str) -> None:
    with subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", WAITS.format(entry=entry)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        os.kill(process.pid, signal.SIGINT)
        rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest, said) == (130, "cleaned up\n", "interrupted\n")
