"""The trainer's packages over those of a distribution: pip itself, on packages that are made here."""

from __future__ import annotations

import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from tests.images.dockerfiles import code

BASH = shutil.which("bash") or "bash"


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A wheel whose one module knows its version."""
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


class Image:
    """An environment with jwt_like 2.7.0 as Debian leaves it: without RECORD, in a folder later on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "environment/bin"
        venv.create(folder / "environment", with_pip=True, symlinks=True)
        (site,) = folder.glob("environment/lib/python*/site-packages")
        self.debian = site.parent / "dist-packages"
        (site / "debian.pth").write_text(f"{self.debian}\n", encoding="utf-8")
        info = self.debian / "jwt_like-2.7.0.dist-info"
        info.mkdir(parents=True)
        info.joinpath("METADATA").write_text(
            "Metadata-Version: 2.1\nName: jwt_like\nVersion: 2.7.0\n", encoding="utf-8"
        )
        info.joinpath("INSTALLER").write_text("debian\n", encoding="utf-8")
        (self.debian / "jwt_like.py").write_text("VERSION = '2.7.0'\n", encoding="utf-8")
        wheels = folder / "wheels"
        wheels.mkdir()
        wheel(wheels, "jwt_like", "2.10.1")
        wheel(wheels, "jwt_like", "2.11.0")
        wheel(wheels, "mcp_like", "1.0", "jwt_like>=2.10")
        wheel(wheels, "old_like", "1.0", "jwt_like>=2.0")
        (folder / "constraints").write_text("jwt_like<2.11\n", encoding="utf-8")
        self.variables = {"PATH": f"{self.bin}:/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}

    def bash(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - lines of the script under test
            [BASH, "-euo", "pipefail", "-c", f"work={self.folder}\n{text}"],
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def imported(self) -> str:
        return self.bash("python3 -c 'import jwt_like; print(jwt_like.VERSION)'").stdout.strip()


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def keep() -> str:
    """The function by which the script installs."""
    found = re.search(r"(?ms)^keep\(\) \{$.*?^\}$", code("install-trainer.sh"))
    assert found
    return found[0]


def test_a_package_of_the_distribution_is_outdone_and_not_torn_out(image: Image) -> None:
    refused = image.bash('pip install --constraint "$work/constraints" mcp_like')
    assert refused.returncode != 0
    assert "RECORD file" in refused.stderr
    done = image.bash(f"{keep()}\nkeep mcp_like")
    assert done.returncode == 0, done.stderr
    assert image.imported() == "2.10.1"
    assert (image.debian / "jwt_like.py").read_text(encoding="utf-8") == "VERSION = '2.7.0'\n"
    assert image.bash("pip list --format freeze").stdout.split().count("jwt_like==2.10.1") == 1
    # Later steps see the newer one, and can replace it.
    assert image.bash(f"{keep()}\nkeep mcp_like old_like").returncode == 0
    assert image.bash("pip install --upgrade jwt_like").returncode == 0
    assert image.imported() == "2.11.0"


def test_one_that_will_do_stays_alone_and_what_cannot_be_resolved_moves_nothing(image: Image) -> None:
    assert image.bash(f"{keep()}\nkeep old_like").returncode == 0
    assert image.imported() == "2.7.0"
    (image.folder / "constraints").write_text("jwt_like<2.8\n", encoding="utf-8")
    assert image.bash(f"{keep()}\nkeep mcp_like").returncode != 0
    assert image.imported() == "2.7.0"


def test_the_script_installs_by_that_function_alone() -> None:
    text = code("install-trainer.sh").replace(keep(), "")
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if re.search(r"\bpip install\b", line):
            assert "--no-deps" in line, line
