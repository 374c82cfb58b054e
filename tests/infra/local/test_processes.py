"""Ports for programs that listen seconds later are given once, and are none that others get by chance."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from infra.local import processes

from .conftest import ROOT

KERNELS = 32_768


def test_no_port_is_given_twice_and_none_is_one_that_the_kernel_hands_out() -> None:
    """Asked for any port, the kernel may give the same one again once it is closed: in one of 300 runs that take ten."""
    given = [processes.free_port() for _ in range(500)]
    assert len(set(given)) == len(given)
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first >= processes.FIRST_PORT + processes.PORTS_MIN:
        assert not [port for port in given if first <= port <= last]


def test_a_port_that_somebody_listens_on_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    free = processes.free_port()
    with socket.create_server((processes.LOOPBACK, 0)) as taken:
        offered = cycle([taken.getsockname()[1], free])
        monkeypatch.setattr(processes, "_ports", lambda: offered)
        assert processes.free_port() == free


def test_processes_that_run_at_once_begin_at_places_of_their_own() -> None:
    taken = [port for pid in range(4_000, 4_100) for port in processes.ports(pid, KERNELS)[: processes.PORTS_APART]]
    assert len(set(taken)) == len(taken)
    every = processes.ports(4_000, KERNELS)
    assert sorted(every) == list(range(processes.FIRST_PORT, KERNELS))


def test_a_kernel_that_hands_out_nearly_all_ports_leaves_no_others() -> None:
    assert sorted(processes.ports(1, 1_024)) == list(range(processes.FIRST_PORT, processes.LAST_PORT))


HOLD = (
    "import sys; from pathlib import Path; from infra.local.processes import held\n"
    "with held(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


def test_a_folder_is_held_by_one_process_which_is_named_and_given_up_when_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(processes.InUse, match=f"process {holder.pid} works in {folder}$"), processes.held(folder):
            pass
        holder.kill()
        holder.wait()
        with processes.held(folder):
            assert (folder / processes.LOCK_FILE).read_text(encoding="ascii") == f"{os.getpid()}\n"
    with processes.held(folder):
        pass
