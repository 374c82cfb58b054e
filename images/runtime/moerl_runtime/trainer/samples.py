"""Samples on the trainer's side: what may be trained on, what a batch looks like, and the framework's own form of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from moerl_runtime.protocol import Sample
from moerl_runtime.trainer.ledger import Taken
from moerl_runtime.trainer.prompts import Row

REPETITION_CHARACTERS = 10_000
REPETITION_RATIO = 10
"""Miles' own measure: the end of a long answer compresses to less than a tenth (`has_repetition` of 0.1.0)."""
RESERVED = frozenset({"raw_reward", "round_number"})
"""Keys of metadata that Miles, once it finds them in the first sample, asks of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    samples: int
    reward_mean: float
    reward_min: float
    reward_max: float
    repetition_share: float
    truncated_share: float
    staleness_versions: float
    """Mean over samples of the trainer's version less the oldest that served it."""


def problem(sample: Sample) -> str | None:
    """Why it cannot be trained on, or None. JSON keeps neither the types nor the lengths that training relies on."""
    length = sample.response_length
    if sample.status not in ("completed", "truncated"):
        return f"status {sample.status!r} is not a finished answer"
    if not _whole(length) or length < 1:
        return f"response_length {length!r} is no count of tokens"
    if len(sample.tokens) <= length or not _counts(sample.tokens):
        return f"{len(sample.tokens)} tokens are no prompt and {length} answer tokens"
    if len(sample.log_probs) != length or not set(map(type, sample.log_probs)) <= {int, float}:
        return f"{len(sample.log_probs)} log-probabilities are not {length} numbers"
    if not all(map(isfinite, sample.log_probs)):
        return "a log-probability is not finite"
    if sample.loss_mask is not None and (len(sample.loss_mask) != length or not set(sample.loss_mask) <= {0, 1}):
        return f"a loss mask of {len(sample.loss_mask)} is not {length} times 0 or 1"
    if not _finite(sample.reward):
        return f"reward {sample.reward!r} is no finite number"
    if not sample.versions or not _counts(sample.versions):
        return f"versions {sample.versions!r} are no weights"
    return None


def statistics(taken: Sequence[Taken], version: int) -> BatchStatistics:
    samples = [sample for group in taken for sample in group.samples]
    count, rewards = len(samples), [sample.reward for sample in samples]
    return BatchStatistics(
        samples=count,
        reward_mean=sum(rewards) / count,
        reward_min=min(rewards),
        reward_max=max(rewards),
        repetition_share=sum(repeats(sample.response) for sample in samples) / count,
        truncated_share=sum(sample.status == "truncated" for sample in samples) / count,
        staleness_versions=sum(version - min(sample.versions) for sample in samples) / count,
    )


def repeats(text: str) -> bool:
    """Whether the end of a long answer says the same thing over and over."""
    if len(text) <= REPETITION_CHARACTERS:
        return False
    end = text[-REPETITION_CHARACTERS:].encode()
    return len(end) > REPETITION_RATIO * len(zlib.compress(end, 9))


def framework_group(kind: type[Any], taken: Taken, row: Row) -> list[Any]:
    """The group as `Sample`s of Miles or slime; `kind` is their class. Its own validation runs where it has one."""
    made = []
    for sample in taken.samples:
        built = kind(
            group_index=taken.id,
            index=taken.id * len(taken.samples) + sample.sample,
            prompt=row.prompt if isinstance(row.prompt, str) else [dict(message) for message in row.prompt],
            tokens=list(sample.tokens),
            response=sample.response,
            response_length=sample.response_length,
            label=row.label,
            reward=sample.reward,
            loss_mask=None if sample.loss_mask is None else list(sample.loss_mask),
            # Digits only: Miles reads no staleness out of other text.
            weight_versions=[str(version) for version in sample.versions],
            rollout_log_probs=list(sample.log_probs),
            status=kind.Status(sample.status),
            metadata={key: value for key, value in {**row.metadata, **sample.metadata}.items() if key not in RESERVED},
        )
        if hasattr(built, "validate"):
            built.validate()
        made.append(built)
    return made


def prompt_group(kind: type[Any], group: int, row: Row, samples: int) -> list[Any]:
    """An unanswered group in the framework's form."""
    return [
        kind(
            group_index=group,
            index=group * samples + number,
            prompt=row.prompt if isinstance(row.prompt, str) else [dict(message) for message in row.prompt],
            label=row.label,
            metadata=dict(row.metadata),
        )
        for number in range(samples)
    ]


def _counts(values: Sequence[int]) -> bool:
    """Whether all are numbers from 0 up. By maps and sets: a batch has tens of millions of tokens."""
    return set(map(type, values)) == {int} and min(values) >= 0


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
