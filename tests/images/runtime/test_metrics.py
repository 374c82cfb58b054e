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


def test_series_are_what_was_written_and_make_the_same_exposition_elsewhere() -> None:
    source, copy = made(), made()
    source.set("ready", 2)
    source.add("tasks_total", 3, outcome="done")
    assert source.series() == [("ready", (), 2.0), ("tasks_total", (("outcome", "done"),), 3.0)]
    for name, labels, value in source.series():
        (copy.set if name == "ready" else copy.add)(name, value, **dict(labels))
    assert copy.exposition() == source.exposition()
