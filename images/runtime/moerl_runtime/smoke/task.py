"""The smoke job's task: count on from a digit. Learned from nothing in a few dozen steps, and its reward can be checked.

    7=   890.     (the next digits, wrapping round, then the end)

Torch-free, since the agent grades and the engine's tokenizer run without it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from moerl_runtime.graders import GradeError

SYMBOLS = "0123456789=."
END = SYMBOLS.index(".")
GRADER = "count_on"
"""Under this name the package's entry point offers `grade`."""
DIGITS = 3
ANSWER_TOKENS = DIGITS + 1
CONTEXT = 2 + ANSWER_TOKENS
BASE = 10


def encode(text: str) -> tuple[int, ...]:
    return tuple(SYMBOLS.index(symbol) for symbol in text)


def decode(tokens: Sequence[int]) -> str:
    return "".join(SYMBOLS[token] for token in tokens)


def prompt(start: int) -> str:
    return f"{start}="


def label(start: int) -> str:
    return "".join(str((start + step) % BASE) for step in range(1, DIGITS + 1))


def starts(seed: int, count: int) -> list[int]:
    """First digits of `count` prompts, in an order that the seed fixes."""
    chosen = random.Random(seed)  # noqa: S311 - data, not secrets
    return [chosen.randrange(BASE) for _ in range(count)]


def reward(response: str, wanted: str) -> float:
    """Share of places that are right, where an answer that is too long or too short has wrong ones."""
    places = max(len(response), len(wanted))
    return sum(given == right for given, right in zip(response, wanted, strict=False)) / places


def grade(
    *, prompt: str, response: str, label: str | None, metadata: Mapping[str, Any]
) -> tuple[float, dict[str, Any]]:
    """Grader of the group `moerl.graders`. The end is part of a response as trainers ask for it, and no place of it."""
    del prompt, metadata
    if label is None:
        raise GradeError(f"grader {GRADER}: the task has no label")
    return reward(response.removesuffix(SYMBOLS[END]), label), {}
