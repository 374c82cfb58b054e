"""What the demo leaves of a placement that fails."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from infra.interrupt import Interrupted
from infra.local import demo
from infra.local.kubernetes import cluster, fleet
from infra.local.kubernetes.api import ApiFault
from infra.local.kubernetes.processes import ProcessFault
from infra.local.kubernetes.programs import Programs
from infra.local.processes import held
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


def stopped(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders whose server is stopped."""
    folders: list[Path] = []
    monkeypatch.setattr(demo.server, "stop", lambda folder: folders.append(folder))
    return folders


def demo_in(out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and standard error of a demo."""
    with pytest.raises(SystemExit) as ended:
        demo.main("starter-p5en", out)
    return int(ended.value.code or 0), capsys.readouterr().err


def test_a_second_demo_says_which_one_runs_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_steps", lambda *_: pytest.fail("a step was taken"))
    ended = stopped(monkeypatch)
    (tmp_path / "summary.json").write_text("the first one's", encoding="utf-8")
    with held(tmp_path):
        code, said = demo_in(tmp_path, capsys)
    assert (code, said) == (1, f"not started process {os.getpid()} works in {tmp_path}\n")
    assert ended == []
    assert (tmp_path / "summary.json").read_text(encoding="utf-8") == "the first one's"


@pytest.mark.parametrize(
    ("module", "folder"), [(demo.server, "server"), (cluster, "kubernetes")], ids=["emulator", "control plane"]
)
def test_a_demo_stops_nothing_that_another_command_started(
    module: Any, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_steps", lambda *_: pytest.fail("a step was taken"))
    ended = stopped(monkeypatch)
    up = SimpleNamespace(url="http://127.0.0.1:7")
    monkeypatch.setattr(module, "status", lambda asked: up if asked == tmp_path / folder else None)
    code, said = demo_in(tmp_path, capsys)
    assert code == 1
    assert "http://127.0.0.1:7. `moerl local down --dir" in said
    assert ended == []
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("state", ["server/emulator.json", "kubernetes/kubernetes.json"])
def test_a_damaged_state_file_ends_a_demo_before_its_first_step(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_steps", lambda *_: pytest.fail("a step was taken"))
    (tmp_path / state).parent.mkdir()
    (tmp_path / state).write_text("{", encoding="utf-8")
    code, said = demo_in(tmp_path, capsys)
    assert code == 1
    assert f"{tmp_path / state} is damaged" in said
    assert not (tmp_path / "summary.json").exists()


def reported(summary: demo.Summary, out: Path) -> str:
    console = Console(file=io.StringIO(), width=400)
    demo.report(summary, out, console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_failed_demo_ends_with_its_failure_and_a_green_one_with_what_it_did_not_prove(tmp_path: Path) -> None:
    summary = demo.Summary(environment="starter-p5en", started="", versions={}, failure="deploy [x] exited with 1")
    failed = reported(summary, tmp_path)
    assert failed.endswith("failed starter-p5en: deploy [x] exited with 1\n")
    assert "Not proven" not in failed
    summary.passed, summary.failure = True, None
    passed = reported(summary, tmp_path)
    assert all(line in passed for line in demo.NOT_PROVEN)
    assert passed.endswith("passed starter-p5en\n")


def test_kinds_without_definition_come_with_how_to_get_one(tmp_path: Path) -> None:
    summary = demo.Summary(environment="starter-p5en", started="", versions={}, passed=True)
    summary.kubernetes = {
        "version": "v1.35.0",
        "nodes": 1,
        "objects": 1,
        "pods": {},
        "unknown_kinds": ["keda.sh/ScaledObject"],
    }
    lines = reported(summary, tmp_path).splitlines()
    named = next(
        number for number, line in enumerate(lines) if line.endswith("without definition: keda.sh/ScaledObject")
    )
    assert "MOERL_SCHEMAS_DIR" in lines[named + 1]
    assert "k8s/schemas.lock" in lines[named + 1]


def test_an_interrupted_demo_stops_its_server_and_says_so_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise Interrupted

    monkeypatch.setattr(demo, "_steps", interrupted)
    ended = stopped(monkeypatch)
    with pytest.raises(Interrupted):
        demo.run("starter-p5en", tmp_path, Console(file=io.StringIO()))
    assert ended == [tmp_path / "server"]
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["failure"] == "interrupted"
