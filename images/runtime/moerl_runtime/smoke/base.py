"""The base model of the smoke job. Same seed, same bytes, wherever it is made."""

from __future__ import annotations

from pathlib import Path

from moerl_runtime.smoke import job, model_files, task
from moerl_runtime.smoke.model import ModelShape, initial_state


def make(directory: Path) -> None:
    """Leaves what is there."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        shape = ModelShape(vocabulary=len(task.SYMBOLS), context=task.CONTEXT)
        model_files.write(directory, shape, initial_state(shape, seed=job.MODEL_SEED))
