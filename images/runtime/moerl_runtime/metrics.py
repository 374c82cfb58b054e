"""Gauges and counters of one process in Prometheus' text form. Names, kinds and labels are in `k8s/metrics.py`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter"]
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Thread-safe series. A family has to be declared, with its help text, before it is written to.

    A counter or gauge without labels stands at 0 from the start, so that a rate over it is defined.
    """

    def __init__(self, families: Mapping[str, tuple[Kind, str]]) -> None:
        self._families = dict(families)
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in families}

    def set(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._of(name, "gauge")[tuple(sorted(labels.items()))] = float(value)

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        with self._lock:
            series = self._of(name, "counter")
            series[key] = series.get(key, 0.0) + amount

    def value(self, name: str, **labels: str) -> float:
        """What was last written; 0 for a series that nobody wrote."""
        with self._lock:
            return self._values[name].get(tuple(sorted(labels.items())), 0.0)

    def series(self) -> list[tuple[str, Labels, float]]:
        """Everything that was written, for a process that shows it beside its own."""
        with self._lock:
            return [(name, key, value) for name, found in self._values.items() for key, value in sorted(found.items())]

    def exposition(self) -> str:
        """All families, in the order of their declaration."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, text) in self._families.items():
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                series = self._values[name] or {(): 0.0}
                lines += [f"{name}{_labels(key)} {value!r}" for key, value in sorted(series.items())]
        return "\n".join(lines) + "\n"

    def _of(self, name: str, kind: Kind) -> dict[Labels, float]:
        if self._families[name][0] != kind:
            raise ValueError(f"{name} is a {self._families[name][0]}, not a {kind}")
        return self._values[name]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
