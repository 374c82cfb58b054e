"""Which programs a control plane is made of: given ones of the right version first, built ones otherwise."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from infra.local.kubernetes import programs
from infra.local.kubernetes.programs import BUILT, GIVEN_VARIABLE, PROGRAMS, TELL_VERSION, ProgramsMissing, versions
from tests.cluster import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, on a machine with some Go."""
    monkeypatch.setattr(programs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(programs, "go_version", lambda: "go1.0")
    return programs.cache_folder("go1.0")


def fill(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("", encoding="utf-8")


def write_given(folder: Path, **other: str) -> dict[str, str]:
    """Every program in a folder, each of which says the version that we pin, or another one. Returns the environment."""
    folder.mkdir()
    for name, version in versions().items():
        path = folder / name
        path.write_text(f"#!/bin/sh\necho {name} Version: v{other.get(name, version)}\n", encoding="utf-8")
        path.chmod(0o700)
    return {GIVEN_VARIABLE: str(folder)}


NAMES = [program.name for program in PROGRAMS]
OTHERS = [name for name in NAMES if name not in TELL_VERSION]


def test_given_programs_go_before_built_ones(cache: Path, tmp_path: Path) -> None:
    fill(cache, [*NAMES, BUILT])
    found = programs.locate(write_given(tmp_path / "given"))
    assert {name: path.parent for name, path in found.paths.items()} == {
        name: tmp_path / "given" if name in TELL_VERSION else cache for name in NAMES
    }
    assert found.assets == cache


def test_what_is_given_need_not_be_built(cache: Path, tmp_path: Path) -> None:
    fill(cache, [*OTHERS, BUILT])
    variables = write_given(tmp_path / "given")
    assert programs.locate(variables).path("etcd") == tmp_path / "given" / "etcd"
    with pytest.raises(ProgramsMissing, match="make control-plane"):
        programs.locate({})


@pytest.mark.parametrize("said", ["1.31.0", "1.35.40", "1.35.4-alpha.1", "unknown"])
def test_a_program_of_another_version_is_not_used(cache: Path, tmp_path: Path, said: str) -> None:
    variables = write_given(tmp_path / "given", **{"kube-apiserver": said})
    fill(cache, [*OTHERS, BUILT])
    wanted = re.escape(versions()["kube-apiserver"])
    with pytest.raises(ProgramsMissing, match=rf"kube-apiserver is .*, and {wanted} is needed; .*`make control-plane`"):
        programs.locate(variables)
    fill(cache, NAMES)
    assert programs.locate(variables).path("kube-apiserver") == cache / "kube-apiserver"


def test_a_build_that_was_cut_off_does_not_count(cache: Path) -> None:
    fill(cache, NAMES)
    with pytest.raises(ProgramsMissing):
        programs.locate({})


@pytest.fixture
def built(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the build compiles, of modules that are empty."""
    made: list[str] = []

    def go(_: str, verb: str, *arguments: str) -> str:
        if verb == "build":
            output = Path(arguments[arguments.index("-o") + 1])
            output.write_text("", encoding="utf-8")
            made.append(output.name)
            return ""
        for _, inside in programs.ASSETS.values():
            (tmp_path / "module" / inside).mkdir(parents=True, exist_ok=True)
        return str(tmp_path / "module")

    monkeypatch.setattr(build, "_go", go)
    monkeypatch.setattr(build, "CACHE", cache.parent)
    monkeypatch.setattr(build, "go_version", lambda: "go1.0")
    monkeypatch.setattr("sys.argv", ["build"])
    monkeypatch.delenv(GIVEN_VARIABLE, raising=False)
    return made


def test_all_is_built_once(built: list[str], cache: Path) -> None:
    assert build.main() == 0
    assert built == NAMES
    assert programs.locate({}).assets == cache
    assert build.main() == 0
    assert built == NAMES


def test_only_what_is_not_given_is_built(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = write_given(tmp_path / "given", **{"kube-scheduler": "1.31.0"})
    monkeypatch.setenv(GIVEN_VARIABLE, variables[GIVEN_VARIABLE])
    assert build.main() == 0
    assert built == ["kube-scheduler", *OTHERS]
    wanted = versions()["kube-scheduler"]
    assert f"kube-scheduler is 1.31.0, and {wanted} is needed: one is built" in capsys.readouterr().out
    assert set(programs.locate(variables).paths) == set(NAMES)
    monkeypatch.delenv(GIVEN_VARIABLE)
    assert build.main() == 0
    assert sorted(built) == sorted(NAMES)


def test_a_failing_build_says_so_and_keeps_what_is_whole(
    built: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = build._go

    def go(folder: str, *arguments: str) -> str:
        if folder == "kuberay":
            raise subprocess.CalledProcessError(1, ["go", *arguments])
        return whole(folder, *arguments)

    monkeypatch.setattr(build, "_go", go)
    assert build.main() == 1
    said = capsys.readouterr().out
    assert "not built, `go build -mod=readonly` failed" in said
    assert "GOPROXY" in said
    assert (cache / "etcd").is_file()
    with pytest.raises(ProgramsMissing):
        programs.locate({})
    monkeypatch.setattr(build, "_go", whole)
    built.clear()
    assert build.main() == 0
    assert "etcd" not in built
