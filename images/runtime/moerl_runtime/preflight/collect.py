"""Reads a node: files below a root, and programs with a list of arguments and a time limit. It judges nothing.

None means that a file or a program is not there; text is what it said.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moerl_runtime.image.capabilities import CAPABILITIES_FILE

PROGRAM_SECONDS = 60.0
PLUGIN_FOLDERS = ("opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64", "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu")
"""Where the EFA installer puts it: Ubuntu, Amazon Linux, and Ubuntu in some releases."""
PLUGIN_NAMES = ("libnccl-net-ofi.so", "libnccl-net.so")
EFA_PROGRAMS = ("/opt/amazon/efa/bin/fi_info", "fi_info")
GPU_FIELDS = ("name", "memory.total", "driver_version", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total")
JIT_VARIABLE = "EP_JIT_CACHE_DIR"
IMAGE_DOCUMENT = CAPABILITIES_FILE.lstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a program printed, both streams together, and how it ended."""

    code: int
    output: str


Runner = Callable[[Sequence[str], float], Ran | None]
"""(arguments, seconds) to what came of it; None where the program is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infiniband:
    """One entry of /sys/class/infiniband."""

    name: str
    vendor: str
    peer: str | None
    """The driver's `p2p` file: whose memory it can reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that preflight looks at, as it was found."""

    infiniband: tuple[Infiniband, ...]
    uverbs: int
    efa_version: str | None
    gdrdrv_version: str | None
    gdrdrv_params: str | None
    gdrdrv_device: bool
    nvidia_params: str | None
    meminfo: str | None
    limits: str | None
    status: str | None
    shm_bytes: int | None
    ephemeral_bytes: int | None
    """Size of the file system with the kubelet's directory, whose allocatable part is the node's ephemeral storage."""
    image: str | None
    """What the build wrote into the image about itself."""
    gpus: Ran | None
    gpu_details: Ran | None
    fi_info: Ran | None
    fi_version: Ran | None
    plugin: str | None
    """Path of the OFI plugin for NCCL."""
    plugin_symbols: Ran | None
    cache_folder: str | None
    """Where compiled kernels go; None where no variable names it or nothing is mounted there."""
    cache_error: str
    variables: Mapping[str, str]


def run_program(arguments: Sequence[str], seconds: float, folder: Path | None = None) -> Ran | None:
    """Runs a program without a shell. One that outlasts `seconds` is killed and counts as failed."""
    try:
        done = subprocess.run(  # noqa: S603
            list(arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            cwd=folder,
            text=True,
            errors="replace",
            check=False,
        )
    except (FileNotFoundError, PermissionError):
        return None
    except subprocess.TimeoutExpired:
        return Ran(code=124, output=f"{arguments[0]} gave no answer in {seconds:g} s")
    return Ran(code=done.returncode, output=done.stdout)


def collect(root: Path, *, run: Runner, variables: Mapping[str, str]) -> Facts:
    """Reads everything; a node without a part shows it as None."""
    plugin = _plugin(root)
    fi_info = _first(run, "-p", "efa")
    cache = _cache(root, variables)
    return Facts(
        infiniband=_infiniband(root),
        uverbs=len(list((root / "dev/infiniband").glob("uverbs*"))),
        efa_version=_text(root / "sys/module/efa/version"),
        gdrdrv_version=_text(root / "sys/module/gdrdrv/version"),
        gdrdrv_params=_text(root / "proc/driver/gdrdrv/params"),
        gdrdrv_device=(root / "dev/gdrdrv").exists(),
        nvidia_params=_text(root / "proc/driver/nvidia/params"),
        meminfo=_text(root / "proc/meminfo"),
        limits=_text(root / "proc/self/limits"),
        status=_text(root / "proc/self/status"),
        shm_bytes=_size(root / "dev/shm"),
        # The kubelet mounts it from its own directory; the root may lie with an image snapshotter.
        ephemeral_bytes=_size(root / "etc/hosts"),
        image=_text(root / IMAGE_DOCUMENT),
        gpus=run(
            ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"], PROGRAM_SECONDS
        ),
        gpu_details=run(["nvidia-smi", "-q"], PROGRAM_SECONDS),
        fi_info=fi_info,
        fi_version=_first(run, "--version"),
        plugin=str(plugin) if plugin else None,
        plugin_symbols=run(["nm", "-D", "--defined-only", str(plugin)], PROGRAM_SECONDS) if plugin else None,
        cache_folder=str(cache) if cache else None,
        cache_error=_writable(cache) if cache else "",
        variables=variables,
    )


def _first(run: Runner, *arguments: str) -> Ran | None:
    """The EFA installer's own program before any other of that name."""
    for program in EFA_PROGRAMS:
        ran = run([program, *arguments], PROGRAM_SECONDS)
        if ran is not None:
            return ran
    return None


def _infiniband(root: Path) -> tuple[Infiniband, ...]:
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return ()
    return tuple(
        Infiniband(name=entry.name, vendor=_text(entry / "device/vendor") or "", peer=_text(entry / "device/p2p"))
        for entry in sorted(folder.iterdir())
    )


def _plugin(root: Path) -> Path | None:
    for folder in PLUGIN_FOLDERS:
        for name in PLUGIN_NAMES:
            if (root / folder / name).exists():
                return root / folder / name
    return None


def _cache(root: Path, variables: Mapping[str, str]) -> Path | None:
    """The mount that holds compiled kernels, by the variable that names a folder in it."""
    named = variables.get(JIT_VARIABLE)
    if not named:
        return None
    mount = (root / named.lstrip("/")).parent
    return mount if mount.is_dir() else None


def _writable(folder: Path) -> str:
    """'' when a file can be made there, else why not."""
    probe = folder / f".moerl-preflight-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize
