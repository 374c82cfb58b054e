"""What is in this image: output of its programs, its files, the libraries that its interpreter loads. No verdicts.

Programs are run by argument list. A build machine has no driver: libcuda of the toolkit's stubs stands in where a library
must only be loadable.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from moerl_runtime.image import sources
from moerl_runtime.image.capabilities import Capabilities
from moerl_runtime.image.contracts import (
    ENGINE_FLAG_MODULES,
    ENGINE_POINTS,
    ENGINE_ROUTE_MODULES,
    ENGINE_VARIABLE_MODULES,
    EXTENSION_POINTS,
    TRAINER_FLAG_PACKAGES,
    ExtensionPoint,
)
from moerl_runtime.load_gdrdrv import SCRIPTS

PROGRAM_SECONDS = 300
DRIVER_STUBS = "usr/local/cuda/lib64/stubs/libcuda.so"
PLUGIN_FOLDER = "opt/amazon/ofi-nccl"
EFA_FOLDER = "opt/amazon/efa"
GDRCOPY_FOLDER = "opt/gdrcopy"
GDRDRV_FILES = ("src/gdrdrv/Makefile", *(f"scripts/{name}" for name in SCRIPTS))
EXTENSIONS = (
    "deep_ep/_C*.so",
    "transformer_engine*.so",
    "transformer_engine/**/*.so",
    "flash_attn_2_cuda*.so",
    "fused_weight_gradient_mlp_cuda*.so",
    "sgl_kernel/**/*.so",
)
"""Compiled packages, below site-packages, that load under one torch only."""
NOT_OF_THE_IMAGE = ("proc", "sys", "dev", "mnt")

PROBE = """
import ctypes, json, sys, torch
found = {"cuda": torch.version.cuda, "deep_ep": None, "nccl": {}}
if "deep_ep" in sys.argv[1:]:
    import deep_ep
    found["deep_ep"] = deep_ep.__file__
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if len(line.split(None, 5)) == 6}
for path in sorted(path for path in paths if "/libnccl.so" in path):
    version = ctypes.c_int()
    found["nccl"][path] = -ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version)) or version.value
print(json.dumps(found))
"""
"""torch first, as every program of a run does; then which NCCL is loaded, and the version that it says of itself."""

RUNTIME_PROBE = """
import json
import moerl_runtime
from importlib.metadata import distribution
from moerl_runtime import graders
found = distribution("moerl-runtime")
print(json.dumps({
    "version": found.version,
    "installed": str(found.locate_file("moerl_runtime/__init__.py")),
    "imported": moerl_runtime.__file__,
    "graders": graders.names(),
}))
"""
"""A process of its own, since this one may have been started in the package's own folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Of one program; code 127 where there is none of that name."""

    code: int
    text: str


Run = Callable[[Sequence[str], Mapping[str, str]], Output]
"""Runs an argument list with these variables beside the image's own; both streams in `text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """An extension point with what the installed sources have at it: names, or calls, or those of the
    texts that are there; None where nothing is."""

    point: ExtensionPoint
    found: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Raw facts. Mappings of paths hold what was found there; the verdicts are `checks`."""

    python: tuple[int, int]
    packages: Mapping[str, str]
    installer: str | None
    """Text of /opt/amazon/efa_installed_packages."""
    providers: Output
    libfabric: Output
    nccl_files: tuple[str, ...]
    """Every libnccl.so* of the file system, links resolved."""
    nccl_header: bool
    probe: Output
    runtime: Output
    plugin: str | None
    symbols: Mapping[str, Output]
    """nm of the plugin and of the verbs libraries, by path."""
    linked: Mapping[str, Output]
    """ldd -r of libraries, by path."""
    gdrapi: tuple[str, ...]
    """Files of libgdrapi, links resolved."""
    gdrdrv_sources: bool
    compat: tuple[str, ...]
    """Folders of CUDA forward compatibility."""
    compiler: Output
    checkouts: Mapping[str, Output]
    contracts: tuple[Contract, ...]
    trainer_flags: frozenset[str]
    engine_names: frozenset[str]
    """Flags and variables."""
    engine_routes: frozenset[str]
    private: tuple[str, ...]
    """Paths of this package that only root can read."""
    train_script: str | None
    """Path of train.py where it is a file."""
    tools: tuple[str, ...]
    """Names of the framework's tools beside it."""


