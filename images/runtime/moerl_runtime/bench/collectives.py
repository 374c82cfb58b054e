"""`bench nccl` on one rank: all-reduce, all-to-all, send-receive round every ring, and a broadcast as a weight refit has.

A ring of distance d sends from each rank r to r + d: over all distances every ordered pair meets once. An all-reduce
passes over a node that lacks a device, since its rings choose their own way; pairs do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moerl_runtime.bench.settings import Settings
from moerl_runtime.bench.timing import Step
from moerl_runtime.bench.traffic import bus_factor

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Timer = Callable[[Sequence[Step]], list[float]]
SHARES = (1024, 16, 1)
"""Sizes of all-reduce and all-to-all: the largest message over each of these."""
RING_SHARE = 16
ELEMENT_BYTES = 4


def measure(settings: Settings, *, rank: int, device: torch.device, timer: Timer) -> dict[str, Any]:
    """Results of this rank: `cases` by collective and size, `rings` by distance, `faults` as text."""
    import torch

    ranks, faults = settings.ranks, []
    cases: list[dict[str, Any]] = []

    def buffer(elements: int) -> Tensor:
        return torch.full((elements,), float(rank + 1), dtype=torch.float32, device=device)

    for share in SHARES:
        elements = max(1, settings.largest_bytes // share // ELEMENT_BYTES // ranks) * ranks
        for name, run in (("all-reduce", _all_reduce), ("all-to-all", _all_to_all)):
            seconds, found = run(buffer(elements), rank, ranks, timer)
            cases.append(_result(name, elements, seconds, ranks))
            faults += found
    elements = max(1, settings.largest_bytes // ELEMENT_BYTES)
    seconds, found = _broadcast(buffer(elements), timer)
    cases.append(_result("broadcast", elements, seconds, ranks))
    faults += found
    elements = max(1, settings.largest_bytes // RING_SHARE // ELEMENT_BYTES)
    rings = []
    for distance in settings.rings or range(1, ranks):
        seconds, found = _ring(buffer(elements), rank, ranks, distance, timer)
        rings.append({"distance": distance, **_result("send-receive", elements, seconds, ranks)})
        faults += found
    return {"cases": cases, "rings": rings, "faults": faults}


def _result(name: str, elements: int, seconds: float, ranks: int) -> dict[str, Any]:
    size = elements * ELEMENT_BYTES
    return {
        "collective": name,
        "bytes": size,
        "seconds": seconds,
        "bus_gb_per_second": size * bus_factor(name, ranks) / seconds / 1e9 if seconds > 0 else 0.0,
    }


def _all_reduce(values: Tensor, rank: int, ranks: int, timer: Timer) -> tuple[float, list[str]]:
    import torch
    import torch.distributed as dist

    dist.all_reduce(values)
    found = _all_equal(values, ranks * (ranks + 1) / 2, f"all-reduce of {values.numel()} values on rank {rank}")
    zeros = torch.zeros_like(values)
    return timer([lambda _: dist.all_reduce(zeros)])[0], found


def _all_to_all(values: Tensor, rank: int, ranks: int, timer: Timer) -> tuple[float, list[str]]:
    import torch
    import torch.distributed as dist

    result = torch.empty_like(values)
    dist.all_to_all_single(result, values)
    found = []
    for source, part in enumerate(result.chunk(ranks)):
        found += _all_equal(part, source + 1, f"all-to-all from rank {source} to rank {rank}")
    return timer([lambda _: dist.all_to_all_single(result, values)])[0], found


def _broadcast(values: Tensor, timer: Timer) -> tuple[float, list[str]]:
    import torch.distributed as dist

    dist.broadcast(values, src=0)
    found = _all_equal(values, 1, "broadcast from rank 0")
    return timer([lambda _: dist.broadcast(values, src=0)])[0], found


def _ring(values: Tensor, rank: int, ranks: int, distance: int, timer: Timer) -> tuple[float, list[str]]:
    import torch
    import torch.distributed as dist

    target, source = (rank + distance) % ranks, (rank - distance) % ranks
    result = torch.empty_like(values)

    def exchange(_: Any) -> None:
        work = dist.batch_isend_irecv([dist.P2POp(dist.isend, values, target), dist.P2POp(dist.irecv, result, source)])
        for item in work:
            item.wait()

    exchange(None)
    found = _all_equal(result, source + 1, f"send-receive from rank {source} to rank {rank}")
    return timer([exchange])[0], found


def _all_equal(values: Tensor, expected: float, what: str) -> list[str]:
    wrong = int((values != expected).sum())
    return [f"{what}: {wrong} of {values.numel()} values are wrong"] if wrong else []
