"""`load-gdrdrv`: gives a node the kernel module gdrdrv, and holds its place until it is told to stop.

A module of the version asked for that is loaded already, by the AMI or an earlier start, and maps persistently, is left as
it is. Else the sources in the image are built against the running kernel and the sources of the NVIDIA driver that is
loaded, and the module is inserted. The device node is made in the host's /dev, where the container toolkit looks for it
when it starts a pod.

The driver's sources are in /usr/src: images of EKS before 20260917 unpack them there with the driver itself; later ones keep
them in packages, which user data unpacks at a node's first boot.

Variables, read by the command line alone: MOERL_GDRDRV_SOURCE, folder src/gdrdrv of GDRCopy with its scripts in ../../scripts;
TMPDIR, where it is built.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.preflight import collect
from moerl_runtime.preflight.parse import at_least, maps_persistently, version_key
from moerl_runtime.stop import until_stopped

SOURCE_VARIABLE, SCRATCH_VARIABLE = "MOERL_GDRDRV_SOURCE", "TMPDIR"
MODULE = "gdrdrv"
DEVICE_MODE = 0o666
"""As GDRCopy's own installer has it: who may use it is decided by the device cgroup of each container."""
BUILD_SECONDS, PROGRAM_SECONDS = 600.0, 60.0
TAIL_LINES = 15
SCRIPTS = ("test_gdrdrv_HAVE_VM_FLAGS_SET.sh", "test_gdrdrv_HAVE_PROC_OPS.sh")
"""What the Makefile runs to learn about the kernel. Without them it guesses, and the build fails further on."""
INSERT = ("dbg_enabled=0", "info_enabled=0", "use_persistent_mapping=1")
"""As GDRCopy 2.5.2's insmod.sh: pages stay pinned over a driver's free callback, which RDMA needs."""

