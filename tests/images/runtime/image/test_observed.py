"""Looking at an image: programs by argument list, files below a root, nothing else; and the probe, run for real."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from infra.catalog.software import Software
from moerl_runtime.image import observed
from moerl_runtime.image.capabilities import Capabilities
from moerl_runtime.image.checks import check_image
from moerl_runtime.image.contracts import ENGINE_POINTS, ENGINE_ROUTES, EXTENSION_POINTS
from moerl_runtime.image.observed import GDRDRV_FILES, Observed, Output, loaded, observe, programs
from moerl_runtime.preflight.check import failed
from tests.images.runtime.image.outputs import wanted

GDA = wanted("efa-gda")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The parts of an image that are looked at, as the build scripts leave them."""
    image = tmp_path / "image"
    write(image / "opt/amazon/efa_installed_packages", "# EFA installer version: 1.50.0\n")
    write(image / "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so")
    write(image / "opt/amazon/efa/lib/libefa.so.1")
    write(image / "usr/lib/x86_64-linux-gnu/libibverbs.so.1")
    write(image / "opt/gdrcopy/lib/libgdrapi.so.2.5")
    (image / "opt/gdrcopy/lib/libgdrapi.so.2").symlink_to("libgdrapi.so.2.5")
    (image / "opt/gdrcopy/lib/libgdrapi.so").symlink_to("libgdrapi.so.2")
    for name in GDRDRV_FILES:
        write(image / "opt/gdrcopy" / name)
    site = image / "usr/local/lib/python3.12/dist-packages"
    write(site / "nvidia/nccl/lib/libnccl.so.2")
    (site / "nvidia/nccl/lib/libnccl.so").symlink_to("libnccl.so.2")
    write(site / "nvidia/nccl/include/nccl_device.h")
    (image / "opt/nccl").symlink_to(site / "nvidia/nccl")
    write(site / "torch/lib/libtorch.so")
    write(site / "deep_ep/_C.cpython-312-x86_64-linux-gnu.so")
    write(site / "sgl_kernel/sm90/common_ops.abi3.so")
    write(image / "usr/local/cuda/lib64/stubs/libcuda.so")
    write(image / "opt/moerl/capabilities.json", "{}")
    write(image / "proc/self/root/usr/lib/libnccl.so.2")
    return image


