"""What an agent exports, by the names of `k8s/metrics.py`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from moerl_runtime.metrics import Kind

METRICS: Mapping[str, tuple[Kind, str]] = MappingProxyType(
    {
        "moerl_agent_ready": ("gauge", "1 while the agent takes tasks."),
        "moerl_agent_held": ("gauge", "1 while it takes none since too many results wait for the trainer."),
        "moerl_agent_weight_version": ("gauge", "Version that the engine serves; 0 is the base model."),
        "moerl_agent_weight_load_seconds": ("gauge", "Duration of the last fetch and reload."),
        "moerl_agent_tasks_in_flight": ("gauge", "Tasks leased and not given back."),
        "moerl_agent_tasks_total": (
            "counter",
            "completed, returned, failed, crashed, dead_lettered, stale or expired.",
        ),
        "moerl_agent_samples_total": ("counter", "Samples stored in S3."),
        "moerl_agent_grader_busy_total": ("counter", "Answers that waited since no grader had time."),
        "moerl_agent_interruptions_total": ("counter", "Drains begun: spot, rebalance or stop."),
        "moerl_agent_draining_seconds": ("gauge", "Since this drain began; 0 outside one."),
    }
)
