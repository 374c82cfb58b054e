"""Verdicts over what was observed in an image: pure functions, one check a fact, each with what to do about it.

A stack gets the checks of what it claims: an image without DeepEP is not asked for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from moerl_runtime.image.capabilities import Capabilities
from moerl_runtime.image.contracts import DISTRIBUTIONS, ENGINE_PREFIX, ENGINE_ROUTES, GRADERS, TOOLS
from moerl_runtime.image.observed import Contract, Observed, Output, loaded
from moerl_runtime.preflight.check import Check, judged

PYTHON_MIN = (3, 11)
OF_THE_NODE = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
"""Libraries of the driver, which the container toolkit mounts."""
ENGINE_PACKAGE = "sglang."
STOCK_DEEPEP = "sgl-deep-ep"
_INSTALLER = re.compile(r"EFA installer version:\s*(\S+)")
_LIBFABRIC = re.compile(r"^libfabric:\s*(\S+)", re.MULTILINE)
_PROVIDER = re.compile(r"^efa:?\s*$", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_TORCH_SYMBOL = re.compile(r"undefined symbol:\s*(_ZN\S*(?:2at|3c10|5torch)\S*)")
_NVCC = re.compile(r"release (\d+)\.(\d+)")
_GDRAPI = re.compile(r"libgdrapi\.so\.(\d+)\.(\d+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def check_image(wanted: Capabilities, seen: Observed) -> tuple[Check, ...]:
    """All checks of the stack, in the order in which one explains the next."""
    groups = (
        _interpreter(wanted, seen),
        _runtime(seen),
        _efa(wanted, seen),
        _gin(wanted, seen),
        _nccl(wanted, seen),
        _compiler(wanted, seen),
        _compat(seen),
        _gdrcopy(wanted, seen),
        _libraries(seen),
        _deepep(wanted, seen),
        _framework(wanted, seen),
        _engine(wanted, seen),
    )
    return tuple(check for group in groups for check in group)


def _interpreter(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    yield judged(
        "python",
        seen.python >= PYTHON_MIN,
        found=".".join(map(str, seen.python)),
        needed=f"{'.'.join(map(str, PYTHON_MIN))} or newer",
        fix="Take a base image with a newer Python.",
    )
    for name, version in sorted(wanted.packages.items()):
        found = seen.packages.get(name)
        yield judged(
            f"package {name}",
            found is not None and found.partition("+")[0] == version,
            found=found or "none",
            needed=version,
            fix="A later pip step moved it: install it after that step, or constrain the step.",
        )
    yield judged(
        "files for other users",
        not seen.private,
        found=", ".join(seen.private[:5]) or "all readable",
        needed="readable by user 1000, as which agents and exporters run",
        fix="Copy with --chmod, and not below /root.",
    )


def _runtime(seen: Observed) -> Iterator[Check]:
    found = loaded(seen.runtime) or {}
    version, installed, imported = (found.get(name) for name in ("version", "installed", "imported"))
    yield judged(
        "package moerl-runtime",
        installed is not None and installed == imported,
        found=f"{version} in {installed}, imported from {imported}" if found else _last_line(seen.runtime),
        needed="the installed package, and no other copy, in a process of another folder",
        fix="Install it last (build/install-runtime.sh package): a copied folder has no entry points.",
    )
    known = found.get("graders")
    names = [str(name) for name in known] if isinstance(known, list) else []
    yield judged(
        "graders",
        set(GRADERS) <= set(names),
        found=", ".join(names) or "none",
        needed=", ".join(GRADERS),
        fix="They are entry points of the installed package: install it (build/install-runtime.sh package).",
    )


def _efa(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    if wanted.efa_installer is None:
        return
    said = _INSTALLER.search(seen.installer or "")
    yield judged(
        "EFA installer",
        said is not None and said[1] == wanted.efa_installer,
        found=said[1] if said else "no /opt/amazon/efa_installed_packages",
        needed=wanted.efa_installer,
        fix="Run build/install-efa.sh with this version.",
    )
    version = _LIBFABRIC.search(seen.libfabric.text)
    yield judged(
        "libfabric",
        version is not None and version[1] == wanted.libfabric,
        found=version[1] if version else _first_line(seen.libfabric),
        needed=wanted.libfabric,
        fix="The installer carries it: its version decides this one.",
    )
    yield judged(
        "EFA provider",
        _PROVIDER.search(seen.providers.text) is not None,
        found=", ".join(seen.providers.text.split()[:12]) or "none",
        needed="efa in the list of `fi_info -l`",
        fix="Another libfabric is found first: remove it, or look at LD_LIBRARY_PATH.",
    )


def _gin(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    if wanted.efa_installer is None:
        return
    yield judged(
        "NCCL plugin",
        seen.plugin is not None,
        found=seen.plugin or "none",
        needed="libnccl-net-ofi.so below /opt/amazon/ofi-nccl",
        fix="Install EFA with --disable-ngc: on CUDA images the installer leaves the plugin out otherwise.",
    )
    symbols = seen.symbols.get(seen.plugin or "", Output(code=127, text="no plugin"))
    for export in wanted.gin_exports:
        there = re.search(rf"\b{export}\b", symbols.text) is not None
        yield judged(
            f"export {export}",
            there,
            found="exported" if there else _first_line(symbols) if symbols.code else "absent",
            needed=f"in nm -D of the plugin of aws-ofi-nccl {wanted.aws_ofi_nccl}",
            fix="The installer's plugin is older than its label says: take another installer.",
        )
    if "gda" in wanted.transports:
        libraries = {path: output for path, output in seen.symbols.items() if path != seen.plugin}
        counted = {path: output.text.count("comp_cntr") for path, output in libraries.items()}
        yield judged(
            "completion counters",
            any(counted.values()),
            found=", ".join(f"{count} in {path}" for path, count in counted.items()) or "no libibverbs",
            needed="comp_cntr symbols in the verbs libraries (rdma-core 64)",
            fix="A distribution's libibverbs is found first: remove it before the EFA installer runs.",
        )


def _nccl(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    yield judged(
        "one NCCL in the file system",
        len(seen.nccl_files) == 1,
        found=", ".join(seen.nccl_files) or "none",
        needed="exactly one libnccl.so.2",
        fix="Remove the others; held packages only go with --allow-change-held-packages.",
    )
    found = loaded(seen.probe)
    if found is None:
        yield judged(
            "import",
            False,
            found=_last_line(seen.probe),
            needed="torch" + (" and deep_ep" if wanted.deepep else "") + " import",
            fix="Build the extension against the installed torch and the one NCCL.",
        )
        return
    versions = found.get("nccl")
    libraries = versions if isinstance(versions, dict) else {}
    yield judged(
        "one NCCL in the process",
        len(libraries) == 1,
        found=", ".join(libraries) or "none",
        needed="one libnccl in /proc/self/maps after the imports",
        fix="Install NCCL again after the last pip step (build/install-nccl.sh).",
    )
    needed = _nccl_code(wanted.nccl)
    yield judged(
        "NCCL version at run time",
        set(libraries.values()) == {needed},
        found=", ".join(map(str, libraries.values())) or "none",
        needed=f"{needed} ({wanted.nccl}) from ncclGetVersion",
        fix="Install NCCL again after the last pip step (build/install-nccl.sh).",
    )
    cuda = str(found.get("cuda"))
    yield judged(
        "CUDA of torch",
        cuda == wanted.cuda,
        found=cuda,
        needed=wanted.cuda,
        fix="Install torch from the index of this CUDA version.",
    )


def _compiler(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    """DeepEP compiles its kernels at the first dispatch, so the image of a run carries what a build would."""
    if wanted.deepep is None:
        return
    release = _NVCC.search(seen.compiler.text)
    found = (int(release[1]), int(release[2])) if release else None
    needed = _numbers(wanted.cuda)
    yield judged(
        "nvcc",
        found is not None and found[0] == needed[0] and found >= needed,
        found=".".join(map(str, found)) if found else _first_line(seen.compiler),
        needed=f"{wanted.cuda} or a later {needed[0]}.x, at /usr/local/cuda/bin",
        fix="Take a development image of CUDA, not a runtime one.",
    )
    yield judged(
        "nccl_device.h",
        seen.nccl_header,
        found="present" if seen.nccl_header else "absent",
        needed="/opt/nccl/include/nccl_device.h",
        fix="NCCL's package carries it from 2.28 on: install that one, and link /opt/nccl to it.",
    )


def _compat(seen: Observed) -> Iterator[Check]:
    yield judged(
        "CUDA forward compatibility",
        not seen.compat,
        found=", ".join(seen.compat) or "none",
        needed="no libcuda of the image's own, which would win over a newer driver (CUDA error 803)",
        fix="Delete /usr/local/cuda*/compat (build/remove-conflicts.sh).",
    )


def _gdrcopy(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    if wanted.gdrcopy is None:
        return
    versions = {(int(found[1]), int(found[2])) for path in seen.gdrapi if (found := _GDRAPI.search(path))}
    yield judged(
        "libgdrapi",
        versions == {_numbers(wanted.gdrcopy)[:2]},
        found=", ".join(seen.gdrapi) or "none",
        needed=f"{wanted.gdrcopy} in /opt/gdrcopy/lib",
        fix="Run build/install-gdrcopy.sh with this version.",
    )
    yield judged(
        "sources of gdrdrv",
        seen.gdrdrv_sources,
        found="present" if seen.gdrdrv_sources else "absent",
        needed="src/gdrdrv and scripts below /opt/gdrcopy, which load-gdrdrv builds on nodes without the module",
        fix="Run build/install-gdrcopy.sh.",
    )


def _libraries(seen: Observed) -> Iterator[Check]:
    for path, output in sorted(seen.linked.items()):
        missing = [name for name in _MISSING.findall(output.text) if name not in OF_THE_NODE]
        foreign = _TORCH_SYMBOL.findall(output.text)
        yield judged(
            f"libraries of {path.rpartition('/')[2]}",
            output.code != 127 and not missing and not foreign,
            found=", ".join([*missing, *foreign[:3]]) or (_first_line(output) if output.code else "all"),
            needed="every library found, every symbol of torch defined",
            fix="Build it against the installed torch."
            if foreign
            else "Put the library's folder into /etc/ld.so.conf.d.",
        )


def _deepep(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    stock = seen.packages.get(STOCK_DEEPEP)
    yield judged(
        "stock DeepEP",
        stock is None,
        found=f"{STOCK_DEEPEP} {stock}" if stock else "absent",
        needed="absent: it is imported in the place of a build that knows EFA",
        fix=f"pip uninstall {STOCK_DEEPEP} before DeepEP is installed.",
        severity="failed" if wanted.deepep else "warning",
    )
    if wanted.deepep is None:
        return
    version = seen.packages.get("deep-ep", "")
    public, _, commit = version.partition("+")
    yield judged(
        "DeepEP",
        public == wanted.deepep.version and len(commit) >= 7 and wanted.deepep.ref.startswith(commit),
        found=version or "none",
        needed=f"{wanted.deepep.version}+{wanted.deepep.ref[:7]}",
        fix="Install the wheel of build/build-deepep.sh last; '+local' means that its working tree was not clean.",
    )
    nvshmem = f"nvidia-nvshmem-cu{_numbers(wanted.cuda)[0]}"
    yield judged(
        f"package {nvshmem}",
        seen.packages.get(nvshmem) == wanted.nvshmem,
        found=seen.packages.get(nvshmem, "none"),
        needed=wanted.nvshmem,
        fix="DeepEP is linked to it: run build/install-libraries.sh before build/build-deepep.sh.",
    )
    found = loaded(seen.probe) or {}
    path = str(found.get("deep_ep"))
    yield judged(
        "deep_ep imported from",
        "/site-packages/" in path or "/dist-packages/" in path,
        found=path,
        needed="the installed package",
        fix="A source tree is on the path: leave it out of WORKDIR and PYTHONPATH.",
    )


def _framework(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    for path, commit in sorted(wanted.checkouts.items()):
        output = seen.checkouts.get(path)
        found = _COMMIT.search(output.text) if output and not output.code else None
        yield judged(
            f"commit of {path}",
            found is not None and found[0] == commit,
            found=found[0] if found else _first_line(output) if output else "not looked at",
            needed=commit,
            fix="Check that commit out (build/checkout.sh).",
        )
    yield judged(
        "train.py",
        seen.train_script is not None,
        found=seen.train_script or "none",
        needed="the file that MOERL_TRAIN_SCRIPT names",
        fix="Set MOERL_TRAIN_SCRIPT to the framework's train.py.",
    )
    absent = [name for name in TOOLS if name not in seen.tools]
    yield judged(
        "tools of the framework",
        not absent,
        found=f"{', '.join(absent)} absent" if absent else f"all {len(TOOLS)} there",
        needed="what `weights prepare` runs, in tools beside train.py",
        fix="Pin a commit of the framework that has them, or change moerl_runtime.weights.prepare.",
    )
    missing = [name for name in DISTRIBUTIONS[wanted.framework] if name not in seen.packages]
    yield judged(
        "packages of the runtime",
        not missing,
        found=f"{', '.join(missing)} absent" if missing else "all there",
        needed="what moerl_runtime imports in the image of this framework",
        fix="Name them in images/runtime/pyproject.toml, or in the framework's requirements.",
    )
    for contract in seen.contracts:
        if not contract.point.module.startswith(ENGINE_PACKAGE):
            yield _extension_point(contract, "moerl_runtime.trainer")
    own = [flag for flag in wanted.trainer_flags if not flag.startswith(ENGINE_PREFIX)]
    passed = [
        f"--{flag.removeprefix(ENGINE_PREFIX)}" for flag in wanted.trainer_flags if flag.startswith(ENGINE_PREFIX)
    ]
    strange = [flag for flag in own if flag not in seen.trainer_flags]
    strange += [f"{ENGINE_PREFIX}{flag.removeprefix('--')}" for flag in passed if flag not in seen.engine_names]
    yield _names("flags of train.py", wanted.trainer_flags, strange)


def _extension_point(contract: Contract, caller: str) -> Check:
    point, found = contract.point, contract.found or ()
    if point.kind in ("fields", "texts"):
        good = set(point.expects) <= set(found)
    elif point.kind == "parameters":
        good = contract.found is not None and found[: len(point.expects)] == point.expects
    else:
        keywords = [name for name in point.expects if name.endswith("=")]
        wanted = f"{len(point.expects) - len(keywords)} positional {' '.join(keywords)}".strip()
        good = contract.found is not None and set(found) == {wanted}
    return judged(
        f"{point.module}.{point.name}",
        good,
        found=", ".join(found) if contract.found is not None else "absent",
        needed=f"{point.kind} {', '.join(point.expects)}",
        fix=f"It has moved: change {caller} and this contract, or pin the release that they were made for.",
    )


def _engine(wanted: Capabilities, seen: Observed) -> Iterator[Check]:
    missing = [route for route in ENGINE_ROUTES if route not in seen.engine_routes]
    yield _names("routes of the engine", ENGINE_ROUTES, missing)
    for contract in seen.contracts:
        if contract.point.module.startswith(ENGINE_PACKAGE):
            yield _extension_point(contract, "moerl_runtime.engine")
    strange = [name for name in wanted.engine_flags if name not in seen.engine_names]
    yield _names("flags and variables of the engine", wanted.engine_flags, strange)


def _names(name: str, asked: tuple[str, ...], missing: list[str]) -> Check:
    if not asked:
        return Check(
            name=name, status="skipped", found="none were given: build with `moerl image args STACK --env ENV`"
        )
    return judged(
        name,
        not missing,
        found=f"{', '.join(missing)} unknown" if missing else f"all {len(asked)} known",
        needed="what the renders pass and the agent calls",
        fix="Pin the release that they were read from, or change the render.",
    )


def _nccl_code(version: str) -> int:
    """NCCL's own number of a version, from 2.9 on."""
    major, minor, patch = _numbers(version)[:3]
    return major * 10_000 + minor * 100 + patch


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _first_line(output: Output) -> str:
    return next(iter(output.text.strip().splitlines()), f"exit code {output.code}")


def _last_line(output: Output) -> str:
    return next(iter(reversed(output.text.strip().splitlines())), f"exit code {output.code}")
