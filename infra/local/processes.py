"""Processes of this machine, by what Linux says of them, and how they end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 15_000, 65_000
PORTS_MIN = 1_000
PORTS_APART = 64
"""Between the first ports of processes with successive numbers: more than one of them needs."""
LOCK_FILE = ".lock"


class InUse(RuntimeError):
    """A folder that another process works in."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made when absent, is this process's until the block or the process ends, however that ends.

    Raises InUse, which names the process that holds it, and OSError where the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # "File exists" would be no news to who named it
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    with (folder / LOCK_FILE).open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise InUse(f"process {lock.read().strip() or 'unknown'} works in {folder}") from error
        # The file stays when the block ends: a process that waits for its name could lock one that is removed.
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def free_port() -> int:
    """A TCP port that nothing listens on at this moment, and that this function has not given before.

    It may be seconds until the program listens that gets it. So it is none of those that the kernel hands out: by then it
    could be a client's, or a server's that asked for any.
    """
    for port in _ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise AssertionError("the ports of a cycle never end")


@cache
def _ports() -> Iterator[int]:
    """Those below the kernel's own range (ip(7): ip_local_port_range), from a place of this process's own on."""
    kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return cycle(ports(os.getpid(), kernels))


def ports(pid: int, kernels: int) -> list[int]:
    """From FIRST_PORT to where the kernel's range begins, or into that where it leaves too few; from a place that depends on
    the process."""
    count = (kernels if kernels >= FIRST_PORT + PORTS_MIN else LAST_PORT) - FIRST_PORT
    first = pid * PORTS_APART % count
    return [FIRST_PORT + (first + number) % count for number in range(count)]


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot (proc(5), stat field 22); None when gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def end_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to the process group that `leader` leads; nothing to do when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def write_whole(path: Path, text: str) -> None:
    """Replaces a file at once: a process that is ended meanwhile leaves the old one or the new one."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def tail(log: Path, lines: int) -> str:
    """The last lines of a log, '' when there is none."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.is_file() else ""


def listening_addresses(pid: int) -> list[tuple[str, int]]:
    """(address, port) of each TCP socket that a process listens on (proc(5): net/tcp and the process's descriptors)."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(os.readlink(descriptor))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            listens = fields[3] == "0A"
            if listens and f"socket:[{fields[9]}]" in sockets:
                host, _, port = fields[1].partition(":")
                found.append((_address(host), int(port, 16)))
    return found


def _address(text: str) -> str:
    """The kernel's hexadecimal address (32-bit words in host byte order) in usual notation."""
    words = [int(text[index : index + 8], 16) for index in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words)))
