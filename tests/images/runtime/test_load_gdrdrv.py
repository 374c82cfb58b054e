"""Building and loading gdrdrv: against the running kernel and the loaded driver, or an error that says what is missing."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from moerl_runtime import load_gdrdrv
from moerl_runtime.cli import main
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.load_gdrdrv import SCRIPTS, Node, build, driver_sources, load, run_program

KERNEL, DRIVER = "6.12.73-95.121.amzn2023.x86_64", "580.159.03"


class FakeNode:
    """A node on which `make` makes a module and `insmod` loads it."""

    def __init__(self, root: Path, *, built: str = "2.5.2") -> None:
        self.root, self.built = root, built
        self.maps: str | None = None
        self.ran: list[tuple[list[str], Path]] = []
        self.devices: list[tuple[Path, int]] = []
        self.write("lib/modules", KERNEL, "build/Makefile", text="")
        self.write("sys/module/nvidia/version", text=f"{DRIVER}\n")
        for name in ("nv-p2p.c", "nv-p2p.h"):
            self.write(f"usr/src/nvidia-{DRIVER}/nvidia/{name}", text="")
        self.source = root / "opt/gdrcopy/src/gdrdrv"
        self.write("opt/gdrcopy/src/gdrdrv/Makefile", text="")
        for name in SCRIPTS:
            self.write(f"opt/gdrcopy/scripts/{name}", text="")
        self.folder, self.scratch = root / "host/dev", root / "build"
        self.folder.mkdir(parents=True)
        self.scratch.mkdir()

    def write(self, *path: str, text: str) -> Path:
        file = self.root.joinpath(*path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def loaded(self, version: str, users: str = "0") -> None:
        self.write("sys/module/gdrdrv/version", text=f"{version}\n")
        self.write("sys/module/gdrdrv/refcnt", text=f"{users}\n")
        self.write(
            "proc/devices",
            text="Character devices:\n  1 mem\n235 nvidia-uvm\n511 gdrdrv\n\nBlock devices:\n259 blkext\n",
        )

    def run(self, arguments: Sequence[str], folder: Path, seconds: float) -> str:
        assert seconds > 0
        self.ran.append((list(arguments), folder))
        if arguments[0] == "make":
            (folder / "gdrdrv.ko").write_bytes(b"")
        if arguments[0] == "insmod":
            self.loaded(self.built)
            if self.maps:
                params(self, self.maps)
        if arguments[0] == "rmmod":
            (self.root / "sys/module/gdrdrv/version").unlink()
        return ""

    def load(self, minimum: str = "2.5") -> str:
        node = Node(
            root=self.root,
            kernel=KERNEL,
            run=self.run,
            make_device=lambda path, major: self.devices.append((path, major)),
        )
        return load(node, minimum=minimum, device_folder=self.folder, source=self.source, scratch=self.scratch)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def test_it_builds_for_the_running_kernel_and_the_loaded_driver_and_inserts(node: FakeNode) -> None:
    said = node.load()
    work = node.scratch / "gdrdrv"
    (make, folder), (insmod, _) = node.ran
    assert make == [
        "make",
        f"PWD={work}",
        f"KVER={KERNEL}",
        f"NVIDIA_SRC_DIR={node.root}/usr/src/nvidia-{DRIVER}/nvidia",
        f"CONF_SCRIPT_DIR={node.root}/opt/gdrcopy/scripts",
    ]
    assert folder == work
    assert insmod[:2] == ["insmod", str(work / "gdrdrv.ko")]
    assert node.devices == [(node.folder / "gdrdrv", 511)]
    assert "2.5.2" in said
    assert not (node.source / "gdrdrv.ko").exists()


def test_a_module_that_is_good_enough_is_left_and_only_its_device_made(node: FakeNode) -> None:
    node.loaded("2.5", users="3")
    assert "already" in node.load()
    assert node.ran == []
    assert node.devices == [(node.folder / "gdrdrv", 511)]


def test_an_old_module_is_replaced_when_nobody_uses_it(node: FakeNode) -> None:
    node.loaded("2.4")
    node.load()
    assert [arguments[0] for arguments, _ in node.ran] == ["make", "rmmod", "insmod"]


def test_an_old_module_stays_where_no_other_can_be_built(node: FakeNode) -> None:
    node.loaded("2.4")
    (node.root / f"usr/src/nvidia-{DRIVER}/nvidia/nv-p2p.c").unlink()
    with pytest.raises(RuntimeFault, match="are not there"):
        node.load()
    assert node.ran == []


def params(node: FakeNode, persistent: str) -> None:
    node.write(
        "proc/driver/gdrdrv/params",
        text=f"Version: 2.5\nBuilt for NVIDIA driver flavor: opensource\nUse persistent mapping: {persistent}\n"
        "dbg_enabled: 0\ninfo_enabled: 0\n",
    )


def test_a_module_that_maps_persistently_is_left(node: FakeNode) -> None:
    node.loaded("2.5")
    params(node, "yes")
    assert "already" in node.load()
    assert node.ran == []


def test_a_module_that_does_not_map_persistently_is_named_while_it_is_used_and_else_replaced(node: FakeNode) -> None:
    node.loaded("2.5", users="3")
    params(node, "no")
    with pytest.raises(RuntimeFault, match=r"use_persistent_mapping=0.*3 processes use it"):
        node.load()
    assert (node.ran, node.devices) == ([], [])
    node.loaded("2.5")
    node.maps = "yes"
    assert "built" in node.load()
    assert [arguments[0] for arguments, _ in node.ran] == ["make", "rmmod", "insmod"]
    assert "use_persistent_mapping=1" in node.ran[-1][0]
    assert node.devices == [(node.folder / "gdrdrv", 511)]


def test_a_module_that_cannot_map_persistently_is_no_success(node: FakeNode) -> None:
    node.maps = "no"
    with pytest.raises(RuntimeFault, match="was built and loaded, but does not map persistently"):
        node.load()
    assert node.devices == []


def test_it_is_built_in_its_own_folder_wherever_the_process_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real make, and the way in which GDRCopy's Makefile and the kernel's name that folder to each other."""
    node = FakeNode(tmp_path)
    node.write("lib/modules", KERNEL, "build/Makefile", text="modules:\n\techo built > $(M)/gdrdrv.ko\n")
    node.write(
        "opt/gdrcopy/src/gdrdrv/Makefile",
        text=f"build:\n\t$(MAKE) -C {tmp_path}/lib/modules/$(KVER)/build M=$(PWD) modules\n",
    )
    monkeypatch.setenv("PWD", "/")
    made = build(
        Node(root=tmp_path, kernel=KERNEL, run=run_program, make_device=lambda *_: None), node.source, node.scratch
    )
    assert made.read_text(encoding="ascii") == "built\n"


