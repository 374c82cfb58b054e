"""What a container may use, as its own cgroup (v2) says."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
UNLIMITED = "max"


def memory_bytes(root: Path = ROOT) -> int:
    """The container's memory limit; the machine's memory where there is none."""
    written = _first(root / "memory.max")
    if written in (None, UNLIMITED):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(str(written))


def cpus(root: Path = ROOT) -> int:
    """Whole CPUs of the container's limit, at least one; the process's own where there is none."""
    path = root / "cpu.max"
    quota = _first(path)
    if quota in (None, UNLIMITED):
        return len(os.sched_getaffinity(0))
    return max(1, int(str(quota)) // int(path.read_text(encoding="ascii").split()[1]))


def _first(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").split()[0]
    except FileNotFoundError:
        return None
