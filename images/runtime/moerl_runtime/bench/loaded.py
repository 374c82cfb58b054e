"""Which NCCL a process has loaded. Two of them, or another than the image was built for, is a crash that waits."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

MAPS = Path("/proc/self/maps")
_NCCL = re.compile(r"(/\S*/libnccl\.so\S*)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedNccl:
    paths: tuple[str, ...]
    version: str
    """Of the first; '' when none is loaded."""


def nccl_paths(maps: str) -> tuple[str, ...]:
    """Files mapped as libnccl.so, each once, of the text of /proc/PID/maps. The OFI plugin's own file is none of them."""
    return tuple(dict.fromkeys(match[1] for line in maps.splitlines() if (match := _NCCL.search(line))))


def version_text(number: int) -> str:
    """23102 is 2.31.2 (NCCL_VERSION_CODE since 2.9)."""
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def loaded_nccl(maps: Path = MAPS) -> LoadedNccl:
    """Asks the library that is loaded, since torch's own number is that of its build."""
    paths = nccl_paths(maps.read_text(encoding="utf-8", errors="replace"))
    if not paths:
        return LoadedNccl(paths=(), version="")
    number = ctypes.c_int()
    ctypes.CDLL(paths[0]).ncclGetVersion(ctypes.byref(number))
    return LoadedNccl(paths=paths, version=version_text(number.value))
