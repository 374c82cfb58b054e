"""Tokens whose content follows from their number, so that any rank can say what it should have received.

A row is a function of the token's global number alone, an expert's work is a scaling by a function of the expert's number
alone, and routing is drawn from the rank's seed and shared. Nothing that is checked has passed through what is tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moerl_runtime.bench.settings import Shape
from moerl_runtime.bench.traffic import BLOCK

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FP8_MAX = 448.0
SCALE_FLOOR = 1e-4
ROWS_AT_ONCE = 8192
"""They are made from 64-bit integers, eight times the size of what is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Tokens as they travel: BF16 values, or FP8 values with a scale for each block of 128."""

    values: Tensor
    scales: Tensor | None

    def decoded(self) -> Tensor:
        """As float32."""
        import torch

        if self.scales is None:
            return self.values.to(torch.float32)
        tokens, hidden = self.values.shape
        blocks = self.values.to(torch.float32).view(tokens, -1, BLOCK)
        return (blocks * self.scales.reshape(tokens, -1, 1)).view(tokens, hidden)


def rows(numbers: Tensor, hidden: int, *, fp8: bool) -> Rows:
    """The tokens of these global numbers: values in [-1, 1) that no other token has in the same places."""
    import torch

    parts = [_rows(part, hidden, fp8=fp8) for part in torch.split(numbers, ROWS_AT_ONCE)]
    return Rows(
        values=torch.cat([part.values for part in parts]),
        scales=torch.cat([part.scales for part in parts if part.scales is not None]) if fp8 else None,
    )


def _rows(numbers: Tensor, hidden: int, *, fp8: bool) -> Rows:
    import torch

    columns = torch.arange(hidden, device=numbers.device, dtype=torch.int64)
    mixed = (numbers.to(torch.int64)[:, None] * 1_000_003 + columns[None, :] * 7_919 + 12_345) & 0x7FFFFFFF
    mixed = (mixed ^ (mixed >> 13)) * 1_274_126_177 & 0x7FFFFFFF
    values = ((mixed ^ (mixed >> 16)) & 0xFFFF).to(torch.float32) / 32_768.0 - 1.0
    if not fp8:
        return Rows(values=values.to(torch.bfloat16), scales=None)
    return quantized(values.to(torch.bfloat16))


def quantized(values: Tensor) -> Rows:
    """FP8 (e4m3) with a float32 scale for each 128 values, as DeepEP and SGLang have it."""
    import torch

    tokens, hidden = values.shape
    blocks = values.to(torch.float32).view(tokens, -1, BLOCK)
    largest = blocks.abs().amax(dim=2).clamp(min=SCALE_FLOOR)
    scaled = (blocks * (FP8_MAX / largest)[:, :, None]).to(torch.float8_e4m3fn)
    return Rows(values=scaled.view(tokens, hidden), scales=largest / FP8_MAX)


def routing(shape: Shape, tokens: int, rank: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(experts, weights) of a rank's tokens: top-k different experts at random, weights that sum to 1.

    Drawn on the CPU, so that every kind of device sees the same numbers.
    """
    import torch

    generator = torch.Generator().manual_seed(seed * 100_003 + rank)
    scores = torch.rand((tokens, shape.experts), generator=generator)
    chosen = scores.topk(shape.top_k, dim=1)
    weights = chosen.values / chosen.values.sum(dim=1, keepdim=True)
    return chosen.indices.to(device), weights.to(torch.float32).to(device)


def expert_outputs(received: Tensor, experts: Tensor, weights: Tensor, *, first_expert: int) -> Tensor:
    """What a rank's experts make of its tokens, summed over them in float32 and rounded once, to BF16.

    `experts` are local numbers, -1 for another rank's. Expert e multiplies by 1 + (e mod 7) / 8.
    """
    import torch

    here = experts >= 0
    factors = 1.0 + ((experts + first_expert) % 7).to(torch.float32) / 8.0
    total = torch.where(here, factors * weights, torch.zeros_like(weights)).sum(dim=1)
    return (received * total[:, None]).to(torch.bfloat16)


def expected_combined(sent: Rows, experts: Tensor, weights: Tensor, *, experts_per_rank: int) -> Tensor:
    """Sum over ranks of each one's rounded result: what comes back to the token's own rank, as float32."""
    import torch

    decoded = sent.decoded()
    owner = experts // experts_per_rank
    total = torch.zeros_like(decoded)
    for rank in torch.unique(owner).tolist():
        local = torch.where(owner == rank, experts - rank * experts_per_rank, torch.full_like(experts, -1))
        part = expert_outputs(decoded, local, weights, first_expert=rank * experts_per_rank)
        total += part.to(torch.float32) * (local >= 0).any(dim=1)[:, None]
    return total