def programs(variables: Mapping[str, str]) -> Run:
    """The Run of the command line, with the process's own variables."""

    def run(command: Sequence[str], more: Mapping[str, str]) -> Output:
        # Not from the working folder: a source tree there would be imported in the place of the installed package.
        try:
            done = subprocess.run(  # noqa: S603 - an argument list of this module
                list(command),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=PROGRAM_SECONDS,
                cwd="/",
                env={**variables, **more},
                check=False,
            )
        except FileNotFoundError as error:
            return Output(code=127, text=str(error))
        except subprocess.TimeoutExpired:
            return Output(code=124, text=f"no answer in {PROGRAM_SECONDS} s")
        return Output(code=done.returncode, text=done.stdout)

    return run


def observe(
    capabilities: Capabilities,
    *,
    run: Run,
    library_path: str,
    train_script: str | None,
    root: Path = Path("/"),
    packages: Path | None = None,
) -> Observed:
    """Looks at the image below `root`, whose site-packages are `packages`. `library_path` is LD_LIBRARY_PATH as it is."""
    site = packages or Path(sysconfig.get_path("platlib"))
    plugin = next(iter(_files(root / PLUGIN_FOLDER, "libnccl-net-ofi.so")), None)
    verbs = [path for name in ("libibverbs.so.1", "libefa.so.1") if (path := _library(root, name))]
    gdrapi = _resolved(_files(root / GDRCOPY_FOLDER / "lib", "libgdrapi.so*"))
    watched = [*([plugin] if plugin else []), *gdrapi, *_extensions(site)]
    with _driver(root) as folders:
        ours = [*folders, *_library_folders(site), *([library_path] if library_path else [])]
        variables = {"LD_LIBRARY_PATH": os.pathsep.join(ours)}
        probed = ["deep_ep"] if capabilities.deepep else []
        probe = run([sys.executable, "-c", PROBE, *probed], variables)
        linked = {str(path): run(["ldd", "-r", str(path)], variables) for path in watched}
    return Observed(
        python=sys.version_info[:2],
        packages=_packages(),
        installer=_text(root / "opt/amazon/efa_installed_packages"),
        providers=run([str(root / EFA_FOLDER / "bin/fi_info"), "-l"], {}),
        libfabric=run([str(root / EFA_FOLDER / "bin/fi_info"), "--version"], {}),
        nccl_files=tuple(_resolved(_everywhere(root, "libnccl.so"))),
        nccl_header=(root / "opt/nccl/include/nccl_device.h").is_file(),
        probe=probe,
        runtime=run([sys.executable, "-c", RUNTIME_PROBE], {}),
        plugin=plugin,
        symbols={
            path: run(["nm", "-D", "--defined-only", path], {}) for path in [*([plugin] if plugin else []), *verbs]
        },
        linked=linked,
        gdrapi=tuple(gdrapi),
        gdrdrv_sources=all((root / GDRCOPY_FOLDER / name).is_file() for name in GDRDRV_FILES),
        compat=tuple(str(path) for path in sorted((root / "usr/local").glob("cuda*/compat"))),
        compiler=run([str(root / "usr/local/cuda/bin/nvcc"), "--version"], {}),
        checkouts={path: run(["git", "-C", path, "rev-parse", "HEAD"], {}) for path in capabilities.checkouts},
        contracts=tuple(
            _contract(point)
            for point in (*EXTENSION_POINTS[capabilities.framework], *ENGINE_POINTS[capabilities.framework])
        ),
        trainer_flags=frozenset(_trainer_flags(capabilities.framework)),
        engine_names=frozenset(_engine_names()),
        engine_routes=frozenset(_engine_routes()),
        private=tuple(_private(root / "opt/moerl")),
        train_script=train_script if train_script and Path(train_script).is_file() else None,
        tools=tuple(sorted(path.name for path in Path(train_script or "/").parent.glob("tools/*.py"))),
    )


