"""The scripts of a bake, run by bash with stand-ins for what a builder has."""

from __future__ import annotations

import os
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


def test_values_of_the_plan_reach_the_scripts(bake: BakePlan) -> None:
    changed = replace(
        bake, efa_installer="1.51.0", efa_driver="3.4.0", gdrcopy="2.6.1", gdrcopy_commit="abc", huge_pages=7
    )
    text = "".join(one.data for one in components(changed))
    for value in ("aws-efa-installer-1.51.0", "3.4.0", "gdrcopy abc", "vm.nr_hugepages = 7"):
        assert value in text
    assert "2.5" not in text
