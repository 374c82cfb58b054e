"""How a control plane's start begins, fails and is cut off: with programs that only sleep, so that none need be built."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.local.kubernetes import cluster
from infra.local.kubernetes.processes import ProcessFault
from infra.local.kubernetes.programs import PROGRAMS, Programs
from infra.local.processes import start_ticks

from .conftest import ROOT

VALUES = cluster.ControllerValues(kueue={}, lws={}, kuberay={})
START = """
import sys
from pathlib import Path
from infra.local.kubernetes import cluster
from infra.local.kubernetes.programs import PROGRAMS, Programs
folder, paths = Path(sys.argv[1]), Path(sys.argv[2])
programs = Programs(paths={program.name: paths / program.name for program in PROGRAMS}, assets=paths)
cluster.start(folder, programs, cluster.ControllerValues(kueue={}, lws={}, kuberay={}))
"""


def write_programs(folder: Path, helm: str) -> Programs:
    """Programs that sleep; Helm, for whose answer a start waits once etcd and API server run, does what `helm` says."""
    folder.mkdir()
    for program in PROGRAMS:
        path = folder / program.name
        path.write_text(f"#!/bin/sh\n{helm if program.name == 'helm' else 'exec sleep 600'}\n", encoding="utf-8")
        path.chmod(0o700)
    return Programs(paths={program.name: folder / program.name for program in PROGRAMS}, assets=folder)


def programs_of(folder: Path) -> dict[str, int]:
    """Those that the state file names."""
    path = folder / cluster.STATE_FILE
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["pids"] if path.is_file() else {}
    return found


def until(ask: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not ask() and time.monotonic() < deadline:
        time.sleep(0.05)
    return ask()


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts a control plane in PLACE/plane, and waits for Helm."""
    write_programs(tmp_path / "programs", helm="exec sleep 60")
    place = [str(tmp_path / name) for name in ("plane", "programs")]
    with subprocess.Popen([sys.executable, "-c", START, *place], cwd=ROOT, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        assert until(lambda: len(programs_of(tmp_path / "plane")) == 2)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_start_that_is_cut_off_leaves_no_process_and_no_obstacle(
    starting: subprocess.Popen[bytes], tmp_path: Path, number: int
) -> None:
    pids = programs_of(tmp_path / "plane").values()
    assert all(start_ticks(pid) for pid in pids)
    os.kill(starting.pid, number)
    starting.wait(30)
    assert until(lambda: not any(start_ticks(pid) for pid in pids))
    assert cluster.status(tmp_path / "plane") is None
    refusing = write_programs(tmp_path / "others", helm="echo no >&2; exit 1")
    with pytest.raises(ValueError, match="chart refuses these values: no"):
        cluster.start(tmp_path / "plane", refusing, VALUES)


def test_two_starts_do_not_take_one_folder(starting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = programs_of(tmp_path / "plane")
    refusing = write_programs(tmp_path / "others", helm="exit 1")
    with pytest.raises(ProcessFault, match=f"process {starting.pid} is starting"):
        cluster.start(tmp_path / "plane", refusing, VALUES)
    assert all(start_ticks(pid) for pid in before.values())


def test_a_stop_while_it_starts_ends_what_is_there(starting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pids = programs_of(tmp_path / "plane").values()
    assert cluster.stop(tmp_path / "plane") is True
    assert not any(start_ticks(pid) for pid in pids)
    assert not (tmp_path / "plane").exists()
    assert starting.poll() is None


def test_a_start_that_fails_keeps_its_logs_and_can_be_repeated(tmp_path: Path) -> None:
    refusing = write_programs(tmp_path / "programs", helm="exit 1")
    for _ in range(2):
        with pytest.raises(ValueError, match="chart refuses"):
            cluster.start(tmp_path / "plane", refusing, VALUES)
        assert (tmp_path / "plane" / "logs" / "etcd.log").is_file()
    assert not any(start_ticks(pid) for pid in programs_of(tmp_path / "plane").values())
    assert cluster.stop(tmp_path / "plane") is False
    assert not (tmp_path / "plane").exists()


def test_a_program_that_has_died_does_not_save_the_others(starting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Whichever it was: each is known by its own number and start time."""
    pids = programs_of(tmp_path / "plane")
    os.kill(pids["etcd"], signal.SIGKILL)
    assert until(lambda: start_ticks(pids["etcd"]) is None)
    assert cluster.stop(tmp_path / "plane") is True
    assert start_ticks(pids["kube-apiserver"]) is None
    assert starting.poll() is None


def test_a_later_process_of_the_same_number_is_spared(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:  # noqa: S607
        state = {"folder": "", "url": "", "deployments": [], "starter": None}
        state |= {"pids": {"etcd": stranger.pid}, "started": {"etcd": 1}}
        (tmp_path / cluster.STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        assert cluster.status(tmp_path) is None
        assert cluster.stop(tmp_path) is False
        assert stranger.poll() is None
        stranger.kill()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it", encoding="utf-8")
    with pytest.raises(ProcessFault, match="holds files that no control plane left there"):
        cluster.start(tmp_path, write_programs(tmp_path.with_name("programs"), helm="exit 1"), VALUES)
    assert cluster.stop(tmp_path) is False
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
