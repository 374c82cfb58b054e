"""The text that Prometheus reads, and what may be written to a series."""

from __future__ import annotations

import threading

import pytest
from moerl_runtime.metrics import Metrics


def made() -> Metrics:
    return Metrics({"ready": ("gauge", "1 while ready."), "tasks_total": ("counter", "By outcome.")})


def test_the_exposition_names_help_type_and_series() -> None:
    metrics = made()
    metrics.set("ready", 1)
    metrics.add("tasks_total", outcome="completed")
    metrics.add("tasks_total", 2, outcome='odd "one"\n')
    assert metrics.exposition() == (
        "# HELP ready 1 while ready.\n# TYPE ready gauge\nready 1.0\n"
        "# HELP tasks_total By outcome.\n# TYPE tasks_total counter\n"
        'tasks_total{outcome="completed"} 1.0\ntasks_total{outcome="odd \\"one\\"\\n"} 2.0\n'
    )


def test_a_family_that_nobody_wrote_to_stands_at_zero() -> None:
    assert "ready 0.0\n" in made().exposition()


def test_an_unknown_or_mistaken_family_is_an_error() -> None:
    with pytest.raises(KeyError):
        made().set("redy", 1)
    with pytest.raises(ValueError, match="tasks_total is a counter"):
        made().set("tasks_total", 1)


def test_no_count_is_lost_between_threads() -> None:
    metrics = made()
    threads = [threading.Thread(target=lambda: [metrics.add("tasks_total") for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.value("tasks_total") == 4000
