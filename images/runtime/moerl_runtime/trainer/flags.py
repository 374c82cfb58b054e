"""The framework's command line as the render wrote it: a list of arguments, asked and changed by flag."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from moerl_runtime.faults import InputFault
from moerl_runtime.trainer.settings import Framework

FILE_NAME = "flags.json"
ROLLOUTS: dict[str, Framework] = {
    "moerl_runtime.trainer.rollout.Rollout": "miles",
    "moerl_runtime.trainer.rollout.generate_rollout": "slime",
}
"""Value of --rollout-function-path to the framework that takes that form."""

Flags = tuple[str, ...]


def load(directory: Path) -> Flags:
    """Raises InputFault for a file that is no list of arguments."""
    path = directory / FILE_NAME
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputFault("--config", str(path), f"cannot be read: {error}", "Mount the run's ConfigMap.") from error
    if not isinstance(written, list) or not all(isinstance(text, str) for text in written):
        raise InputFault("--config", str(path), "is no list of texts", "Render the run anew.")
    return tuple(written)


def value(flags: Sequence[str], name: str) -> str | None:
    """Value of a flag that has one; None where it is not there."""
    flag = f"--{name}"
    if flag not in flags:
        return None
    after = flags.index(flag) + 1
    if after == len(flags) or flags[after].startswith("--"):
        raise InputFault(flag, None, "has no value", "Render the run anew.")
    return flags[after]


def needed(flags: Sequence[str], name: str) -> str:
    found = value(flags, name)
    if found is None:
        raise InputFault(f"--{name}", None, "is missing", "Render the run anew.")
    return found


def replaced(flags: Sequence[str], name: str, new: str) -> Flags:
    """With that value in the place of the flag's own, or the flag added at the end."""
    if value(flags, name) is None:
        return (*flags, f"--{name}", new)
    at = list(flags).index(f"--{name}") + 1
    return (*flags[:at], new, *flags[at + 1 :])


def framework(flags: Sequence[str]) -> Framework:
    path = needed(flags, "rollout-function-path")
    if path not in ROLLOUTS:
        raise InputFault(
            "--rollout-function-path", path, "is not this package's", f"Write one of {', '.join(ROLLOUTS)}."
        )
    return ROLLOUTS[path]
