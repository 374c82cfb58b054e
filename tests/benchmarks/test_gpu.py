"""The program for a lent GPU machine spends its minutes well: one bad step stops no other, and what was done stays done."""

from __future__ import annotations

import argparse
import io
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from moerl_runtime.bench import cli as bench_cli
from moerl_runtime.preflight import cli as preflight_cli


@pytest.fixture
def machine(tmp_path: Path) -> gpu.Machine:
    for name in ("payload", "work", "out"):
        (tmp_path / name).mkdir()
    return gpu.Machine(
        payload=tmp_path / "payload",
        work=tmp_path / "work",
        out=tmp_path / "out",
        ranks=2,
        replace_nccl=False,
        log=io.StringIO(),
    )


def test_a_step_that_fails_stops_no_other_and_the_results_say_so(
    machine: gpu.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def bad(_: gpu.Machine) -> None:
        raise subprocess.CalledProcessError(3, ("nvcc",))

    monkeypatch.setattr(gpu, "STEPS", {"bad": bad, "good": lambda _: ran.append("good")})
    assert gpu._steps(machine, ["bad", "good"]) == 1
    assert ran == ["good"]
    steps = json.loads((machine.out / "gpu.json").read_text(encoding="utf-8"))["steps"]
    assert steps["bad"]["verdict"].startswith("failed: ")
    assert steps["good"]["verdict"] == "ok"


def test_the_build_is_done_once_and_measurements_again(machine: gpu.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(gpu, "STEPS", {name: (lambda _, name=name: ran.append(name)) for name in ("build", "nccl")})
    assert gpu._steps(machine, ["build", "nccl"]) == 0
    assert gpu._steps(machine, ["build", "nccl"]) == 0
    assert ran == ["build", "nccl", "nccl"]


@pytest.mark.parametrize("step", ["preflight", "fabric", "nccl", "deepep"])
def test_what_a_step_asks_of_the_image_is_what_the_image_takes(
    step: str, machine: gpu.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []

    def run(_: gpu.Machine, *command: str, seconds: float) -> str:
        assert seconds > 0
        ran.append(command)
        return '{"verdict": "passed"}'

    monkeypatch.setattr(gpu.Machine, "run", run)
    gpu.STEPS[step](machine)
    ((_, _, _, part, *arguments),) = ran
    parser = argparse.ArgumentParser()
    {"preflight": preflight_cli, "bench": bench_cli}[part].register(parser.add_subparsers())
    parsed = parser.parse_args([part, *arguments])
    assert (parsed.pool, parsed.ranks, parsed.plan) == (gpu.POOL, 2, machine.payload / "plan.json")
    assert machine.results["documents"][step] == {"verdict": "passed"}


def test_a_program_that_lasts_is_ended_with_its_children(machine: gpu.Machine, tmp_path: Path) -> None:
    source = (
        "import pathlib, subprocess, sys, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "print('begun', flush=True)\n"
        "threading.Event().wait()\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run(sys.executable, "-c", source, seconds=3.0)
    assert isinstance(machine.log, io.StringIO)
    assert "begun" in machine.log.getvalue()
    assert _ends(int((tmp_path / "pid").read_text(encoding="utf-8")))


def _ends(pid: int) -> bool:
    """Whether a process that has been killed is gone or a zombie, at once or in the time that a kernel takes."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 30.0)[0])
    finally:
        os.close(descriptor)


def test_the_verdict_of_a_failed_bench_is_kept(machine: gpu.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: str, seconds: float) -> str:
        raise subprocess.CalledProcessError(
            1, ("python3",), output=f'table\n{{"verdict": "failed", "seconds": {seconds}}}\n'
        )

    monkeypatch.setattr(machine, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        gpu.nccl(machine)
    assert machine.results["documents"]["nccl"]["verdict"] == "failed"


def test_multicast_is_off_in_everything_it_starts(machine: gpu.Machine) -> None:
    variables = machine.variables()
    assert {variables[name] for name in gpu.MULTICAST_OFF} <= {"0", "1"}
    assert variables["NCCL_NVLS_ENABLE"] == "0"
    assert "LD_PRELOAD" not in variables or "nccl" not in variables["LD_PRELOAD"]
    (machine.work / "nccl/lib").mkdir(parents=True)
    (machine.work / "nccl/lib/libnccl.so.2").touch()
    assert machine.variables()["LD_PRELOAD"] == str(machine.work / "nccl/lib/libnccl.so.2")
    machine.replaced.write_text(str(machine.work / "elsewhere"), encoding="utf-8")
    assert "LD_PRELOAD" not in machine.variables()
