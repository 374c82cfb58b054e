"""The command at the end of a build: what it prints, and with which code it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.catalog import CATALOG
from infra.config.image_arguments import CAPABILITIES, image_arguments
from moerl_runtime import cli
from moerl_runtime.image import cli as image_cli
from tests.images.runtime.image.outputs import good, wanted


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "capabilities.json"
    made = image_arguments(CATALOG.software["efa-gda"], CATALOG.image_sources["efa-gda"])
    path.write_text(made.arguments[CAPABILITIES], encoding="utf-8")
    return path


def check(stack: str, path: Path, variables: dict[str, str] | None = None) -> int:
    return cli.main(["image", "check", "--stack", stack, "--capabilities", str(path)], variables=variables or {})


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `observe` sees, in the place of this machine; `asked` is how it was called."""
    world: dict[str, Any] = {"seen": good(wanted("efa-gda"))}

    def observe(_: object, **asked: object) -> object:
        world["asked"] = asked
        return world["seen"]

    monkeypatch.setattr(image_cli, "observe", observe)
    return world


def test_a_right_image_ends_with_0_and_one_line_of_json(
    document: Path, image: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("efa-gda", document, {"MOERL_TRAIN_SCRIPT": "/opt/miles/train.py", "LD_LIBRARY_PATH": "/x"}) == 0
    lines = capsys.readouterr().out.splitlines()
    verdict = json.loads(lines[-1])
    assert (verdict["stack"], verdict["verdict"]) == ("efa-gda", "ok")
    assert len(verdict["checks"]) == len(lines) - 1
    assert (image["asked"]["train_script"], image["asked"]["library_path"]) == ("/opt/miles/train.py", "/x")


def test_a_wrong_image_fails_the_build_and_shows_the_fix(
    document: Path, image: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    image["seen"] = good(wanted("efa-gda"), nccl_header=False)
    assert check("efa-gda", document) == 1
    shown = capsys.readouterr().out
    assert "FAIL  nccl_device.h: absent" in shown
    assert json.loads(shown.splitlines()[-1])["verdict"] == "failed"


def test_arguments_of_another_stack_are_wrong_input(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("baseline", document) == 2
    said = capsys.readouterr().err
    assert "Write --stack efa-gda, or " in said
    assert "moerl image args baseline" in said


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "[" * 100_000, '{"stack": "efa-gda"}'], ids=["empty", "list", "number", "deep", "partial"]
)
def test_a_document_of_another_form_is_wrong_input(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "capabilities.json"
    path.write_text(text, encoding="utf-8")
    assert check("efa-gda", path) == 2
    assert "moerl image args" in capsys.readouterr().err
    assert check("efa-gda", tmp_path / "absent.json") == 2


def test_a_document_of_another_release_names_the_field(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = json.loads(document.read_text(encoding="utf-8"))
    changed["gdr_copy"] = changed.pop("gdrcopy")
    document.write_text(json.dumps(changed), encoding="utf-8")
    assert check("efa-gda", document) == 2
    assert "gdr_copy, gdrcopy" in capsys.readouterr().err


def test_help_says_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["image", "check", "--help"], variables={})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "0 the image is what its arguments say, 1 it is not, 2 wrong input" in shown
    assert "example:" in shown
