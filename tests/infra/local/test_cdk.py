"""A CDK CLI call reports its exit code, keeps its output, and passes its arguments on unread by any shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.local import cdk

from .conftest import ROOT


def _fake_cli(root: Path, program: str) -> Path:
    script = root / cdk.CLI_SCRIPT
    script.parent.mkdir(parents=True)
    script.write_text(program)
    return root


def test_output_goes_to_the_log_and_to_the_caller_line_by_line(tmp_path: Path) -> None:
    root = _fake_cli(tmp_path, "console.log('one'); console.error('two'); process.exit(3)")
    lines: list[str] = []
    run = cdk.run(
        ("deploy",), project_root=root, environment=os.environ, log=tmp_path / "a" / "log", on_line=lines.append
    )
    assert run.returncode == 3
    assert sorted(lines) == ["one", "two"]
    assert (tmp_path / "a" / "log").read_text() == run.output
    assert run.seconds > 0


def test_arguments_reach_the_cli_as_they_are(tmp_path: Path) -> None:
    root = _fake_cli(tmp_path, "console.log(JSON.stringify(process.argv.slice(2)))")
    run = cdk.run(("a b", "$(touch x)", ";"), project_root=root, environment=os.environ, log=tmp_path / "log")
    assert run.output.strip() == '["a b","$(touch x)",";"]'


def test_the_environment_is_the_one_given(tmp_path: Path) -> None:
    root = _fake_cli(tmp_path, "console.log(Object.keys(process.env).join())")
    run = cdk.run((), project_root=root, environment={"ONLY": "1"}, log=tmp_path / "log")
    assert run.output.strip() == "ONLY"


def test_a_missing_cli_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="npm ci"):
        cdk.run((), project_root=tmp_path, environment={}, log=tmp_path / "log")


def test_the_cli_is_the_pinned_one(tmp_path: Path) -> None:
    run = cdk.run(("--version",), project_root=ROOT, environment={"HOME": str(tmp_path)}, log=tmp_path / "log")
    assert run.output.startswith("2.1148.1")
