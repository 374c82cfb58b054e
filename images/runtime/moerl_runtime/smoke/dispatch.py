"""How rows of tokens reach the ranks of their experts and come back: alone, by all-to-all, by DeepEP.

One row travels to each rank that holds any expert of a token; the rank's partial sum travels back, and partial sums are
added. All three carry gradients: the backward of a dispatch is a combine, that of a combine is a dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch import distributed as dist

from moerl_runtime.bench import deepep


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """Rows on the rank of their experts."""

    rows: Tensor
    experts: Tensor
    """[rows, top_k]: number among this rank's experts, -1 where the choice lies elsewhere."""
    weights: Tensor
    origin: Any
    """What `combine` needs to find the way back."""


class Dispatcher(Protocol):
    ranks: int

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        """`experts` and `weights` are [tokens, top_k] of `x` [tokens, hidden]."""
        ...

    def combine(self, made: Tensor, arrived: Arrived) -> Tensor:
        """Sums of the rows' outputs per token, on the rank that the tokens came from."""
        ...

    def total(self, counts: Tensor) -> Tensor:
        """Sum over ranks, without a gradient."""
        ...


class Alone:
    """One process holds all experts: nothing travels. The reference for the others."""

    ranks = 1

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        return Arrived(rows=x, experts=experts, weights=weights, origin=None)

    def combine(self, made: Tensor, arrived: Arrived) -> Tensor:  # noqa: ARG002 - the way back is empty
        return made

    def total(self, counts: Tensor) -> Tensor:
        return counts


class AllToAll:
    """Over the default process group: gloo on CPU, NCCL on GPU. Float32 all the way."""

    def __init__(self, *, experts: int) -> None:
        self.ranks, self._rank = dist.get_world_size(), dist.get_rank()
        self._per_rank = experts // self.ranks

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        wanted = torch.stack([(experts // self._per_rank == rank).any(dim=1) for rank in range(self.ranks)])
        sent_to, sent = wanted.nonzero(as_tuple=True)
        outgoing = torch.bincount(sent_to, minlength=self.ranks)
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing)
        splits = (incoming.tolist(), outgoing.tolist())
        # Weights ride with their row, so that one exchange each way carries all gradients, in one order on every rank.
        both = exchange(torch.cat([x, weights], dim=1)[sent], *splits)
        numbers = exchange(experts[sent], *splits)
        here = numbers // self._per_rank == self._rank
        return Arrived(
            rows=both[:, : x.shape[1]],
            experts=torch.where(here, numbers - self._rank * self._per_rank, -1),
            weights=both[:, x.shape[1] :],
            origin=(sent, splits, x.shape[0]),
        )

    def combine(self, made: Tensor, arrived: Arrived) -> Tensor:
        sent, (incoming, outgoing), tokens = arrived.origin
        back = exchange(made, outgoing, incoming)
        return back.new_zeros(tokens, back.shape[1]).index_add(0, sent, back)

    def total(self, counts: Tensor) -> Tensor:
        return summed(counts)


def summed(counts: Tensor) -> Tensor:
    total = counts.detach().clone()
    dist.all_reduce(total)
    return total


def exchange(rows: Tensor, incoming: list[int], outgoing: list[int]) -> Tensor:
    """Rows of all ranks that are meant for this one, in the order of ranks."""
    return cast(Tensor, _Exchange.apply(rows, incoming, outgoing))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, incoming: list[int], outgoing: list[int]) -> Tensor:
        context.splits = (incoming, outgoing)
        received = rows.new_empty(sum(incoming), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), incoming, outgoing)
        return received

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        incoming, outgoing = context.splits
        return exchange(gradients[0], outgoing, incoming), None, None


class DeepEp:
    """DeepEP v2 (`deep_ep.ElasticBuffer`, 2.1.0). Rows and their gradients travel as BF16, weights as float32."""

    def __init__(self, *, experts: int, hidden: int, top_k: int, tokens_max: int, hybrid: bool) -> None:
        deep_ep = deepep.load()
        if hidden % 256:
            raise ValueError(f"DeepEP takes a hidden size that is a multiple of 256, not {hidden}")
        self.ranks = dist.get_world_size()
        self._experts = experts
        self._tokens_max = tokens_max
        self._number_type = deep_ep.topk_idx_t
        self.buffer = deep_ep.ElasticBuffer(
            dist.group.WORLD,
            num_max_tokens_per_rank=tokens_max,
            hidden=hidden,
            num_topk=top_k,
            use_fp8_dispatch=False,
            allow_hybrid_mode=hybrid,
            prefer_overlap_with_compute=False,
            sl_idx=0,
            explicitly_destroy=True,
        )

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> Arrived:
        rows, numbers, sent, handle = _Dispatch.apply(
            x, experts.to(self._number_type), weights.float(), self.buffer, self._experts, self._tokens_max
        )
        return Arrived(rows=rows, experts=numbers, weights=sent, origin=handle)

    def combine(self, made: Tensor, arrived: Arrived) -> Tensor:
        return cast(Tensor, _Combine.apply(made, self.buffer, arrived.origin))

    def total(self, counts: Tensor) -> Tensor:
        return summed(counts)

    def close(self) -> None:
        self.buffer.destroy()


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: Tensor, experts: Tensor, weights: Tensor, buffer: Any, all_experts: int, tokens_max: int
    ) -> tuple[Tensor, Tensor, Tensor, Any]:
        rows, numbers, sent, handle, _ = buffer.dispatch(
            x=x.to(torch.bfloat16).contiguous(),
            topk_idx=experts,
            topk_weights=weights,
            num_experts=all_experts,
            num_max_tokens_per_rank=tokens_max,
        )
        context.buffer, context.handle = buffer, handle
        context.mark_non_differentiable(numbers)
        return rows.to(x.dtype), numbers, sent, handle

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, _, weights, _ = gradients
        x, own, _ = context.buffer.combine(
            x=rows.to(torch.bfloat16).contiguous(), handle=context.handle, topk_weights=weights.contiguous()
        )
        return x.to(rows.dtype), None, own, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, made: Tensor, buffer: Any, handle: Any) -> Tensor:
        context.buffer, context.handle, context.rows = buffer, handle, len(made)
        combined, _, _ = buffer.combine(x=made.to(torch.bfloat16).contiguous(), handle=handle)
        return cast(Tensor, combined.to(made.dtype))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        rows, _, _, _, _ = context.buffer.dispatch(
            x=gradients[0].to(torch.bfloat16).contiguous(),
            handle=context.handle,
            # 2.1.0 looks at the number of experts before it takes it from the handle, unless it is told the SMs.
            num_sms=context.handle.num_sms,
        )
        # A cached dispatch does not wait for the count, and may leave room behind the rows.
        return rows[: context.rows].to(gradients[0].dtype), None, None