EPILOG = """exit codes: 0 told to stop, 1 the module cannot be built or loaded, 2 wrong input.

example: load-gdrdrv --minimum 2.5 --device-folder /host/dev
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What the loader touches of a node. Tests hand over a tree and programs of their own."""

    root: Path
    kernel: str
    """Release of the running kernel."""
    run: Callable[[Sequence[str], Path, float], str]
    """(arguments, working directory, seconds) to output; raises RuntimeFault where the program fails."""
    make_device: Callable[[Path, int], None]
    """(path, major number)"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "load-gdrdrv",
        help="builds and loads the gdrdrv kernel module on a node",
        description="Builds and loads the kernel module gdrdrv, makes its device, and waits to be stopped.",
        epilog=EPILOG,
    )
    parser.add_argument("--minimum", required=True, metavar="VERSION", help="lowest version that will do")
    parser.add_argument("--device-folder", required=True, type=Path, metavar="DIR", help="the host's /dev")
    parser.set_defaults(handler=_handle)


def _handle(arguments: argparse.Namespace) -> int:
    variables: Mapping[str, str] = arguments.variables
    if not version_key(arguments.minimum):
        raise InputFault("--minimum", arguments.minimum, "is no version", "Write for example 2.5.")
    if not arguments.device_folder.is_dir():
        raise InputFault(
            "--device-folder", str(arguments.device_folder), "is no folder", "Mount the host's /dev there."
        )
    source = variables.get(SOURCE_VARIABLE)
    node = Node(root=Path("/"), kernel=os.uname().release, run=run_program, make_device=make_device)
    with tempfile.TemporaryDirectory(prefix="gdrdrv-", dir=variables.get(SCRATCH_VARIABLE)) as scratch:
        said = load(
            node,
            minimum=arguments.minimum,
            device_folder=arguments.device_folder,
            source=Path(source) if source else None,
            scratch=Path(scratch),
        )
    print(said, flush=True)
    until_stopped()
    return 0


def load(node: Node, *, minimum: str, device_folder: Path, source: Path | None, scratch: Path) -> str:
    """Leaves the module loaded and its device in `device_folder`. Raises RuntimeFault with what stands in the way."""
    version = loaded_version(node.root)
    unfit = None if version is None else shortcoming(node.root, version, minimum)
    done = f"gdrdrv {version} was loaded already"
    if version is None or unfit:
        if unfit:
            _unused(node.root, version, unfit)
        if source is None:
            raise InputFault(
                SOURCE_VARIABLE, None, "is not set", "Use an image whose build installs GDRCopy; baseline has none."
            )
        # Before anything is taken away: what is loaded may still be better than nothing.
        module = build(node, source, scratch)
        if unfit:
            node.run(["rmmod", MODULE], scratch, PROGRAM_SECONDS)
        node.run(["insmod", str(module), *INSERT], scratch, PROGRAM_SECONDS)
        version = loaded_version(node.root)
        unfit = shortcoming(node.root, version, minimum)
        if unfit:
            raise RuntimeFault(
                "gdrdrv",
                version,
                f"was built and loaded, but {unfit}",
                "Raise GDRCOPY in the image build; mapping persistently needs an NVIDIA driver that can.",
            )
        done = f"gdrdrv {version} built for {node.kernel} and loaded"
    device = device_folder / MODULE
    node.make_device(device, _major(node.root))
    return f"{done}; device {device}"


def loaded_version(root: Path) -> str | None:
    """Of the module in the kernel; None when there is none."""
    try:
        return (root / "sys/module" / MODULE / "version").read_text(encoding="ascii").strip()
    except OSError:
        return None


def shortcoming(root: Path, version: str | None, minimum: str) -> str | None:
    """What is wrong with the module that is loaded; None when nothing is."""
    if not at_least(version, minimum):
        return f"is older than {minimum}"
    if maps_persistently(_text(root / "proc/driver" / MODULE / "params")) is False:
        return (
            "does not map persistently (use_persistent_mapping=0): pages are unpinned under RDMA when memory is freed"
        )
    return None


def _unused(root: Path, version: str | None, unfit: str) -> None:
    users = _text(root / "sys/module" / MODULE / "refcnt")
    if users not in ("", "0"):
        raise RuntimeFault(
            "gdrdrv",
            version,
            f"{unfit}, and {users} processes use it",
            "Drain and reboot the node, or use an AMI that loads a good one (images.bake_ami).",
        )


def build(node: Node, source: Path, scratch: Path) -> Path:
    """The module for the running kernel, built in `scratch`."""
    headers = node.root / "lib/modules" / node.kernel / "build"
    if not headers.exists():
        raise RuntimeFault(
            "kernel headers",
            str(headers),
            "are not there",
            "Install kernel-devel of the running kernel in the AMI; an update of the kernel without a reboot leaves "
            "those of another one.",
        )
    scripts = source.parents[1] / "scripts"
    missing = [name for name in SCRIPTS if not (scripts / name).is_file()]
    if missing or not (source / "Makefile").is_file():
        raise RuntimeFault(
            SOURCE_VARIABLE,
            str(source),
            f"is not complete: {', '.join(missing) or 'no Makefile'}",
            "Copy src/gdrdrv and scripts of GDRCopy into the image, side by side as in its repository.",
        )
    work = scratch / MODULE
    shutil.copytree(source, work, dirs_exist_ok=True)
    node.run(
        [
            "make",
            # Its Makefile goes by $(PWD), an inherited variable that says where this process was started, if anything.
            f"PWD={work}",
            f"KVER={node.kernel}",
            f"NVIDIA_SRC_DIR={driver_sources(node.root)}",
            f"CONF_SCRIPT_DIR={scripts}",
        ],
        work,
        BUILD_SECONDS,
    )
    module = work / f"{MODULE}.ko"
    if not module.is_file():
        raise RuntimeFault("make", str(work), "ended well but made no gdrdrv.ko", "Read its output above.")
    return module


def driver_sources(root: Path) -> Path:
    """Folder with nv-p2p.c and nv-p2p.h of the NVIDIA driver that is loaded; any other's would not fit its symbols."""
    driver = _text(root / "sys/module/nvidia/version")
    if not driver:
        raise RuntimeFault("NVIDIA driver", None, "is not loaded", "Start this on a GPU node, after the driver is up.")
    found = sorted(path.parent for path in (root / "usr/src").glob("**/nv-p2p.c") if path.with_suffix(".h").is_file())
    fitting = [folder for folder in found if any(part.endswith(f"-{driver}") for part in folder.parts)]
    if not fitting:
        others = ", ".join(map(str, found)) or "none"
        raise RuntimeFault(
            "NVIDIA driver sources",
            f"/usr/src/nvidia*-{driver}",
            f"are not there; there are: {others}",
            "EKS's images since 20260917 keep them in /opt/nvidia/current, in the package kmod-nvidia-open-dkms, and the "
            "pool's user data unpacks it at first boot: replace a node that is older than its launch template, else read "
            "its cloud-init log. Or bake an AMI that has gdrdrv (images.bake_ami, then ami.baked).",
        )
    return fitting[0]


def _major(root: Path) -> int:
    for line in _text(root / "proc/devices").splitlines():
        number, _, name = line.strip().partition(" ")
        if name == MODULE and number.isdigit():
            return int(number)
    raise RuntimeFault("/proc/devices", MODULE, "is not in it although the module is loaded", "Read the kernel log.")


def make_device(path: Path, major: int) -> None:
    """A character device that everyone may open; one that is there with the same number is left."""
    if path.exists():
        found = path.stat()
        if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) == major:
            path.chmod(DEVICE_MODE)
            return
        path.unlink()
    os.mknod(path, stat.S_IFCHR | DEVICE_MODE, os.makedev(major, 0))
    # mknod goes by the umask.
    path.chmod(DEVICE_MODE)


def run_program(arguments: Sequence[str], folder: Path, seconds: float) -> str:
    """Runs a program without a shell and returns its output. Raises RuntimeFault where it fails."""
    ran = collect.run_program(arguments, seconds, folder)
    if ran is None:
        raise RuntimeFault(
            arguments[0], " ".join(arguments), "cannot run", "Check the image: the program is not there."
        )
    if ran.code:
        tail = "\n".join(ran.output.splitlines()[-TAIL_LINES:])
        raise RuntimeFault(arguments[0], " ".join(arguments), f"ended with {ran.code}", f"Its last lines:\n{tail}")
    return ran.output


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
