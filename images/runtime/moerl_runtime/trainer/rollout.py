"""The rollout function of both frameworks: a batch of finished groups for a step.

Miles builds `Rollout` once and calls it for every step; slime calls `generate_rollout`. Neither generates: the samples come
from the queue's agents, and evaluation runs outside the loop, on published weights.
"""

from __future__ import annotations

from typing import Any

from moerl_runtime.faults import InputFault
from moerl_runtime.trainer import framework
from moerl_runtime.trainer.data_source import DataSource


class Rollout:
    """Built with RolloutFnConstructorInput(args, data_source)."""

    def __init__(self, input: Any) -> None:
        self._data_source = _ours(input.data_source)

    def __call__(self, input: Any) -> Any:
        """RolloutFnTrainInput(rollout_id, weight_version) to RolloutFnTrainOutput(samples, metrics)."""
        return _batch(self._data_source, input.rollout_id, input.weight_version, evaluation=input.evaluation)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:  # noqa: ARG001
    """slime's form; it keeps no version of weights, so the data source counts its publications."""
    return _batch(_ours(data_source), rollout_id, None, evaluation=evaluation)


def _batch(data_source: DataSource, step: int, weight_version: int | None, *, evaluation: bool) -> Any:
    if evaluation:
        raise InputFault(
            "--eval-interval",
            step,
            "the trainer has no engines to evaluate on",
            "Remove it, and evaluate published weights in a job of their own.",
        )
    if data_source.settings.framework == "miles":
        # None until the first update, which publishes nothing: engines serve the base, version 0.
        weight_version = weight_version or 0
    groups, metrics = data_source.batch(step, weight_version)
    return framework.train_output(data_source.settings.framework)(samples=groups, metrics=metrics)


def _ours(data_source: Any) -> DataSource:
    if not isinstance(data_source, DataSource):
        raise InputFault(
            "--data-source-path",
            type(data_source).__name__,
            "has no ledger, so samples would come from nowhere",
            "Write moerl_runtime.trainer.data_source.DataSource.",
        )
    return data_source
