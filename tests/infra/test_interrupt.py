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


def test_moerl_listens_for_ctrl_c_before_it_imports_what_takes_long() -> None:
    """SIGINT comes while `infra.cli` is imported: at its import of boto3."""
    code = (
        "import signal, sys\n"
        "class Boto3:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'boto3': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Boto3())\n"
        "sys.argv = ['moerl', '--help']\n"
        "from infra.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_moerl_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infra", "validate", "nowhere"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nowhere" in done.stderr
