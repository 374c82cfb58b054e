"""Dispatch and combine over torch.distributed, in plain torch: what DeepEP is held against, in results and in time.

Two ways to send a token to its experts. `merged` sends it once to each rank that has any of them, and the rank's results
come back as one sum; `permuted` sends one copy per expert, as Megatron's all-to-all dispatcher does. Both are given the
split sizes before time is taken: a real layer has to exchange them first, so their time is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from moerl_runtime.bench.settings import Shape
from moerl_runtime.bench.workload import Rows

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a rank got: rows, the global number of each, its experts here (-1: elsewhere) and their weights."""

    rows: Rows
    numbers: Tensor
    experts: Tensor
    weights: Tensor


class Dispatcher(Protocol):
    """One way to move tokens to experts and back. `dispatch` and `combine` are what is timed."""

    name: str

    def dispatch(self, sent: Rows) -> Any: ...

    def received(self, dispatched: Any) -> Received: ...

    def placed(self, outputs: Tensor, dispatched: Any) -> Tensor:
        """Results of `received` rows, laid out as combine reads them."""
        ...

    def combine(self, outputs: Tensor, dispatched: Any) -> Tensor: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Who gets which of this rank's rows, and what it gets from whom."""

    rows: Tensor
    """Local row of each copy that is sent, in order of the ranks that get them."""
    sends: list[int]
    receives: list[int]
    numbers: Tensor
    experts: Tensor
    weights: Tensor


class PlainDispatcher:
    """all_to_all_single of rows; `permuted` makes one copy for each expert."""

    def __init__(
        self, shape: Shape, experts: Tensor, weights: Tensor, *, rank: int, ranks: int, permuted: bool
    ) -> None:
        self.name = "nccl-permuted" if permuted else "nccl-merged"
        self._tokens = experts.shape[0]
        self._layout = _layout(shape, experts, weights, rank=rank, ranks=ranks, permuted=permuted)

    def dispatch(self, sent: Rows) -> Rows:
        layout = self._layout
        values = _exchange(sent.values[layout.rows], layout.sends, layout.receives)
        if sent.scales is None:
            return Rows(values=values, scales=None)
        return Rows(values=values, scales=_exchange(sent.scales[layout.rows], layout.sends, layout.receives))

    def received(self, dispatched: Rows) -> Received:
        layout = self._layout
        return Received(rows=dispatched, numbers=layout.numbers, experts=layout.experts, weights=layout.weights)

    def placed(self, outputs: Tensor, dispatched: Rows) -> Tensor:  # noqa: ARG002 - others pad to it
        return outputs

    def combine(self, outputs: Tensor, dispatched: Rows) -> Tensor:  # noqa: ARG002 - others keep their handle in it
        import torch

        layout = self._layout
        back = _exchange(outputs, layout.receives, layout.sends)
        combined = torch.zeros((self._tokens, outputs.shape[1]), dtype=torch.float32, device=outputs.device)
        return combined.index_add_(0, layout.rows, back.to(torch.float32)).to(outputs.dtype)

    def close(self) -> None:
        """Nothing is held."""


def _layout(shape: Shape, experts: Tensor, weights: Tensor, *, rank: int, ranks: int, permuted: bool) -> _Layout:
    import torch
    import torch.distributed as dist

    per_rank = shape.experts // ranks
    owner = experts // per_rank
    picked, local, scale = [], [], []
    for target in range(ranks):
        mine = owner == target
        if permuted:
            row, column = mine.nonzero(as_tuple=True)
            picked.append(row)
            local.append((experts[row, column] - target * per_rank)[:, None])
            scale.append(weights[row, column][:, None])
        else:
            (row,) = mine.any(dim=1).nonzero(as_tuple=True)
            picked.append(row)
            local.append(torch.where(mine[row], experts[row] - target * per_rank, -1))
            scale.append(weights[row])
    sends = [int(part.numel()) for part in picked]
    counts = torch.tensor(sends, dtype=torch.int64, device=experts.device)
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts)
    receives = [int(count) for count in incoming.tolist()]
    chosen = torch.cat(picked)
    return _Layout(
        rows=chosen,
        sends=sends,
        receives=receives,
        numbers=_exchange(chosen + rank * experts.shape[0], sends, receives),
        experts=_exchange(torch.cat(local), sends, receives),
        weights=_exchange(torch.cat(scale), sends, receives),
    )


def _exchange(rows: Tensor, sends: list[int], receives: list[int]) -> Tensor:
    """Rows to their ranks. As bytes where the backend has no name for the type."""
    import torch
    import torch.distributed as dist

    kept = rows.dtype
    plain = rows.contiguous().view(torch.uint8) if kept == torch.float8_e4m3fn else rows.contiguous()
    result = plain.new_empty((sum(receives), *plain.shape[1:]))
    dist.all_to_all_single(result, plain, receives, sends)
    return result.view(kept)
