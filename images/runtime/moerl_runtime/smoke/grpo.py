"""GRPO on a batch of finished groups: advantages within each group, clipped ratio, truncated importance weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moerl_runtime.smoke.model import TinyMoe


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_max: float = 2.0
    """Of the weight that corrects for samples from older weights (TIS)."""
    balance_weight: float = 0.01
    entropy_weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One sample as training sees it."""

    tokens: tuple[int, ...]
    response_length: int
    log_probs: tuple[float, ...]
    """Of the response, as the engine sampled it."""
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Right-padded tensors of some answers; position p of the last dimension predicts token p + 1."""

    tokens: Tensor
    real: Tensor
    targets: Tensor
    responding: Tensor
    """1.0 where the predicted token belongs to the response."""
    sampled: Tensor
    """Log-probabilities of the engine."""
    advantages: Tensor


def advantages(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Per group: reward less the group's mean, over its standard deviation. A group that agrees teaches nothing."""
    found = []
    for group in rewards:
        mean = sum(group) / len(group)
        deviation = (sum((reward - mean) ** 2 for reward in group) / len(group)) ** 0.5
        found.append([(reward - mean) / (deviation + 1e-6) if deviation > 0 else 0.0 for reward in group])
    return found


def batch_of(answers: Sequence[Answer], device: torch.device) -> Batch:
    length = max(len(answer.tokens) for answer in answers)
    tokens = torch.zeros(len(answers), length, dtype=torch.long)
    real = torch.zeros(len(answers), length, dtype=torch.bool)
    responding, sampled = torch.zeros(len(answers), length - 1), torch.zeros(len(answers), length - 1)
    for row, answer in enumerate(answers):
        end = len(answer.tokens)
        start = end - answer.response_length - 1
        tokens[row, :end] = torch.tensor(answer.tokens)
        real[row, :end] = True
        responding[row, start : end - 1] = 1.0
        sampled[row, start : end - 1] = torch.tensor(answer.log_probs)
    return Batch(
        tokens=tokens.to(device),
        real=real.to(device),
        targets=tokens[:, 1:].to(device),
        responding=responding.to(device),
        sampled=sampled.to(device),
        advantages=torch.tensor([answer.advantage for answer in answers]).to(device),
    )


def target_log_probs(model: TinyMoe, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(log-probabilities of the targets, entropies, balance loss)."""
    distributions, balance = model(batch.tokens, batch.real)
    distributions = distributions[:, :-1]
    chosen = distributions.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
    return chosen, -(distributions.exp() * distributions).sum(dim=-1), balance


def loss(model: TinyMoe, batch: Batch, before: Tensor, settings: GrpoSettings, *, tokens: float) -> Tensor:
    """This rank's share of the loss over `tokens` response tokens of all ranks.

    `before` are the log-probabilities of the weights that began the step: the ratio is taken to them, and the weight
    between them and the engine's corrects for samples that are older.
    """
    now, entropy, balance = target_log_probs(model, batch)
    weight = (before - batch.sampled).exp().clamp(max=settings.importance_max)
    ratio = (now - before).exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    gain = torch.minimum(ratio * batch.advantages.unsqueeze(1), clipped * batch.advantages.unsqueeze(1))
    policy = -((gain * weight + settings.entropy_weight * entropy) * batch.responding).sum() / tokens
    return policy + settings.balance_weight * balance


def supervised_loss(model: TinyMoe, batch: Batch, *, tokens: float, balance_weight: float) -> Tensor:
    """This rank's share of the cross-entropy of the responses."""
    now, _, balance = target_log_probs(model, batch)
    return -(now * batch.responding).sum() / tokens + balance_weight * balance
