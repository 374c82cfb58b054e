"""The scripts of a bake, run by bash with stand-ins for what a builder has."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from infra.config.bake_plan import BakePlan
from infra.config.plan import Plan
from infra.constructs.ami_components import components
from tests.shipped import plan_of

STATUS_GOOD = "[GNUPG:] VALIDSIG AAAA 2026-08-01 1 0 4 0 1 8 00 4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
STATUS_OTHER = "[GNUPG:] VALIDSIG 4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC 2026-08-01 1 0 4 0 1 8 00 BBBB"
CALLS = '#!/bin/bash\necho "$(basename "$0") $*" >> "$CALLS"\n'


@pytest.fixture(scope="module")
def bake() -> BakePlan:
    plan: Plan = plan_of("starter-p5en", {"images.bake_ami": True})
    assert plan.bake is not None
    return plan.bake


def script(bake: BakePlan, component: str, phase: str) -> str:
    data = next(one.data for one in components(bake) if one.name == component)
    steps = next(one["steps"] for one in yaml.safe_load(data)["phases"] if one["name"] == phase)
    return str(steps[0]["inputs"]["commands"][0])


class Builder:
    """A folder of programs that write down their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls_file, self.tools = folder, folder / "calls", folder / "bin"
        self.tools.mkdir()

    def program(self, name: str, body: str = "") -> None:
        (self.tools / name).write_text(f"{CALLS}{body}\n", encoding="utf-8")
        (self.tools / name).chmod(0o755)

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - the script under test
            ["bash", "-c", text],  # noqa: S607 - found as on a builder
            cwd=self.folder,
            env={
                "PATH": f"{self.tools}:{os.environ['PATH']}",
                "CALLS": str(self.calls_file),
                "TMPDIR": str(self.folder),
                "TOOLS": str(self.tools),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def calls(self) -> list[str]:
        return self.calls_file.read_text(encoding="utf-8").splitlines() if self.calls_file.exists() else []


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    made = Builder(tmp_path)
    made.program("dnf")
    # The installer that `tar` would unpack.
    unpacks = 'mkdir aws-efa-installer; cp "$TOOLS/efa_installer.sh" aws-efa-installer/'
    made.program("tar", unpacks)
    made.program("efa_installer.sh")
    made.program("curl")
    return made


def signed(builder: Builder, status: str, code: int = 0) -> None:
    builder.program("gpg", f'[[ "$*" != *--status-file* ]] || {{ echo "{status}" > status; exit {code}; }}')


def test_the_installer_runs_when_the_key_that_signed_it_is_the_pinned_one(builder: Builder, bake: BakePlan) -> None:
    signed(builder, STATUS_GOOD)
    done = builder.run(script(bake, "efa", "build"))
    assert done.returncode == 0, done.stderr
    assert "efa_installer.sh --minimal -y" in builder.calls()
    fetched = [call.rpartition("/")[2] for call in builder.calls() if call.startswith("curl")]
    name = "aws-efa-installer-1.50.0.tar.gz"
    assert fetched == [name, f"{name}.sig", "aws-efa-installer.key"]


@pytest.mark.parametrize(
    ("status", "code"), [(STATUS_OTHER, 0), ("[GNUPG:] BADSIG x", 1), ("", 0)], ids=["other key", "bad", "none"]
)
def test_an_installer_that_another_key_signed_never_runs(
    builder: Builder, bake: BakePlan, status: str, code: int
) -> None:
    signed(builder, status, code)
    assert builder.run(script(bake, "efa", "build")).returncode != 0
    assert not [call for call in builder.calls() if call.startswith("efa_installer.sh")]


@pytest.mark.parametrize(
    ("component", "found", "fits"),
    [
        ("efa", "3.3.0", True),
        ("efa", "3.3.0g", True),
        ("efa", "3.10.0", True),
        ("efa", "3.1.0g", False),
        ("efa", "2.17.3", False),
        ("gdrdrv", "2.5", True),
        ("gdrdrv", "2.5.2", True),
        ("gdrdrv", "2.4.4", False),
        ("gdrdrv", "2.51", False),
    ],
)
def test_a_bake_with_another_module_fails(
    builder: Builder, bake: BakePlan, component: str, found: str, fits: bool
) -> None:
    builder.program("modinfo", f"echo {found}")
    builder.program("systemctl")
    assert (builder.run(script(bake, component, "validate")).returncode == 0) is fits


KERNEL = "6.12.110-130.amzn2023.x86_64"
# `make` notes the folder that it works in, as $PWD and as it is, with the driver's sources that it is told.
MAKE = """[ "$PWD" = "$(pwd -P)" ] && [ -f ./Makefile ] || exit 9
[ "$1" = clean ] && { rm -f gdrdrv.ko; exit 0; }
[ ! -e gdrdrv.ko ] || exit 8
for word; do case "$word" in NVIDIA_SRC_DIR=*) cat "${word#*=}/nv-p2p.h" > gdrdrv.ko ;; KVER=*) ;; install) ;; esac; done"""


class ImageOfEks:
    """What a build finds of EKS's image, moved under the builder's folder."""

    def __init__(self, builder: Builder, bake: BakePlan) -> None:
        self.builder, self.root = builder, builder.folder
        for folder in (f"lib/modules/{KERNEL}/build", "usr/local/sbin", "etc/systemd/system"):
            (self.root / folder).mkdir(parents=True)
        for name in ("systemctl", "depmod"):
            builder.program(name)
        builder.program("uname", f"echo {KERNEL}")
        builder.program("git", '[ "$3" != checkout ] || { mkdir -p "$2/src/gdrdrv"; touch "$2/src/gdrdrv/Makefile"; }')
        builder.program("make", MAKE)
        builder.program("rpm2cpio", 'cat "$1"')
        builder.program(
            "cpio",
            "mkdir -p usr/src/nvidia-x/nvidia; cat > usr/src/nvidia-x/nvidia/nv-p2p.h\ntouch usr/src/nvidia-x/nvidia/nv-p2p.c",
        )
        self.texts = {phase: script(bake, "gdrdrv", phase) for phase in ("build", "validate")}

    def tree(self, name: str, version: str, packages: str = ".rpms") -> Path:
        tree = self.root / "opt/nvidia" / name
        modules = tree / f"flavors/open/lib/modules/{KERNEL}/extra"
        for folder in (modules, tree / packages):
            folder.mkdir(parents=True)
        (tree / ".version").write_text(version, encoding="ascii")
        (tree / packages / f"kmod-nvidia-open-dkms-{version}-1.noarch.rpm").write_text(version, encoding="ascii")
        (modules / "gdrdrv.ko.xz").write_text("of the image", encoding="ascii")
        return modules

    def run(self, phase: str) -> subprocess.CompletedProcess[str]:
        moved = re.sub(r"(?<![\w/])/(?=(?:opt|lib|usr|etc)/)", f"{self.root}/", self.texts[phase])
        return self.builder.run(moved)


@pytest.fixture
def image(builder: Builder, bake: BakePlan) -> ImageOfEks:
    return ImageOfEks(builder, bake)


def test_both_drivers_of_an_image_get_a_module_built_against_their_own_sources(image: ImageOfEks) -> None:
    lts, pb = image.tree("lts", "580.159.03"), image.tree("pb", "595.71.05", "flavors/open/.rpms")
    done = image.run("build")
    assert done.returncode == 0, done.stderr
    # One module in each, and none of the image's own beside it.
    assert [(path.name, path.read_text(encoding="ascii")) for path in lts.iterdir()] == [("gdrdrv.ko", "580.159.03")]
    assert [(path.name, path.read_text(encoding="ascii")) for path in pb.iterdir()] == [("gdrdrv.ko", "595.71.05")]
    makes = [call for call in image.builder.calls() if call.startswith("make ") and "clean" not in call]
    assert [f"KVER={KERNEL}" in call for call in makes] == [True, True]
    unit = (image.root / "etc/systemd/system/moerl-gdrdrv.service").read_text(encoding="utf-8")
    assert {"nvidia-setup.service", "nvidia-kmod-load.service"} <= set(
        re.findall(r"^After=(.*)$", unit, re.MULTILINE)[0].split()
    )
    assert "systemctl enable moerl-gdrdrv.service" in image.builder.calls()


def test_an_image_with_packed_modules_is_unpacked_built_on_and_packed_again(image: ImageOfEks) -> None:
    image.builder.program("kmod-util")
    done = image.run("build")
    assert done.returncode == 0, done.stderr
    ours = [call for call in image.builder.calls() if call.split()[0] in ("kmod-util", "make", "depmod")]
    assert ours == [
        "kmod-util load nvidia-open",
        "make install",
        "kmod-util remove nvidia-open",
        f"depmod --all {KERNEL}",
    ]


def test_an_image_whose_sources_are_nowhere_ends_the_bake_with_the_reason(image: ImageOfEks) -> None:
    done = image.run("build")
    assert (done.returncode, "neither in" in done.stdout) == (1, True)
    image.tree("lts", "580.159.03")
    tree = image.root / "opt/nvidia/lts"
    next((tree / ".rpms").iterdir()).unlink()
    done = image.run("build")
    assert (done.returncode, "holds 0 packages with sources" in done.stdout) == (1, True)
    assert not (image.root / "etc/systemd/system/moerl-gdrdrv.service").exists()


def test_a_package_without_the_drivers_interface_ends_the_bake(image: ImageOfEks) -> None:
    image.tree("lts", "580.159.03")
    image.builder.program("cpio", "cat > /dev/null")
    done = image.run("build")
    assert done.returncode != 0
    assert "no nv-p2p.c" in done.stderr


@pytest.mark.parametrize(("pb", "fits"), [("2.5", True), ("2.4.4", False)])
def test_the_module_of_each_driver_is_judged(image: ImageOfEks, pb: str, fits: bool) -> None:
    for name in ("lts", "pb"):
        image.tree(name, "580.159.03")
    image.builder.program("modinfo", f'case "$3" in */pb/*/gdrdrv.ko) echo {pb} ;; */lts/*/gdrdrv.ko) echo 2.5 ;; esac')
    assert (image.run("validate").returncode == 0) is fits


def test_values_of_the_plan_reach_the_scripts(bake: BakePlan) -> None:
    changed = replace(
        bake, efa_installer="1.51.0", efa_driver="3.4.0", gdrcopy="2.6.1", gdrcopy_commit="abc", huge_pages=7
    )
    text = "".join(one.data for one in components(changed))
    for value in ("aws-efa-installer-1.51.0", "3.4.0", "gdrcopy abc", "vm.nr_hugepages = 7"):
        assert value in text
    assert "2.5" not in text
