"""Whether a dispatcher delivered every token, whole, to the right rank, and brought back the right sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerl_runtime.bench.dispatch import Dispatcher, Received
from moerl_runtime.bench.settings import Shape
from moerl_runtime.bench.workload import Rows, expected_combined, expert_outputs, rows

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-2
"""Relative error of combined sums in BF16: libraries round at different places, by 2**-9 of a value each."""


def faults(
    dispatcher: Dispatcher, shape: Shape, sent: Rows, experts: Tensor, weights: Tensor, *, rank: int, ranks: int
) -> list[str]:
    """What this rank found wrong; empty when all is right. Every rank has to call it, since it sends."""
    import torch

    dispatched = dispatcher.dispatch(sent)
    received = dispatcher.received(dispatched)
    found = _delivery(received, shape, experts, rank=rank, ranks=ranks, fp8=sent.scales is not None)
    outputs = expert_outputs(
        received.rows.decoded(), received.experts, received.weights, first_expert=rank * (shape.experts // ranks)
    )
    combined = dispatcher.combine(dispatcher.placed(outputs, dispatched), dispatched).to(torch.float32)
    expected = expected_combined(sent, experts, weights, experts_per_rank=shape.experts // ranks)
    error = relative_error(combined, expected)
    if not error <= TOLERANCE:  # NaN is not
        found.append(f"combined tokens differ from the reference by {error:.3g} of its norm, more than {TOLERANCE}")
    return found


def relative_error(value: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what was expected; NaN stays NaN."""
    return float((value - expected).norm() / expected.norm().clamp(min=1e-12))


def _delivery(received: Received, shape: Shape, experts: Tensor, *, rank: int, ranks: int, fp8: bool) -> list[str]:
    """Each copy that routing asks for, once, with the content that its number gives."""
    import torch
    import torch.distributed as dist

    tokens, per_rank = experts.shape[0], shape.experts // ranks
    everyone = [torch.empty_like(experts) for _ in range(ranks)]
    dist.all_gather(everyone, experts.contiguous())
    routed = torch.cat(everyone)
    mine = (routed // per_rank) == rank
    wanted = torch.where(mine, routed - rank * per_rank, -1)
    # A copy is a pair of token and expert, whether several travelled as one row or not.
    expected = torch.stack([mine.nonzero()[:, 0], wanted[mine]], dim=1)
    here = received.experts >= 0
    got = torch.stack([received.numbers[here.nonzero()[:, 0]], received.experts[here]], dim=1)
    if not torch.equal(_sorted(expected, shape), _sorted(got.to(expected.dtype), shape)):
        return [f"rank {rank} got {len(got)} copies, not the {len(expected)} that routing sends it"]
    original = rows(received.numbers, shape.hidden, fp8=fp8)
    wrong = (original.values.view(torch.uint8) != received.rows.values.contiguous().view(torch.uint8)).any(dim=1)
    if original.scales is not None and received.rows.scales is not None:
        wrong |= (original.scales != received.rows.scales).any(dim=1)
    if bool(wrong.any()):
        token = int(received.numbers[wrong][0])
        return [f"rank {rank} got {int(wrong.sum())} of {tokens * ranks} tokens changed, the first of them {token}"]
    return []


def _sorted(pairs: Tensor, shape: Shape) -> Tensor:
    return (pairs[:, 0] * shape.experts + pairs[:, 1]).sort().values
