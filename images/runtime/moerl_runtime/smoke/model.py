"""A tiny mixture-of-experts transformer, whose experts may lie on several ranks.

Routing is real (softmax, top-k, renormalised) and every token travels as in a large model: one row to each rank that holds
one of its experts, where partial sums over that rank's experts are made, and back. How rows travel is a Dispatcher's part
(`dispatch`), so the same model runs in one process, over gloo, NCCL or DeepEP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from moerl_runtime.smoke.dispatch import Dispatcher

EXPERT_TENSORS = ("experts_up", "experts_down")
"""Their first dimension is the expert: what is split over ranks. All other tensors are the same on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of the model. DeepEP takes a `hidden` that is a multiple of 256."""

    vocabulary: int
    context: int
    hidden: int = 64
    heads: int = 2
    layers: int = 2
    experts: int = 4
    top_k: int = 2
    expert_hidden: int = 64


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.mixed = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        mixed = self.mixed(x).view(batch, length, 3, self.heads, hidden // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, self.out(attended.transpose(1, 2).reshape(batch, length, hidden)))


class Experts(nn.Module):
    """Router and this rank's experts."""

    def __init__(self, shape: ModelShape, dispatcher: Dispatcher) -> None:
        super().__init__()
        self.top_k, self.dispatcher = shape.top_k, dispatcher
        local = shape.experts // dispatcher.ranks
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts_up = nn.Parameter(torch.empty(local, shape.hidden, shape.expert_hidden))
        self.experts_down = nn.Parameter(torch.empty(local, shape.expert_hidden, shape.hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs, this rank's share of the balance loss) of tokens [count, hidden]."""
        shares = functional.softmax(self.router(x), dim=-1)
        weights, chosen = shares.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        arrived = self.dispatcher.dispatch(x, chosen, weights)
        made = torch.zeros_like(arrived.rows)
        for expert in range(self.experts_up.shape[0]):
            row, choice = (arrived.experts == expert).nonzero(as_tuple=True)
            inner = functional.silu(arrived.rows[row] @ self.experts_up[expert]) @ self.experts_down[expert]
            made = made.index_add(0, row, inner * arrived.weights[row, choice].unsqueeze(1))
        used = torch.bincount(chosen.flatten(), minlength=shares.shape[1])
        # Of the tokens of all ranks, so that it does not matter how many ranks share them.
        tokens = self.dispatcher.total(torch.cat([used, used.new_tensor([x.shape[0]])]))
        used_share, count = tokens[:-1] / tokens[-1], tokens[-1]
        balance = shares.shape[1] * (used_share * shares.sum(dim=0) / count).sum() / self.top_k
        return self.dispatcher.combine(made, arrived), balance


class Block(nn.Module):
    def __init__(self, shape: ModelShape, dispatcher: Dispatcher) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.before_experts = nn.RMSNorm(shape.hidden)
        self.experts = Experts(shape, dispatcher)

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """`real` marks tokens that are no padding: only those are routed."""
        x = x + self.attention(self.before_attention(x))
        made, balance = self.experts(self.before_experts(x)[real])
        return x + torch.zeros_like(x).masked_scatter(real.unsqueeze(-1), made), balance


class TinyMoe(nn.Module):
    def __init__(self, shape: ModelShape, dispatcher: Dispatcher) -> None:
        super().__init__()
        if shape.experts % dispatcher.ranks:
            raise ValueError(f"{shape.experts} experts cannot be split over {dispatcher.ranks} ranks")
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = nn.Embedding(shape.context, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape, dispatcher) for _ in range(shape.layers))
        self.last_norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probabilities of the next token [batch, length, vocabulary], balance loss) of right-padded sequences."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        balances = []
        for block in self.blocks:
            x, balance = block(x, real)
            balances.append(balance)
        return functional.log_softmax(self.head(self.last_norm(x)), dim=-1), torch.stack(balances).mean()


def initial_state(shape: ModelShape, *, seed: int) -> dict[str, Tensor]:
    """All tensors of a fresh model, experts of all ranks included; the same for the same seed wherever it is made."""
    from moerl_runtime.smoke.dispatch import Alone

    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}
    for name, tensor in TinyMoe(shape, Alone()).state_dict().items():
        if name.endswith("norm.weight") or ".before_" in name:
            state[name] = torch.ones_like(tensor)
        else:
            scale = 0.02 if "positions" in name else (tensor.shape[-1 if "experts_" not in name else -2]) ** -0.5
            state[name] = torch.randn(tensor.shape, generator=generator) * scale
    return state


def is_expert(name: str) -> bool:
    return name.endswith(EXPERT_TENSORS)


def share_of(state: Mapping[str, Tensor], *, rank: int, ranks: int) -> dict[str, Tensor]:
    """One rank's part of all tensors."""
    return {name: tensor.chunk(ranks)[rank] if is_expert(name) else tensor for name, tensor in state.items()}
