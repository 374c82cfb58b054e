"""The framework's train.py: it stands in the framework's sources, with tools beside it, and in no wheel; the image says where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moerl_runtime.faults import InputFault

VARIABLE = "MOERL_TRAIN_SCRIPT"


def path(variables: Mapping[str, str]) -> Path:
    """Raises InputFault where the image names none, or none that is there."""
    written = variables.get(VARIABLE, "")
    if not Path(written).is_file():
        raise InputFault(
            VARIABLE,
            written or None,
            "names no file" if written else "is not set",
            "Use the image of the environment's software, which sets it to the framework's train.py.",
        )
    return Path(written)
