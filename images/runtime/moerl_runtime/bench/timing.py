"""How long steps take on a GPU or, for the tests of the bench, on a CPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Step = Callable[[Any], Any]
"""Gets what the step before returned."""
SPIN_CYCLES = 40_000_000
"""About 20 ms of a GPU. Launches are queued behind it, so that kernels of a few microseconds are not timed at the speed of
Python; the spin itself is before the first event."""


def on_gpu(steps: Sequence[Step], *, warmups: int, repeats: int) -> list[float]:
    """Median seconds of each step, by events around it. The steps must not wait for the CPU."""
    import torch
    import torch.distributed as dist

    for _ in range(warmups):
        _run(steps)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    marks = [[_event() for _ in range(len(steps) + 1)] for _ in range(repeats)]
    torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
    for row in marks:
        row[0].record()
        value: Any = None
        for step, after in zip(steps, row[1:], strict=True):
            value = step(value)
            after.record()
    torch.cuda.synchronize()
    return [
        statistics.median(row[place].elapsed_time(row[place + 1]) / 1e3 for row in marks) for place in range(len(steps))
    ]


def on_cpu(steps: Sequence[Step], *, warmups: int, repeats: int, clock: Callable[[], float]) -> list[float]:
    """The same by a clock."""
    for _ in range(warmups):
        _run(steps)
    taken: list[list[float]] = []
    for _ in range(repeats):
        value: Any = None
        row = []
        for step in steps:
            begun = clock()
            value = step(value)
            row.append(clock() - begun)
        taken.append(row)
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _run(steps: Sequence[Step]) -> None:
    value: Any = None
    for step in steps:
        value = step(value)
