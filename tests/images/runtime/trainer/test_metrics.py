"""What the trainer exports is what the monitors and alerts are written for."""

from __future__ import annotations

from k8s.metrics import METRICS, TRAINER
from moerl_runtime.trainer.metrics import FAMILIES


def test_every_family_of_the_trainer_is_declared_as_the_monitors_know_it() -> None:
    expected = {name: (metric.kind, metric.help) for name, metric in METRICS.items() if metric.exporter is TRAINER}
    assert dict(FAMILIES) == expected
