"""The trainer's packages over those of a distribution: pip itself, on packages that are made here."""

from __future__ import annotations

import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from infra.catalog import CATALOG
from tests.images.dockerfiles import SCRIPTS, code

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


def function(name: str) -> str:
    """A function of the script."""
    found = re.search(rf"(?ms)^{name}\(\) \{{$.*?^\}}$", code("install-trainer.sh"))
    assert found
    return found[0]


def keep() -> str:
    """The one by which it installs."""
    return function("keep")


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


def test_versions_are_chosen_for_what_the_base_image_lacks_alone(tmp_path: Path) -> None:
    """Whatever way its packages spell their names."""
    (tmp_path / "all").write_text("HTTPX==0.27.0\nkubernetes_asyncio==34.0.0\nray-like==1.0\n", encoding="utf-8")
    pins = "httpx==0.28.1 kubernetes-asyncio==36.1.0 ray==2.58.0 like==3.0"
    text = f"set -euo pipefail\nwork={tmp_path}\n{function('chosen')}\nchosen"
    done = subprocess.run(  # noqa: S603 - lines of the script under test
        [BASH, "-c", text],
        env={"PATH": "/usr/bin:/bin", "OPEN_REQUIREMENTS": pins},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["ray==2.58.0", "like==3.0"]


def test_the_engines_packages_are_held_and_tilelang_is_not(tmp_path: Path) -> None:
    """Both releases of SGLang require another one of it than Miles installs: held, no build would end."""
    held = ["torch==2.13.0", "sglang-kernel==0.4.1", "flashinfer_python==0.6.15", "apache-tvm-ffi==0.1.11"]
    (tmp_path / "all").write_text("\n".join([*held, "tilelang==0.1.12", "ray==2.58.0"]) + "\n", encoding="utf-8")
    holding = re.search(r"(?ms)^grep .*?>\"\$work/constraints\"$", code("install-trainer.sh"))
    assert holding
    subprocess.run(  # noqa: S603 - lines of the script under test
        [BASH, "-euo", "pipefail", "-c", f"work={tmp_path}\n{holding[0]}"], env={"PATH": "/usr/bin:/bin"}, check=True
    )
    assert (tmp_path / "constraints").read_text(encoding="utf-8").split() == held
    assert all("tilelang" in CATALOG.image_sources[name].trainer for name in ("aws-reference", "efa-gda"))


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_no_script_chooses_a_version(script: str) -> None:
    """What is installed by name has a version from an argument, or stands with one in the catalog."""
    in_catalog = set(CATALOG.image_sources["efa-gda"].open_requirements)
    text = re.sub(r"\\\n\s*", "", code(script))
    for line in re.findall(r"(?m)^\s*(?:\w+=\S+ )?(?:pip install|pip wheel|keep|build) (.*)$", text):
        valued = re.sub(r"--(constraint|index-url|requirement|report|target|wheel-dir|editable) \S+", "", line)
        words = re.sub(r"--config-settings '[^']*'", "", valued).split()
        for word in (word.strip('"') for word in words if not word.startswith("-")):
            pinned = re.fullmatch(r"[a-z0-9${}%*.,\[\]-]+==\$\{?\w+\}?", word, re.IGNORECASE)
            source = re.match(r"(git\+https://\S+@\$|\$|/wheels/|\.$)", word)
            assert pinned or source or word in in_catalog, (script, word)


def test_the_script_installs_by_that_function_alone() -> None:
    text = code("install-trainer.sh").replace(keep(), "")
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if re.search(r"\bpip install\b", line):
            assert "--no-deps" in line, line