class Programs:
    """Answers for programs by the first word's file name, and what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], dict[str, str]]] = []

    def __call__(self, command: Sequence[str], variables: Mapping[str, str]) -> Output:
        self.asked.append((list(command), dict(variables)))
        stub = variables.get("LD_LIBRARY_PATH", "").partition(os.pathsep)[0]
        there = "stub" if Path(stub, "libcuda.so.1").exists() else "none"
        return Output(code=0, text=f"{Path(command[0]).name} {there}")

    def of(self, program: str) -> list[list[str]]:
        return [command for command, _ in self.asked if Path(command[0]).name == program]


def seen_in(root: Path, run: Programs, train_script: str | None = None) -> Observed:
    return observe(
        GDA,
        run=run,
        library_path="/base/lib",
        train_script=train_script,
        root=root,
        packages=root / "usr/local/lib/python3.12/dist-packages",
    )


def test_an_image_is_seen_as_the_scripts_leave_it(root: Path) -> None:
    run = Programs()
    seen = seen_in(root, run)
    site = root / "usr/local/lib/python3.12/dist-packages"
    plugin = str(root / "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so")
    assert seen.nccl_files == (str(site / "nvidia/nccl/lib/libnccl.so.2"),)
    assert seen.plugin == plugin
    assert set(seen.symbols) == {
        plugin,
        str(root / "usr/lib/x86_64-linux-gnu/libibverbs.so.1"),
        str(root / "opt/amazon/efa/lib/libefa.so.1"),
    }
    assert seen.gdrapi == (str(root / "opt/gdrcopy/lib/libgdrapi.so.2.5"),)
    assert {Path(path).name for path in seen.linked} == {
        "libnccl-net-ofi.so",
        "libgdrapi.so.2.5",
        "_C.cpython-312-x86_64-linux-gnu.so",
        "common_ops.abi3.so",
    }
    assert seen.nccl_header
    assert seen.gdrdrv_sources
    assert seen.compat == ()
    assert seen.private == ()
    assert seen.installer == "# EFA installer version: 1.50.0\n"
    assert {command[2] for command in run.of("git")} == set(GDA.checkouts)


def test_a_second_nccl_is_seen_wherever_it_is_but_not_in_what_is_no_part_of_the_image(root: Path) -> None:
    write(root / "usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3")
    write(root / "mnt/build/libnccl.so.2")
    names = {Path(path).name for path in seen_in(root, Programs()).nccl_files}
    assert names == {"libnccl.so.2", "libnccl.so.2.28.3"}


def test_libraries_load_with_a_stub_in_the_drivers_place_and_the_bases_own_path_kept(root: Path) -> None:
    run = Programs()
    seen = seen_in(root, run)
    assert seen.probe.text.endswith("stub")
    assert all(output.text == "ldd stub" for output in seen.linked.values())
    paths = [variables["LD_LIBRARY_PATH"] for _, variables in run.asked if "LD_LIBRARY_PATH" in variables]
    assert paths
    for path in paths:
        folders = path.split(os.pathsep)
        assert folders[-1] == "/base/lib"
        assert any(folder.endswith("torch/lib") for folder in folders)
        assert not Path(folders[0]).exists(), "the stub is gone again"


def test_a_toolkit_without_stubs_is_no_error(root: Path) -> None:
    (root / "usr/local/cuda/lib64/stubs/libcuda.so").unlink()
    assert seen_in(root, Programs()).probe.text.endswith("none")


def test_forward_compatibility_private_files_and_the_train_script_are_seen(root: Path, tmp_path: Path) -> None:
    (root / "usr/local/cuda-13.0/compat").mkdir(parents=True)
    secret = write(root / "opt/moerl/moerl_runtime/cli.py")
    secret.chmod(0o600)
    script = write(tmp_path / "train.py")
    write(tmp_path / "tools/convert.py")
    seen = seen_in(root, Programs(), str(script))
    assert seen.compat == (str(root / "usr/local/cuda-13.0/compat"),)
    assert seen.private == (str(secret),)
    assert (seen.train_script, seen.tools) == (str(script), ("convert.py",))
    assert seen_in(root, Programs(), str(tmp_path / "absent.py")).train_script is None
    assert seen_in(root, Programs()).tools == ()


@pytest.mark.parametrize("name", GDRDRV_FILES)
def test_sources_of_the_module_without_one_of_their_files_are_none(name: str, root: Path) -> None:
    (root / "opt/gdrcopy" / name).unlink()
    assert not seen_in(root, Programs()).gdrdrv_sources


def test_of_two_versions_of_a_package_the_one_that_is_imported_is_seen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, version in (("debian", "2.7.0"), ("local", "2.10.1")):
        metadata = f"Metadata-Version: 2.1\nName: Py_JWT_like\nVersion: {version}\n"
        write(tmp_path / place / f"Py_JWT_like-{version}.dist-info/METADATA", metadata)
        monkeypatch.syspath_prepend(tmp_path / place)
    assert seen_in(root, Programs()).packages["py-jwt-like"] == "2.10.1"


def test_an_empty_root_is_seen_too_and_fails(tmp_path: Path) -> None:
    seen = observe(GDA, run=programs({}), library_path="", train_script=None, root=tmp_path, packages=tmp_path)
    assert seen.nccl_files == ()
    assert seen.plugin is None
    assert seen.private == (str(tmp_path / "opt/moerl"),)
    assert len(failed(check_image(GDA, seen))) > 20


def sources_of(stack: Capabilities, folder: Path) -> None:
    """Packages that keep the contracts and no more; each would end the test if it were imported."""
    ended = "raise SystemExit('imported')\n"
    modules: dict[str, str] = {}
    for point in (*EXTENSION_POINTS[stack.framework], *ENGINE_POINTS[stack.framework]):
        owner, _, name = point.name.rpartition(".")
        if point.kind == "fields":
            made = f"class {point.name}:\n" + "".join(f"    {field}: int\n" for field in point.expects)
        elif point.kind == "texts":
            made = f"def {point.name}():\n    return {list(point.expects)}\n"
        elif point.kind == "call":
            made = (
                f"{point.name}({', '.join(word + 'False' if word.endswith('=') else word for word in point.expects)})\n"
            )
        else:
            arguments = ", ".join((["self"] if owner else []) + list(point.expects))
            made = f"def {name}({arguments}): ...\n"
            made = f"class {owner}:\n    {made}" if owner else made
        modules[point.module] = modules.get(point.module, ended) + made
    more = {
        "megatron.training.arguments": "parser.add_argument('--actor-num-nodes')\n",
        "sglang.srt.server_args": "class More:\n    moe_runner_backend: str\n",
        "sglang.srt.environ": "class Envs:\n    SGLANG_WARMUP_TIMEOUT = 1\n",
        "sglang.srt.entrypoints.http_server": "".join(
            f"@app.post({route!r})\nasync def route(): ...\n" for route in ENGINE_ROUTES if route != "/v1/loads"
        ),
        "sglang.srt.entrypoints.v1_loads": "@router.get('/v1/loads')\nasync def route(): ...\n",
    }
    for module, text in more.items():
        modules[module] = modules.get(module, ended) + text
    for module, text in modules.items():
        # Methods of one class stand in one class.
        for owner in {line for line in text.splitlines() if line.startswith("class ")}:
            first, *rest = text.split(f"{owner}\n")
            text = first + f"{owner}\n" + "".join(rest)
        write(folder.joinpath(*module.split(".")).with_suffix(".py"), text)
        write(folder / module.partition(".")[0] / "__init__.py", ended)


@pytest.mark.parametrize("software", ["baseline", "efa-gda"])
def test_frameworks_are_read_from_their_sources_and_not_imported(
    software: Software, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, folder = wanted(software), tmp_path / "sources"
    sources_of(stack, folder)
    monkeypatch.syspath_prepend(folder)

    def wrong() -> set[str]:
        seen = observe(stack, run=Programs(), library_path="", train_script=None, root=root, packages=tmp_path)
        about = ("flags", "routes", "miles.", "slime.", "sglang.")
        return {check.name for check in failed(check_image(stack, seen)) if check.name.startswith(about)}

    assert wrong() == set()
    types = folder / stack.framework / "utils/types.py"
    types.write_text(types.read_text(encoding="utf-8").replace("loss_mask", "mask"), encoding="utf-8")
    bodies = folder / "sglang/srt/managers/io_struct.py"
    bodies.write_text(bodies.read_text(encoding="utf-8").replace("flush_cache", "flush"), encoding="utf-8")
    (folder / "sglang/srt/server_args.py").unlink()
    (folder / "sglang/srt/entrypoints/v1_loads.py").unlink()
    assert wrong() == {
        f"{stack.framework}.utils.types.Sample",
        "flags and variables of the engine",
        "flags of train.py",
        "routes of the engine",
        "sglang.srt.entrypoints.v1_loads.get_loads",
        "sglang.srt.managers.io_struct.UpdateWeightFromDiskReqInput",
        "sglang.srt.server_args.ServerArgs",
    }


def test_programs_get_the_given_variables_and_run_outside_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOT_GIVEN", "1")
    ask = "import os; print(os.getcwd(), sorted(set(os.environ) & {'GIVEN', 'MORE', 'NOT_GIVEN'}))"
    done = programs({"GIVEN": "1"})([sys.executable, "-c", ask], {"MORE": "1"})
    assert (done.code, done.text) == (0, "/ ['GIVEN', 'MORE']\n")


def test_a_missing_program_and_one_that_hangs_are_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert programs({})(["/no/such/program"], {}).code == 127
    monkeypatch.setattr(observed, "PROGRAM_SECONDS", 0.05)
    done = programs({})([sys.executable, "-c", "import threading; threading.Event().wait()"], {})
    assert done.code == 124


FAKE_TORCH = "class version:\n    cuda = '13.0'\n"


def test_the_probe_says_what_is_loaded(tmp_path: Path) -> None:
    """With stand-ins for torch and deep_ep: they load no NCCL."""
    write(tmp_path / "torch/__init__.py", FAKE_TORCH)
    deepep = write(tmp_path / "deep_ep/__init__.py")
    probe = [sys.executable, "-S", "-c", observed.PROBE]
    run = programs({"PYTHONPATH": str(tmp_path)})
    assert loaded(run([*probe, "deep_ep"], {})) == {"cuda": "13.0", "deep_ep": str(deepep), "nccl": {}}
    assert loaded(run(probe, {})) == {"cuda": "13.0", "deep_ep": None, "nccl": {}}
    deepep.write_text("raise ImportError('undefined symbol')", encoding="utf-8")
    assert loaded(run([*probe, "deep_ep"], {})) is None


def test_the_probe_asks_a_loaded_nccl_for_its_version(tmp_path: Path) -> None:
    """The real library of this environment, under a torch that only loads it."""
    spec = sys.modules["importlib.metadata"].files("nvidia-nccl-cu13") or []
    found = [path.locate() for path in spec if path.name == "libnccl.so.2"]
    if not found:
        pytest.skip("no NCCL package here")
    library = str(Path(str(found[0])).resolve())
    write(tmp_path / "torch/__init__.py", f"{FAKE_TORCH}import ctypes\nctypes.CDLL({library!r})\n")
    output = programs({"PYTHONPATH": str(tmp_path)})([sys.executable, "-S", "-c", observed.PROBE], {})
    document = loaded(output)
    assert document is not None, output.text
    assert list(document["nccl"]) == [library]  # type: ignore[call-overload]
    version = sys.modules["importlib.metadata"].version("nvidia-nccl-cu13").split(".")
    code = int(version[0]) * 10_000 + int(version[1]) * 100 + int(version[2])
    stack = replace(GDA, nccl=".".join(version[:3]))
    assert document["nccl"] == {library: code}
    checks = {check.name: check.status for check in check_image(stack, _with_probe(output))}
    assert checks["NCCL version at run time"] == checks["one NCCL in the process"] == "ok"


def _with_probe(probe: Output) -> Observed:
    from tests.images.runtime.image.outputs import good

    return good(GDA, probe=probe)


@pytest.mark.parametrize("text", ["", "no json", "[1]", "{"])
def test_a_probe_that_prints_something_else_has_failed(text: str) -> None:
    assert loaded(Output(code=0, text=text)) is None
    assert loaded(Output(code=1, text='{"cuda": "13.0"}')) is None
