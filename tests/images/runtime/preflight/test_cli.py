"""`preflight node` as a pod starts it: lines, one document last, and an exit code that is the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moerl_runtime.cli import main
from tests.images.runtime.preflight.nodes import document


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document("p5en").value), encoding="utf-8")
    return str(path)


def test_a_machine_without_gpus_fails_with_one_document_last(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "verdict.json"
    code = main(["preflight", "node", "--pool", "trainer", "--plan", plan, "--json", str(copy)], variables={})
    *lines, last = capsys.readouterr().out.splitlines()
    verdict = json.loads(last)
    assert code == 1
    assert verdict["verdict"] == "failed"
    assert {"nvidia-driver-missing", "efa-pod-absent"} <= set(verdict["causes"])
    assert json.loads(copy.read_text(encoding="utf-8")) == verdict
    # A fix may have lines of its own, so there are at least as many lines as checks, and the word before the document.
    assert len(lines) >= len(verdict["checks"]) + 1
    assert lines[-1].startswith("FAILED: ")


def test_a_cpu_pool_passes_anywhere(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "node", "--pool", "system", "--plan", plan], variables={}) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"] == "passed"


@pytest.mark.parametrize("arguments", [["--pool", "nowhere"], ["--pool", "trainer", "--plan", "/nowhere/plan.json"]])
def test_wrong_input_is_exit_code_2_and_names_it(
    arguments: list[str], plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = [] if "--plan" in arguments else ["--plan", plan]
    assert main(["preflight", "node", *arguments, *rest], variables={}) == 2
    assert "nowhere" in capsys.readouterr().err
