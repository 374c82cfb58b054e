"""Formats of other programs, as values. Every function takes what it does not understand without raising."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

IPC_LOCK_BIT = 14
"""CAP_IPC_LOCK (linux/capability.h)."""
UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    memory_mib: int
    driver: str
    ecc: str
    uncorrected: int
    """Memory errors since the driver was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabrics:
    """Devices that libfabric's EFA provider offers, by fabric."""

    efa: int
    efa_direct: int


def gpus(text: str) -> tuple[Gpu, ...]:
    """Lines of nvidia-smi --query-gpu with collect.GPU_FIELDS, csv,noheader,nounits."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[1].isdigit():
            found.append(
                Gpu(
                    name=cells[0],
                    memory_mib=int(cells[1]),
                    driver=cells[2],
                    ecc=cells[3],
                    uncorrected=int(cells[4]) if cells[4].isdigit() else 0,
                )
            )
    return tuple(found)


def fabric_states(text: str) -> tuple[str, ...]:
    """`STATE` or `STATE/STATUS` of every GPU's Fabric section of `nvidia-smi -q`; empty where no GPU is part of one."""
    found = []
    for section in re.findall(r"^ {4}Fabric\n((?: {8}.*\n?)*)", text, re.MULTILINE):
        values = dict(re.findall(r"^ {8}(State|Status)\s*: (.+?)\s*$", section, re.MULTILINE))
        if values.get("State", "N/A") != "N/A":
            found.append("/".join(value for key, value in values.items() if value != "N/A"))
    return tuple(found)


def fabrics(text: str) -> Fabrics:
    """Output of `fi_info -p efa`: entries of four and more lines, one for each device, fabric and endpoint type."""
    devices: dict[str, set[str]] = {"efa": set(), "efa-direct": set()}
    fabric = ""
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "fabric":
            fabric = value
        elif key == "domain" and fabric in devices:
            devices[fabric].add(value.rpartition("-")[0] or value)
    return Fabrics(efa=len(devices["efa"]), efa_direct=len(devices["efa-direct"]))


def libfabric_version(text: str) -> str:
    """`2.6.0amzn1.0` of `fi_info --version`; '' when it does not say."""
    found = re.search(r"^libfabric: (\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def exported(text: str, prefix: str) -> tuple[str, ...]:
    """Symbols of `nm -D --defined-only` that begin with `prefix`."""
    names = (line.split()[-1].partition("@")[0] for line in text.splitlines() if line.split())
    return tuple(sorted({name for name in names if name.startswith(prefix)}))


def registry_dwords(params: str) -> dict[str, str]:
    """The NVIDIA driver's RegistryDwords, as in /proc/driver/nvidia/params: `RegistryDwords: "a=1;b=2"`."""
    found = re.search(r'^RegistryDwords:\s*"?([^"\n]*)"?\s*$', params, re.MULTILINE)
    pairs = (pair.partition("=") for pair in re.split(r"[;,\s]+", found[1]) if pair) if found else ()
    return {key.strip(): value.strip() for key, _, value in pairs}


def maps_persistently(params: str) -> bool | None:
    """Whether gdrdrv was loaded with use_persistent_mapping, by /proc/driver/gdrdrv/params, which it has from 2.5 on
    (gdrdrv.c of GDRCopy); None when that does not say."""
    found = re.search(r"^Use persistent mapping: (yes|no)\s*$", params, re.MULTILINE)
    return found[1] == "yes" if found else None


def locked_memory_bytes(limits: str) -> int | None:
    """Soft limit of /proc/self/limits; UNLIMITED, or None when it does not say."""
    found = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    if not found:
        return None
    return UNLIMITED if found[1] == "unlimited" else int(found[1]) if found[1].isdigit() else None


def has_ipc_lock(status: str) -> bool | None:
    """Whether the effective capabilities of /proc/self/status have IPC_LOCK; None when it does not say."""
    found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    return bool(int(found[1], 16) >> IPC_LOCK_BIT & 1) if found else None


def huge_pages_mib(meminfo: str) -> int:
    """Memory of the node in free huge pages of the default size."""
    values = dict(re.findall(r"^(HugePages_Free|Hugepagesize):\s+(\d+)", meminfo, re.MULTILINE))
    return int(values.get("HugePages_Free", 0)) * int(values.get("Hugepagesize", 0)) // 1024


def image_archs(text: str) -> tuple[str, ...] | None:
    """CUDA architectures of capabilities.json; None where it is not there or says nothing of them."""
    try:
        found = json.loads(text)["cuda_archs"]
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(map(str, found)) if isinstance(found, list) else None


def version_key(version: str) -> tuple[int, ...]:
    """Orders dotted versions by the number that each part begins with: 3.1.0g is 3.1.0, 2.6.0amzn1.0 is 2.6.0.1.0."""
    parts = (re.match(r"(\d+)(?:[a-z]+(\d+))?", part) for part in version.split("."))
    return tuple(int(group) for match in parts if match for group in match.groups() if group is not None)


def at_least(version: str | None, floor: str) -> bool:
    """Whether a version that was found reaches the floor; a missing one does not."""
    return bool(version) and version_key(version or "") >= version_key(floor)


def some(values: Sequence[object]) -> str:
    """Different values, each once, for a line of text."""
    return ", ".join(dict.fromkeys(str(value) for value in values)) or "none"
