"""The runtime as the images have it: installed by their own script into an environment that knows nothing of this tree."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import setuptools

from moerl_runtime.image.contracts import GRADERS
from moerl_runtime.image.observed import RUNTIME_PROBE
from moerl_runtime.smoke.task import GRADER
from tests.images.dockerfiles import CONTEXT, SCRIPTS

RUNTIME = CONTEXT / "runtime"
BASH = shutil.which("bash") or "bash"


class Image:
    """A clean environment with pip, and the image's setuptools in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.target, self.environment = folder / "opt/moerl", folder / "environment"
        venv.create(self.environment, with_pip=True, symlinks=True)
        tools = folder / "tools"
        tools.mkdir()
        installed = Path(setuptools.__file__).parent.parent
        for name in ("setuptools", "_distutils_hack", "pkg_resources"):
            if (installed / name).exists():
                (tools / name).symlink_to(installed / name)
        self.variables = {"PATH": f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        self.building = {**self.variables, "PYTHONPATH": str(tools), "TMPDIR": str(folder)}

    def install(self, sources: Path) -> subprocess.CompletedProcess[str]:
        script = SCRIPTS / "install-runtime.sh"
        return self._run([BASH, str(script), "package", str(sources), str(self.target)], self.building)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """From a folder without the package, as pods start it."""
        return self._run([str(self.environment / "bin/python"), *arguments], self.variables)

    def _run(self, command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd="/", env=variables, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    # As the build's context is: without what running the package left beside it, and with modes of a private checkout.
    sources = folder / "runtime"
    shutil.copytree(RUNTIME, sources, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "build"))
    for path in sources.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    made = Image(folder)
    done = made.install(sources)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in sources.iterdir()) == ["moerl_runtime", "pyproject.toml"], (
        "nothing is left there"
    )
    return made


def test_the_installed_package_knows_its_version_and_its_graders(image: Image) -> None:
    done = image.python("-c", RUNTIME_PROBE)
    assert done.returncode == 0, done.stderr
    project = tomllib.loads((RUNTIME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = str(image.target / "moerl_runtime/__init__.py")
    assert json.loads(done.stdout) == {
        "version": project["version"],
        "installed": package,
        "imported": package,
        "graders": ["count_on", "exact"],
    }
    assert set(GRADERS) <= {"count_on", "exact"}
    assert GRADER in GRADERS


def test_the_smoke_jobs_grader_grades_there(image: Image) -> None:
    graded = (
        "from moerl_runtime import graders\n"
        "print(graders.grade('count_on', prompt='7=', response='890.', label='890', metadata={})[0])"
    )
    done = image.python("-c", graded)
    assert done.stdout == "1.0\n", done.stderr


def test_every_module_is_there_and_every_user_can_read_it(image: Image) -> None:
    ours = {path.relative_to(RUNTIME) for path in (RUNTIME / "moerl_runtime").rglob("*.py")}
    there = {path.relative_to(image.target) for path in (image.target / "moerl_runtime").rglob("*.py")}
    assert there == ours
    for path in image.target.rglob("*"):
        needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        assert path.stat().st_mode & needed == needed, path


def test_what_it_imports_and_is_built_with_is_installed_before(tmp_path: Path) -> None:
    """With a pip that writes down what it is asked for."""
    tools, asked = tmp_path / "tools", tmp_path / "asked"
    tools.mkdir()
    (tools / "pip").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$ASKED"\n', encoding="utf-8")
    (tools / "pip").chmod(0o755)
    (tools / "python").symlink_to("/bin/true")
    path = f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(  # noqa: S603 - the script under test
        [BASH, str(SCRIPTS / "install-runtime.sh"), "dependencies", str(RUNTIME)],
        env={"PATH": path, "ASKED": str(asked)},
        check=True,
    )
    project = tomllib.loads((RUNTIME / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert asked.read_text(encoding="utf-8").splitlines() == ["install", "--no-cache-dir", *wanted]


def test_without_setuptools_nothing_is_downloaded_and_the_build_ends(tmp_path: Path) -> None:
    made = Image(tmp_path)
    subprocess.run(  # noqa: S603 - pip of the environment made here
        [str(made.environment / "bin/python"), "-m", "pip", "uninstall", "-y", "-q", "setuptools"],
        check=True,
        capture_output=True,
    )
    shutil.rmtree(tmp_path / "tools")
    done = made.install(RUNTIME)
    assert done.returncode != 0
    assert not made.target.exists()