def test_an_old_module_in_use_is_left_and_named(node: FakeNode) -> None:
    node.loaded("2.4", users="2")
    with pytest.raises(RuntimeFault, match=r"2\.4.*older than 2\.5, and 2 processes"):
        node.load()
    assert node.ran == []


def test_sources_that_are_too_old_are_found_out(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"2\.4\.4.*loaded, but is older than 2\.5"):
        FakeNode(tmp_path, built="2.4.4").load()


def test_what_is_missing_is_named(node: FakeNode) -> None:
    (node.root / "opt/gdrcopy/scripts" / SCRIPTS[0]).unlink()
    with pytest.raises(RuntimeFault, match=SCRIPTS[0]):
        node.load()
    (node.root / "lib/modules" / KERNEL / "build/Makefile").unlink()
    (node.root / "lib/modules" / KERNEL / "build").rmdir()
    with pytest.raises(RuntimeFault, match="kernel-devel"):
        node.load()
    with pytest.raises(InputFault, match="MOERL_GDRDRV_SOURCE"):
        load(
            Node(root=node.root, kernel=KERNEL, run=node.run, make_device=lambda *_: None),
            minimum="2.5",
            device_folder=node.folder,
            source=None,
            scratch=node.scratch,
        )
    assert node.ran == []


def test_sources_of_another_driver_are_not_taken(node: FakeNode) -> None:
    for name in ("nv-p2p.c", "nv-p2p.h"):
        node.write(f"usr/src/nvidia-570.172.08/nvidia/{name}", text="")
    assert driver_sources(node.root) == node.root / f"usr/src/nvidia-{DRIVER}/nvidia"
    node.write("sys/module/nvidia/version", text="580.1\n")
    with pytest.raises(RuntimeFault, match=r"nvidia\*-580\.1.*570\.172\.08.*kmod-nvidia-open-dkms"):
        driver_sources(node.root)
    (node.root / "sys/module/nvidia/version").unlink()
    with pytest.raises(RuntimeFault, match="is not loaded"):
        driver_sources(node.root)


def test_a_program_that_fails_is_quoted_and_none_is_read_by_a_shell(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"(?s)ended with 4.*fixdep: not found"):
        run_program([sys.executable, "-c", "print('fixdep: not found'); raise SystemExit(4)"], tmp_path, 30.0)
    with pytest.raises(RuntimeFault, match="cannot run"):
        run_program(["/nowhere/make"], tmp_path, 5.0)
    assert run_program([sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id)"], tmp_path, 30.0) == "$(id)\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_the_device_has_the_number_and_everybody_may_open_it(tmp_path: Path) -> None:
    path = tmp_path / "gdrdrv"
    try:
        load_gdrdrv.make_device(path, 511)
    except PermissionError:
        pytest.skip("this root may not make device nodes")
    for major in (511, 510):
        load_gdrdrv.make_device(path, major)
        found = path.stat()
        assert stat.S_ISCHR(found.st_mode)
        assert (os.major(found.st_rdev), stat.S_IMODE(found.st_mode)) == (major, 0o666)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--minimum", "new", "--device-folder", "/dev"], "is no version"),
        (["--minimum", "2.5", "--device-folder", "/nowhere"], "is no folder"),
    ],
)
def test_wrong_input_is_exit_code_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load-gdrdrv", *arguments], variables={}) == 2
    assert said in capsys.readouterr().err
