"""Limits of a container, as cgroup v2 writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moerl_runtime.workers import cgroup


def written(root: Path, memory: str, cpu: str) -> Path:
    (root / "memory.max").write_text(memory, encoding="ascii")
    (root / "cpu.max").write_text(cpu, encoding="ascii")
    return root


def test_limits_are_read_from_the_files(tmp_path: Path) -> None:
    root = written(tmp_path, "8589934592\n", "350000 100000\n")
    assert cgroup.memory_bytes(root) == 8 * 2**30
    assert cgroup.cpus(root) == 3


def test_a_share_of_a_cpu_still_is_one_worker(tmp_path: Path) -> None:
    assert cgroup.cpus(written(tmp_path, "max\n", "20000 100000\n")) == 1


@pytest.mark.parametrize("unlimited", [True, False])
def test_without_a_limit_it_is_the_machine(tmp_path: Path, unlimited: bool) -> None:
    root = written(tmp_path, "max\n", "max 100000\n") if unlimited else tmp_path
    assert cgroup.memory_bytes(root) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert cgroup.cpus(root) == len(os.sched_getaffinity(0))
