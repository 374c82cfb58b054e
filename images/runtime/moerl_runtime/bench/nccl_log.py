"""What NCCL and the EFA plugin say of themselves under NCCL_DEBUG=INFO, and what that proves.

That a plugin was loaded proves nothing: `Loaded gin plugin Libfabric_GDAKI` is in the log of a run that uses the CPU proxy.
GPU-direct networking is proven by the contexts that the plugin made, and by NCCL having passed over the plugin's proxy.

Formats: NCCL 2.31.2 (strings of the library), aws-ofi-nccl v1.21.1 (src/nccl_ofi_net.cpp, src/rdma/gin).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moerl_runtime.preflight.check import Check, judged

PROXY_TYPE, GDA_TYPE = 2, 5
WARNINGS_KEPT = 5

_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
_NETWORK = re.compile(r"Using network (.+?)\s*$")
_PROVIDER = re.compile(r"Selected provider is (\S+), fabric is (\S+) \(found (\d+) nics\)")
_CHANNEL = re.compile(r"via NET/([^/]+)/\d+(?:\(\d+\))?(\S*)")
_GIN_REQUESTED = re.compile(r"NCCL_GIN_TYPE set by environment to (\d+)")
_GIN_SKIPPED = re.compile(r"Skipping plugin (\S+) index \d+ type (\d+)")
_GIN_ASSIGNED = re.compile(r"Assigned plugin (\S+) type (\d+) to comm")
_GIN_PROXY = re.compile(r"using NCCL GIN proxy over RMA backend")
_GDA_CONTEXT = re.compile(r"gin GDAKI: createContext done")
_WARNING = re.compile(r"NCCL WARN (.+?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one rank's log shows. Empty and 0 mean that it does not say."""

    version: str = ""
    networks: tuple[str, ...] = ()
    provider: str = ""
    fabric: str = ""
    devices: int = 0
    channels: int = 0
    """Connections to other nodes."""
    channels_direct: int = 0
    """Of those, the ones whose data goes between GPU and NIC without the host's memory."""
    socket_channels: int = 0
    gin_requested: int = 0
    gin_skipped: tuple[int, ...] = ()
    gin_assigned: tuple[int, ...] = ()
    gin_proxy: bool = False
    gda_contexts: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def gin(self) -> str:
        """gda, proxy or none: what device-side networking went through. What was asked for proves nothing."""
        if self.gda_contexts and (PROXY_TYPE in self.gin_skipped or GDA_TYPE in self.gin_assigned):
            return "gda"
        if self.gin_proxy or PROXY_TYPE in self.gin_assigned:
            return "proxy"
        return "none"


def parse(text: str) -> Evidence:
    """Reads a log of any length; lines that say nothing about networking are passed over."""
    channels = _CHANNEL.findall(text)
    provider = _PROVIDER.search(text)
    version, requested = _VERSION.search(text), _GIN_REQUESTED.search(text)
    networks = dict.fromkeys(match[1] for line in text.splitlines() if (match := _NETWORK.search(line)))
    warnings = dict.fromkeys(match[1] for line in text.splitlines() if (match := _WARNING.search(line)))
    return Evidence(
        version=version[1] if version else "",
        networks=tuple(networks),
        provider=provider[1] if provider else "",
        fabric=provider[2] if provider else "",
        devices=int(provider[3]) if provider else 0,
        channels=len(channels),
        channels_direct=sum("GDRDMA" in suffix for _, suffix in channels),
        socket_channels=sum(name == "Socket" for name, _ in channels),
        gin_requested=int(requested[1]) if requested else 0,
        gin_skipped=tuple(sorted({int(kind) for _, kind in _GIN_SKIPPED.findall(text)})),
        gin_assigned=tuple(sorted({int(kind) for _, kind in _GIN_ASSIGNED.findall(text)})),
        gin_proxy=bool(_GIN_PROXY.search(text)),
        gda_contexts=len(_GDA_CONTEXT.findall(text)),
        warnings=tuple(warnings)[:WARNINGS_KEPT],
    )


def judge(
    ranks: Sequence[Evidence], *, nodes: int, transport: str, device_side: bool, efa_devices: int
) -> tuple[Check, ...]:
    """`device_side` says whether the run used DeepEP between nodes. One rank out of line fails the run: it is the slow
    one that all others wait for."""
    if nodes == 1:
        return (Check(name="network", status="skipped", found="one node: nothing leaves it"),)
    networks = sorted({name for rank in ranks for name in rank.networks})
    sockets = [place for place, rank in enumerate(ranks) if rank.socket_channels or "Socket" in rank.networks]
    checks = [
        judged(
            "network",
            not sockets and bool(networks) and all("Libfabric" in name for name in networks),
            found=f"socket fallback on ranks {_some(sockets)}" if sockets else ", ".join(networks) or "none in the log",
            needed="Libfabric (EFA) on every rank",
            fix="TCP is many times slower. Check that the pod has EFA devices, that NCCL_NET_PLUGIN and NCCL_NET are the "
            "plan's, and the plugin's own lines in the log.",
            cause="sockets-fallback" if sockets else "no-efa-network",
        ),
        judged(
            "provider",
            all(rank.provider == "efa" for rank in ranks),
            found=", ".join(sorted({f"{rank.provider or 'none'} ({rank.fabric or '-'})" for rank in ranks})),
            needed="efa on every rank",
            fix="Run `fi_info -p efa` in the pod: libfabric of the EFA installer has to come first on the library path.",
            cause="no-efa-provider",
        ),
        judged(
            "devices",
            all(rank.devices == efa_devices for rank in ranks),
            found=", ".join(sorted({str(rank.devices) for rank in ranks})),
            needed=f"{efa_devices} EFA devices on every rank's node",
            fix="A part of the devices breaks point-to-point traffic that all-reduce does not show: request all of them.",
            cause="efa-partial",
        ),
    ]
    staged = [place for place, rank in enumerate(ranks) if rank.channels > rank.channels_direct]
    checks.append(
        judged(
            "GPU-direct RDMA",
            not staged,
            found=f"data goes through host memory on ranks {_some(staged)}" if staged else "on every connection",
            needed="GDRDMA on every connection",
            fix="Check the EFA driver and the NVIDIA driver of the node; preflight names both.",
            cause="host-staged",
        )
    )
    if device_side and transport != "none":
        modes = sorted({rank.gin for rank in ranks})
        checks.append(
            judged(
                "device-side networking",
                modes == [transport],
                found=", ".join(modes),
                needed=transport,
                fix="Proxy instead of GPU-direct: set NCCL_GIN_TYPE=5 and NCCL_SYM_GIN_KERNELS_ENABLE=0 as the plan has "
                "them, and run preflight on the node for driver, gdrdrv and plugin."
                if transport == "gda"
                else "Set NCCL_GIN_TYPE as the plan has it; NCCL's own log says which plugin it passed over.",
                cause="proxy-instead-of-gda" if "proxy" in modes else "no-device-side-networking",
            )
        )
    return tuple(checks)


def _some(places: Sequence[int]) -> str:
    shown = ", ".join(map(str, places[:8]))
    return shown if len(places) <= 8 else f"{shown} and {len(places) - 8} more"
