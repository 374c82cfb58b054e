"""Graders turn an answer into a reward. A task names its grader; the images bring them.

A grader is a function `(*, prompt, response, label, metadata) -> (reward, metadata of the sample)`. Those of other packages
are entry points of the group `moerl.graders`; `exact` is built in. `environment:NAME` is no grader here: an environment
worker runs NAME (`moerl_runtime.workers.environment`), away from the GPUs and from every AWS role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from typing import Any, Protocol

GROUP = "moerl.graders"
REMOTE = "environment:"
"""Prefix of the names that an environment worker grades."""

_NUMBER = re.compile(r"-?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|\.\d+)")
_BOXED = "\\boxed{"


class Grader(Protocol):
    def __call__(
        self, *, prompt: str, response: str, label: str | None, metadata: Mapping[str, Any]
    ) -> tuple[float, dict[str, Any]]: ...


class GradeError(Exception):
    """This answer got no reward; says why."""


def grade(
    name: str, *, prompt: str, response: str, label: str | None, metadata: Mapping[str, Any]
) -> tuple[float, dict[str, Any]]:
    """(reward, metadata to store with the sample). Raises GradeError, whatever the grader itself raised."""
    grader = _grader(name)
    try:
        reward, found = grader(prompt=prompt, response=response, label=label, metadata=metadata)
        reward = float(reward)
    except GradeError:
        raise
    except Exception as error:  # code of another package: any error of it is this answer's
        raise GradeError(f"grader {name}: {type(error).__name__}: {error}") from error
    if not isfinite(reward):
        raise GradeError(f"grader {name}: reward {reward} is no finite number")
    return reward, dict(found)


def names() -> list[str]:
    """Graders that a task may name here. Raises GradeError where one of them cannot be loaded."""
    known = sorted({"exact", *_installed()})
    for name in known:
        _grader(name)
    return known


def exact(
    *, prompt: str, response: str, label: str | None, metadata: Mapping[str, Any]
) -> tuple[float, dict[str, Any]]:
    """1 where the last boxed answer, or else the last number, equals the label, 0 where not. Numbers compare as numbers."""
    del prompt, metadata
    if label is None:
        raise GradeError("grader exact: the task has no label")
    answer = _boxed(response)
    if answer is None:
        numbers = _NUMBER.findall(response)
        answer = numbers[-1] if numbers else ""
    return float(_canonical(answer) == _canonical(label)), {"answer": answer}


@cache
def _grader(name: str) -> Grader:
    if name == "exact":
        return exact
    installed = _installed()
    if name not in installed:
        known = ", ".join(sorted({"exact", *installed}))
        raise GradeError(f"grader {name!r} is not in this image, which has: {known}")
    try:
        grader: Grader = installed[name].load()
    except Exception as error:  # as above
        raise GradeError(f"grader {name} cannot be loaded: {type(error).__name__}: {error}") from error
    return grader


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _boxed(text: str) -> str | None:
    """What the last closed \\boxed{...} holds, inner braces included."""
    start = text.rfind(_BOXED)
    while start >= 0:
        depth, begin = 1, start + len(_BOXED)
        for position in range(begin, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[begin:position]
        start = text.rfind(_BOXED, 0, start)
    return None


def _canonical(text: str) -> str | Fraction:
    bare = text.strip().strip("$").strip().rstrip(".").replace(",", "")
    try:
        return Fraction(bare)
    except (ValueError, ZeroDivisionError):
        return bare
