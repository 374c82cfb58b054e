"""What the demo leaves of a placement that fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.local import demo
from infra.local.kubernetes import cluster, fleet
from infra.local.kubernetes.api import ApiFault
from infra.local.kubernetes.processes import ProcessFault
from infra.local.kubernetes.programs import Programs
from k8s.render import Rendered
from tests.shipped import plan_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The step, with programs at hand and nothing rendered."""
    monkeypatch.setattr(demo, "locate_programs", lambda _: Programs(paths={}, assets=tmp_path))
    plan = plan_of("starter-p5en")
    summary = demo.Summary(environment=plan.name, started="", versions={})
    return lambda: demo._place(plan, Rendered(files=(), texts={}, left_out=()), tmp_path, summary)


def test_logs_of_a_failed_placement_stay_and_are_named(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ended = tmp_path / "kubernetes", []
    started = SimpleNamespace(api=lambda: None, logs=folder / "logs")

    def start(*_: Any, **__: Any) -> Any:
        (folder / "logs").mkdir(parents=True)
        state = {"folder": "", "url": "", "pids": {}, "started": {}, "deployments": [], "starter": None}
        (folder / cluster.STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
        return started, SimpleNamespace(end=lambda: ended.append(True)), frozenset()

    def refuse(*_: Any) -> None:
        raise ApiFault(422, "refused", "PATCH /x")

    monkeypatch.setattr(fleet, "start", start)
    monkeypatch.setattr(fleet, "scale_up", refuse)
    with pytest.raises(demo.StepError, match=f"refused; logs in {folder / 'logs'}"):
        place()
    assert (folder / "logs").is_dir()
    assert ended == [True]


def test_logs_of_a_failed_start_are_named(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> Any:
        raise ProcessFault("etcd exited with 1")

    monkeypatch.setattr(fleet, "start", start)
    with pytest.raises(demo.StepError, match=f"etcd exited with 1; logs in {tmp_path / 'kubernetes' / 'logs'}"):
        place()