def _packages() -> dict[str, str]:
    """Versions by distribution. Of two with one name the first on the path is imported."""
    found: dict[str, str] = {}
    for distribution in distributions():
        if name := distribution.name:
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


@contextmanager
def _driver(root: Path) -> Iterator[list[str]]:
    """Folder in which libcuda.so.1 is the toolkit's stub; none where the toolkit has no stub."""
    stub = root / DRIVER_STUBS
    if not stub.is_file():
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="moerl-driver-") as folder:
        Path(folder, "libcuda.so.1").symlink_to(stub)
        yield [folder]


def _library_folders(site: Path) -> list[str]:
    """Where torch and NVIDIA's packages have their libraries, which a loaded torch would have brought along."""
    return [str(path) for path in (site / "torch/lib", *sorted((site / "nvidia").glob("*/lib"))) if path.is_dir()]


def _extensions(site: Path) -> list[str]:
    return sorted({str(path.resolve()) for pattern in EXTENSIONS for path in site.glob(pattern)})


def _library(root: Path, name: str) -> str | None:
    """The file that the loader takes for a library of EFA's rdma-core: distributions differ in the folder."""
    folders = (EFA_FOLDER, "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
    found = (path for folder in folders for path in _files(root / folder, name))
    return next(found, None)


def _files(folder: Path, pattern: str) -> list[str]:
    return sorted(str(path) for path in folder.rglob(pattern)) if folder.is_dir() else []


def _everywhere(root: Path, prefix: str) -> Iterator[str]:
    """Files of the image whose name begins like that, whatever package they came with."""
    for folder, folders, names in os.walk(root):
        if Path(folder) == root:
            folders[:] = [name for name in folders if name not in NOT_OF_THE_IMAGE]
        yield from (str(Path(folder, name)) for name in names if name.startswith(prefix))


def _resolved(paths: Iterator[str] | Sequence[str]) -> list[str]:
    return sorted({str(Path(path).resolve()) for path in paths})


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _private(folder: Path) -> Iterator[str]:
    """What a pod of another user could not read, or not enter; the folder itself where it is missing."""
    if not folder.is_dir():
        yield str(folder)
        return
    for path in (folder, *sorted(folder.rglob("*"))):
        needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        if path.stat().st_mode & needed != needed:
            yield str(path)


def _module(module: str) -> Path | None:
    folders = sources.package_folders(module.partition(".")[0])
    return next((path for folder in folders if (path := sources.module_file(folder, module))), None)


def _contract(point: ExtensionPoint) -> Contract:
    path = _module(point.module)
    if path is None:
        return Contract(point=point, found=None)
    tree = sources.parse(path)
    if point.kind == "call":
        made = sources.calls(tree, point.name)
        texts = (f"{count} positional {' '.join(f'{word}=' for word in keywords)}".strip() for count, keywords in made)
        return Contract(point=point, found=tuple(sorted(set(texts))) or None)
    if point.kind == "texts":
        written = sources.texts(tree, point.name)
        there = None if written is None else tuple(text for text in point.expects if text in written)
        return Contract(point=point, found=there)
    reader = sources.class_fields if point.kind == "fields" else sources.parameters
    return Contract(point=point, found=reader(tree, point.name))


def _trainer_flags(framework: str) -> Iterator[str]:
    for package in TRAINER_FLAG_PACKAGES[framework]:
        for folder in sources.package_folders(package):
            for path in sorted(folder.rglob("*.py")):
                yield from sources.flags(sources.parse(path))


def _engine_names() -> Iterator[str]:
    for module in ENGINE_FLAG_MODULES:
        if path := _module(module):
            yield from sources.flags(sources.parse(path))
    for module in ENGINE_VARIABLE_MODULES:
        if path := _module(module):
            yield from sources.variables(sources.parse(path))


def _engine_routes() -> Iterator[str]:
    for module in ENGINE_ROUTE_MODULES:
        if path := _module(module):
            yield from sources.routes(sources.parse(path))


def loaded(probe: Output) -> dict[str, object] | None:
    """What the probe printed last; None where it failed."""
    lines = probe.text.strip().splitlines()
    if probe.code or not lines:
        return None
    try:
        found = json.loads(lines[-1])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
