"""`moerl image args`: one value or one command for each argument, for people and for pipelines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infra import cli
from infra.catalog import CATALOG
from infra.config.image_arguments import CAPABILITIES, unresolved_arguments
from infra.config.pins import Pins
from infra.operations.lock import lock_text
from tests.shipped import SHIPPED

COMMIT = "ab" * 20
DIGEST = f"sha256:{'0' * 64}"
ROOT = Path(cli.__file__).resolve().parents[1]


def moerl(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def test_lines_are_name_and_value_and_what_is_open_is_named_apart() -> None:
    done = moerl("image", "args", "efa-gda", "--env", "reference-p5en")
    assert done.exit_code == 1
    values = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert values["NCCL"] == CATALOG.software["efa-gda"].nccl
    assert values["CUDA_ARCHS"] == "9.0"
    open_ones = unresolved_arguments(CATALOG.software["efa-gda"], CATALOG.image_sources["efa-gda"])
    assert not set(open_ones) & set(values)
    lines = done.stderr.splitlines()
    assert len(lines) == len(open_ones)
    for name, pin in open_ones.items():
        assert f"unresolved {name}, {pin.what}: {pin.command}" in lines


def test_json_is_one_document_with_the_same_values() -> None:
    done = moerl("image", "args", "efa-gda", "--env", "reference-p5en", "--json")
    assert (done.exit_code, done.stderr) == (1, "")
    document = json.loads(done.stdout)
    shown = moerl("image", "args", "efa-gda", "--env", "reference-p5en").stdout
    assert dict(line.split("=", 1) for line in shown.splitlines()) == document["arguments"]
    assert document["context"] == "images"
    assert (ROOT / document["dockerfile"]).is_file()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_stack_of_a_shipped_environment_gets_the_flags_that_its_renders_pass(name: str) -> None:
    software = json.loads(moerl("plan", name, "--json").stdout)["software"]
    document = json.loads(moerl("image", "args", software, "--env", name, "--json").stdout)
    capabilities = json.loads(document["arguments"][CAPABILITIES])
    assert "--hf-checkpoint" in capabilities["trainer_flags"]
    assert {"--tp-size", "--model-path"} <= set(capabilities["engine_flags"])
    assert all(flag.startswith("--") for flag in capabilities["trainer_flags"])
    other = next(stack for stack in CATALOG.software if stack != software)
    bare = json.loads(moerl("image", "args", other, "--env", name, "--json").stdout)
    assert json.loads(bare["arguments"][CAPABILITIES])["trainer_flags"] == []


def test_a_lock_closes_what_is_open_and_the_command_ends_with_0(tmp_path: Path) -> None:
    text = (ROOT / "environments" / "starter-p5en.yaml").read_text(encoding="utf-8")
    path = tmp_path / "starter-p5en.yaml"
    path.write_text(text, encoding="utf-8")
    open_ones = unresolved_arguments(CATALOG.software["efa-gda"], CATALOG.image_sources["efa-gda"])
    values = {name: DIGEST if name == "BASE_DIGEST" else COMMIT for name in open_ones}
    pins = Pins(build={"efa-gda": values})
    path.with_suffix(".lock.yaml").write_text(lock_text("starter-p5en", pins), encoding="utf-8")
    done = moerl("image", "args", "efa-gda", "--env", str(path), "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["unresolved"] == {}
    assert {name: document["arguments"][name] for name in values} == values
    # Of that stack alone.
    assert moerl("image", "args", "aws-reference", "--env", str(path), "--json").exit_code == 1


def test_without_an_environment_it_is_the_stack_for_all_its_architectures() -> None:
    done = moerl("image", "args", "aws-reference")
    assert done.exit_code == 1
    values = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert values["CUDA_ARCHS"] == ";".join(CATALOG.software["aws-reference"].cuda_archs)


@pytest.mark.parametrize("arguments", [["efa_gda"], ["efa-gda", "--env", "refrence-p5en"]])
def test_unknown_names_are_wrong_input_with_the_known_ones(arguments: list[str]) -> None:
    done = moerl("image", "args", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert ("aws-reference" if len(arguments) == 1 else "reference-p5en") in done.stderr
    as_json = moerl("image", "args", *arguments, "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)


@pytest.mark.parametrize(("option", "named"), [((), False), (("--anew",), True)], ids=["as it is", "anew"])
def test_a_source_names_its_day_only_where_it_is_built_anew(
    option: tuple[str, ...], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def source(*_: object, anew: str | None) -> None:
        asked.append(anew)
        raise cli.images.SourceFault("far enough")

    monkeypatch.setattr(cli.images, "source", source)
    done = moerl("image", "build", "efa-gda", "--env", "starter-p5en", *option)
    assert (done.exit_code, "far enough" in done.stderr) == (2, True)
    (anew,) = asked
    assert (anew is not None and re.fullmatch(r"20\d\d-\d\d-\d\d", anew) is not None) is named
