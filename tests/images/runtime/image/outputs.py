"""What programs print in an image, by the formats that their own documentation shows; none was recorded in a build.

efa_installed_packages   EC2 user guide, "Check for the latest version of the EFA installer"
fi_info --version, -l    libfabric, man fi_info(1)
nm -D, ldd -r            binutils and glibc manuals
nvcc --version           CUDA compiler driver documentation
"""

from __future__ import annotations

import json
from dataclasses import replace

from infra.catalog import CATALOG
from infra.catalog.software import Software
from infra.config.image_arguments import CAPABILITIES, CHECKOUTS, image_arguments, unresolved_arguments
from moerl_runtime.image.capabilities import Capabilities, DeepEp
from moerl_runtime.image.contracts import (
    DISTRIBUTIONS,
    ENGINE_POINTS,
    ENGINE_ROUTES,
    EXTENSION_POINTS,
    GRADERS,
    TOOLS,
    ExtensionPoint,
)
from moerl_runtime.image.observed import Contract, Observed, Output

PLUGIN = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
VERBS = "/opt/amazon/efa/lib/libibverbs.so.1"
NCCL = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2"
DEEPEP_FILE = "/usr/local/lib/python3.12/dist-packages/deep_ep/__init__.py"
NO_REVISION = "ab" * 20
FLAGS = ("--actor-num-nodes", "--sglang-moe-runner-backend")
ENGINE_NAMES = ("--moe-runner-backend", "--tp-size", "SGLANG_WARMUP_TIMEOUT")


def wanted(stack: Software) -> Capabilities:
    """What the stack's arguments claim, with open pins filled and two flags."""
    pins, sources = CATALOG.software[stack], CATALOG.image_sources[stack]
    resolved = dict.fromkeys(unresolved_arguments(pins, sources), NO_REVISION)
    made = image_arguments(pins, sources, resolved=resolved, trainer_flags=FLAGS, engine_flags=ENGINE_NAMES)
    document = json.loads(made.arguments[CAPABILITIES])
    assert set(document["checkouts"]) == set(CHECKOUTS[stack].values())
    deepep = document.pop("deepep")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    return Capabilities(deepep=DeepEp(**deepep) if deepep else None, **values)


def done(text: str, code: int = 0) -> Output:
    return Output(code=code, text=text)


def packages_file(version: str) -> str:
    return (
        f"# EFA installer version: {version}\n# Debug packages installed: no\n# Packages installed:\n"
        "ibacm_64.0amzn0-1_amd64 ibverbs-providers_64.0amzn0-1_amd64 libfabric1-aws_2.6.0amzn1.0_amd64\n"
    )


def exports(*names: str) -> Output:
    lines = [f"{0x24A0 + place * 64:016x} D {name}" for place, name in enumerate(names)]
    return done("\n".join(lines) + "\n")


LDD_GOOD = done(
    "\tlinux-vdso.so.1 (0x00007ffd5b1f2000)\n"
    "\tlibcuda.so.1 => not found\n"
    "\tlibfabric.so.1 => /opt/amazon/efa/lib/libfabric.so.1 (0x00007f2a3c000000)\n"
    "undefined symbol: PyExc_ValueError\t(./_C.so)\n"
)
LDD_MISSING = done(
    "\tlibhwloc.so.15 => not found\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f2a3b000000)\n"
)
LDD_FOREIGN = done(
    "\tlibtorch.so => /usr/lib/libtorch.so (0x00007f2a00000000)\n"
    "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\t(./common_ops.so)\n"
)
NVCC = (
    "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\n"
    "Cuda compilation tools, release {0}, V{0}.88\n"
)
PROVIDERS = done("efa:\n    version: 206.0\nshm:\n    version: 206.0\ntcp:\n    version: 206.0\n")


def libfabric(version: str) -> Output:
    return done(f"/opt/amazon/efa/bin/fi_info: {version}\nlibfabric: {version}\nlibfabric api: 2.6\n")


def probed(stack: Capabilities, **changes: object) -> Output:
    numbers = [int(part) for part in stack.nccl.split(".")]
    document: dict[str, object] = {
        "cuda": stack.cuda,
        "deep_ep": DEEPEP_FILE if stack.deepep else None,
        "nccl": {NCCL: numbers[0] * 10_000 + numbers[1] * 100 + numbers[2]},
    }
    return done("a library's own words\n" + json.dumps(document | changes) + "\n")


RUNTIME_FILE = "/opt/moerl/moerl_runtime/__init__.py"


def runtime(**changes: object) -> Output:
    """What the image's own package says of itself."""
    document: dict[str, object] = {
        "version": "0.1.0",
        "installed": RUNTIME_FILE,
        "imported": RUNTIME_FILE,
        "graders": list(GRADERS),
    }
    return done(json.dumps(document | changes) + "\n")


def _kept(point: ExtensionPoint) -> Contract:
    if point.kind != "call":
        return Contract(point=point, found=(*point.expects, "more"))
    keywords = [name for name in point.expects if name.endswith("=")]
    text = f"{len(point.expects) - len(keywords)} positional {' '.join(keywords)}".strip()
    return Contract(point=point, found=(text,))


def good(stack: Capabilities, **changes: object) -> Observed:
    """An image that is all that it claims, with some fields changed."""
    packages = {**dict.fromkeys(DISTRIBUTIONS[stack.framework], "1.0"), **stack.packages}
    packages["torch"] += "+cu130"
    if stack.deepep:
        packages["deep-ep"] = f"{stack.deepep.version}+{stack.deepep.ref[:7]}"
        packages["nvidia-nvshmem-cu13"] = str(stack.nvshmem)
    seen = Observed(
        python=(3, 12),
        packages=packages,
        installer=packages_file(str(stack.efa_installer)),
        providers=PROVIDERS,
        libfabric=libfabric(str(stack.libfabric)),
        nccl_files=(NCCL,),
        nccl_header=True,
        probe=probed(stack),
        runtime=runtime(),
        plugin=PLUGIN,
        symbols={
            PLUGIN: exports("ncclNetPlugin_v11", "ncclGinPlugin_v11", "ncclGinPlugin_v13", "ncclGinPlugin_v14"),
            VERBS: exports("ibv_create_comp_cntr@@IBVERBS_1.16", "ibv_open_device"),
        },
        linked={PLUGIN: LDD_GOOD},
        gdrapi=("/opt/gdrcopy/lib/libgdrapi.so.2.5",),
        gdrdrv_sources=True,
        compat=(),
        compiler=done(NVCC.format(stack.cuda)),
        checkouts={path: done(f"{commit}\n") for path, commit in stack.checkouts.items()},
        contracts=tuple(
            _kept(point) for point in (*EXTENSION_POINTS[stack.framework], *ENGINE_POINTS[stack.framework])
        ),
        trainer_flags=frozenset({"--actor-num-nodes"}),
        engine_names=frozenset(ENGINE_NAMES),
        engine_routes=frozenset(ENGINE_ROUTES),
        private=(),
        train_script="/opt/miles/train.py",
        tools=("convert_to_hf.py", *TOOLS),
    )
    return replace(seen, **changes)  # type: ignore[arg-type]
