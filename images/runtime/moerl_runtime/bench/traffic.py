"""Bytes and ceilings of the benches, before anything is measured.

A token that goes to k experts on D domains (nodes over EFA, GPUs inside one node) leaves as one copy per domain where
copies are merged, so D * (1 - (1 - 1/D)**k) of them on average, its own domain included: that is what published numbers
call logical bandwidth. On the wire is the part that leaves its own domain, (D - 1) / D of it. Sent expert by expert, it is
k copies, (D - 1) / D of which are on the wire. Both are for routing without a preference.
"""

from __future__ import annotations

from dataclasses import dataclass

from moerl_runtime.bench.settings import Domain, Links, Shape

BLOCK = 128
"""Elements that share one FP8 scale of four bytes."""
SCALE_BYTES, BF16_BYTES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What the links allow one GPU at best, in both directions at once."""

    link: str
    gb_per_second: float
    """On the wire, one way."""


def ceiling(links: Links, nodes: int) -> Ceiling:
    """The narrower kind of link that the traffic has to cross: EFA between nodes, NVLink inside one."""
    if nodes > 1:
        return Ceiling(link="EFA", gb_per_second=links.efa_devices * links.efa_gbps / 8 / links.gpus)
    return Ceiling(link="NVLink", gb_per_second=float(links.nvlink_gb_per_second))


def domains(nodes: int, ranks_per_node: int) -> Domain:
    """Where copies are merged: nodes, or the GPUs of the only one."""
    return Domain(count=nodes, ranks=ranks_per_node) if nodes > 1 else Domain(count=ranks_per_node, ranks=1)


def token_bytes(hidden: int, *, fp8: bool) -> int:
    """Payload of one copy of a token; FP8 carries its scales."""
    return hidden + -(-hidden // BLOCK) * SCALE_BYTES if fp8 else hidden * BF16_BYTES


def expected_copies(count: int, top_k: int) -> float:
    """Merged copies of a token, its own domain included."""
    return count * (1.0 - (1.0 - 1.0 / count) ** top_k)


def wire_share(count: int) -> float:
    """Share of the copies that leaves its own domain."""
    return (count - 1) / count


def least_seconds(shape: Shape, tokens: int, domain: Domain, limit: Ceiling, *, fp8: bool) -> float:
    """Time of one leg if nothing but the bytes on the wire counted."""
    copies = expected_copies(domain.count, shape.top_k) * wire_share(domain.count)
    return tokens * copies * token_bytes(shape.hidden, fp8=fp8) / (limit.gb_per_second * 1e9)


def bus_factor(collective: str, ranks: int) -> float:
    """Bytes that each GPU has to send per byte of the buffer: NCCL's own definition of bus bandwidth."""
    share = (ranks - 1) / ranks
    return {"all-reduce": 2 * share, "all-to-all": share, "send-receive": 1.0, "broadcast": 1.0}[collective]
