"""`efa-exporter`: hardware counters of a node's EFA devices for Prometheus, read anew at every scrape.

They come from DIR/class/infiniband/DEVICE/ports/PORT/hw_counters/NAME, where DIR is the host's sysfs: the one that a pod sees
has the devices without their counters. The names are those of the metrics table in `k8s/metrics.py`; a counter that the
driver does not have is left out, never shown as 0.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from moerl_runtime import serve
from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import CONTENT_TYPE, Metrics
from moerl_runtime.stop import on_stop

PREFIX = "node_amazonefa_"
COUNTERS: Mapping[str, str] = MappingProxyType(
    {
        "rdma_write_bytes": "Bytes written by RDMA.",
        "rdma_read_bytes": "Bytes read by RDMA.",
        "tx_bytes": "Bytes sent.",
        "rx_bytes": "Bytes received.",
        "rx_drops": "Packets dropped.",
        "rdma_write_wr_err": "RDMA writes that failed.",
        "rdma_read_wr_err": "RDMA reads that failed.",
    }
)
"""File of the driver (drivers/infiniband/hw/efa/efa_verbs.c) to help text."""

EPILOG = """exit codes: 0 told to stop, 1 the address cannot be bound, 2 wrong input.

/metrics answers 200 with what is there; /health answers 200 while any device has counters, else 503.

example: efa-exporter --listen 10.0.0.7:9090 --sysfs /host/sys
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "efa-exporter",
        help="EFA counters of a node for Prometheus",
        description="Serves the EFA counters of a node to Prometheus.",
        epilog=EPILOG,
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="address to serve on, and no other")
    parser.add_argument("--sysfs", required=True, type=Path, metavar="DIR", help="the host's sysfs")
    parser.set_defaults(handler=_handle)


def _handle(arguments: argparse.Namespace) -> int:
    sysfs: Path = arguments.sysfs
    if not (sysfs / "class").is_dir():
        raise InputFault("--sysfs", str(sysfs), "is no sysfs", "Mount the host's /sys and name where.")
    stopped = threading.Event()
    on_stop(stopped.set)  # first: whoever sees it listen may end it
    with serve.serving(arguments.listen, handler(sysfs)) as url:
        print(f"EFA counters of {sysfs} at {url}/metrics", flush=True)
        stopped.wait()
    return 0


def handler(sysfs: Path) -> serve.Handler:
    """Answers /metrics and /health."""

    def answer(request: serve.Request) -> serve.Answer:
        if request.path == "/metrics":
            return serve.Answer(body=exposition(sysfs).encode(), content_type=CONTENT_TYPE)
        if request.path == "/health":
            return serve.Answer(status=200 if any(_ports(sysfs)) else 503)
        return serve.Answer(status=404)

    return answer


def exposition(sysfs: Path) -> str:
    """All counters of all ports of all devices, in Prometheus' text form."""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for port in _ports(sysfs):
        for name in COUNTERS:
            value = _number(port / "hw_counters" / name)
            if value is not None:
                found.setdefault(name, []).append((value, port.parents[1].name, port.name))
    metrics = Metrics({PREFIX + name: ("counter", text) for name, text in COUNTERS.items() if name in found})
    for name, series in found.items():
        for value, device, number in series:
            metrics.add(PREFIX + name, value, device=device, port=number)
    return metrics.exposition()


def _ports(sysfs: Path) -> list[Path]:
    """Ports that have hardware counters, by device and number."""
    folder = sysfs / "class/infiniband"
    return sorted(path.parent for path in folder.glob("*/ports/*/hw_counters"))


def _number(path: Path) -> int | None:
    """None for a file that is not there or holds something else: a device may go while it is read."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
