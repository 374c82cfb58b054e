"""Metric families of the trainer, as `k8s/metrics.py` names them. The head exports them; other processes report to it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from moerl_runtime.metrics import Kind, Metrics
from moerl_runtime.trainer.report import Phase

PHASES: tuple[Phase, ...] = get_args(Phase)
FAMILIES: Mapping[str, tuple[Kind, str]] = MappingProxyType(
    {
        "moerl_trainer_step": ("gauge", "Step in work."),
        "moerl_trainer_step_started_timestamp_seconds": ("gauge", "When that step began, as Unix time."),
        "moerl_trainer_phase": ("gauge", "1 for the phase in work: wait, train, save or publish."),
        "moerl_trainer_phase_seconds_total": ("counter", "Time spent in each phase."),
        "moerl_trainer_weight_version": ("gauge", "Newest version published."),
        "moerl_trainer_reward_mean": ("gauge", "Mean raw reward of the last batch."),
        "moerl_trainer_repetition_share": ("gauge", "Share of repetitive samples in the last batch."),
        "moerl_trainer_truncated_share": ("gauge", "Share of truncated samples in the last batch."),
        "moerl_trainer_staleness_versions": ("gauge", "Mean age of the last batch's samples, in versions."),
        "moerl_trainer_tasks_outstanding": ("gauge", "Tasks issued and without all results."),
        "moerl_trainer_oldest_task_age_seconds": ("gauge", "Age of the oldest of those."),
        "moerl_trainer_tasks_reissued_total": ("counter", "Tasks issued again from the ledger."),
        "moerl_trainer_results_total": ("counter", "used, stale, duplicate or invalid."),
        "moerl_trainer_save_seconds": ("gauge", "Duration of the last save, for which all ranks waited."),
        "moerl_trainer_checkpoint_step": ("gauge", "Step of the newest committed checkpoint."),
    }
)


def metrics() -> Metrics:
    return Metrics(FAMILIES)
