"""What the picture of the smoke job is drawn from."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from infra.local import smoke_plot
from infra.local.smoke_report import Record, Step


def test_throughput_is_per_worker_over_the_last_seconds() -> None:
    samples = [
        (float(second), {"a": 10.0 * second, **({"b": 5.0 * (second - 4)} if second >= 4 else {})})
        for second in range(9)
    ]
    rates = dict(smoke_plot.throughput(samples))
    assert rates[3.0] == {"a": pytest.approx(10.0)}
    assert rates[8.0] == {"a": pytest.approx(10.0), "b": pytest.approx(5.0)}
    assert rates[5.0]["b"] == pytest.approx(5.0 / 3), "a worker that has just begun"
    assert 2.0 not in rates


def test_the_plot_is_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: (drawn.append(figure), save(figure, path)))
    samples = [(float(second), {"worker-0": 10.0 * second, "worker-1": 4.0 * second}) for second in range(70)]
    record = Record(began=0.0, events=[(20.0, "Spot notice to worker-0"), (40.0, "trainer killed")], samples=samples)
    steps = [
        Step(at_seconds=float(n), attempt=1, step=n, reward=n / 70, samples=64, groups=(n,), weights=(), kept=n < 60)
        for n in range(2, 66)
    ]
    smoke_plot.plot(tmp_path / "smoke.png", steps, record)
    assert (tmp_path / "smoke.png").read_bytes().startswith(b"\x89PNG")
    upper, lower = drawn[0].axes
    assert lower.get_xlim()[0] == 0, "seconds since the start"
    assert upper.get_title(loc="left").endswith("3 rollout workers at a time"), "the legend shows replaced ones too"
