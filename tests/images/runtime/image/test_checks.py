"""Every check, on an image that is right and on one that is wrong in that point alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.catalog.software import Software
from moerl_runtime.image.capabilities import Capabilities
from moerl_runtime.image.checks import check_image
from moerl_runtime.image.contracts import ENGINE_POINTS, EXTENSION_POINTS
from moerl_runtime.image.observed import Contract, Observed, Output
from moerl_runtime.preflight.check import Check, exit_code, failed
from tests.images.runtime.image import outputs
from tests.images.runtime.image.outputs import NCCL, PLUGIN, VERBS, done, exports, good, probed, wanted

STACKS: list[Software] = list(CATALOG.software)
GDA = wanted("efa-gda")
each_stack = pytest.mark.parametrize("stack", STACKS)


def names(checks: tuple[Check, ...]) -> set[str]:
    return {check.name for check in checks}


def bad(seen: Observed, stack: Capabilities = GDA) -> set[str]:
    return names(failed(check_image(stack, seen)))


@each_stack
def test_an_image_that_is_what_it_claims_passes(stack: Software) -> None:
    checks = check_image(wanted(stack), good(wanted(stack)))
    assert failed(checks) == ()
    assert exit_code(checks) == 0
    assert not [check for check in checks if check.status == "skipped"]


def test_a_stack_gets_the_checks_of_what_it_claims() -> None:
    baseline, reference, gda = (names(check_image(wanted(name), good(wanted(name)))) for name in STACKS)
    deepep = {"DeepEP", "deep_ep imported from", "nvcc", "nccl_device.h", "libgdrapi", "sources of gdrdrv"}
    assert not deepep & baseline
    assert deepep <= reference & gda
    assert {name for name in gda if name.startswith("export ")} == {
        "export ncclGinPlugin_v13",
        "export ncclGinPlugin_v14",
    }
    assert "export ncclGinPlugin_v14" not in reference | baseline
    assert "completion counters" in gda - reference


WITHOUT_V14 = exports("ncclGinPlugin_v11", "ncclGinPlugin_v13", "ncclGinPlugin_v140")
OLD_VERBS = exports("ibv_open_device", "ibv_query_device")
FAULTS: dict[str, dict[str, Any]] = {
    "python": {"python": (3, 10)},
    "package torch": {"packages": {**good(GDA).packages, "torch": "2.12.1+cu130"}},
    "package sglang": {"packages": {k: v for k, v in good(GDA).packages.items() if k != "sglang"}},
    "files for other users": {"private": ("/opt/moerl/capabilities.json",)},
    "package moerl-runtime": {"runtime": outputs.runtime(imported="/mnt/runtime/moerl_runtime/__init__.py")},
    "graders": {"runtime": outputs.runtime(graders=["exact"])},
    "EFA installer": {"installer": outputs.packages_file("1.49.0")},
    "libfabric": {"libfabric": outputs.libfabric("2.4.0amzn5.0")},
    "EFA provider": {"providers": done("shm:\n    version: 206.0\nefa_like:\n    version: 1.0\n")},
    "export ncclGinPlugin_v14": {"symbols": {PLUGIN: WITHOUT_V14, VERBS: good(GDA).symbols[VERBS]}},
    "completion counters": {"symbols": {PLUGIN: good(GDA).symbols[PLUGIN], VERBS: OLD_VERBS}},
    "one NCCL in the file system": {"nccl_files": (NCCL, "/usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3")},
    "one NCCL in the process": {"probe": probed(GDA, nccl={NCCL: 23102, "/usr/lib/libnccl.so.2": 23102})},
    "NCCL version at run time": {"probe": probed(GDA, nccl={NCCL: 22907})},
    "CUDA of torch": {"probe": probed(GDA, cuda="12.9")},
    "nvcc": {"compiler": done(outputs.NVCC.format("12.9"))},
    "nccl_device.h": {"nccl_header": False},
    "CUDA forward compatibility": {"compat": ("/usr/local/cuda-13.0/compat",)},
    "libgdrapi": {"gdrapi": ("/opt/gdrcopy/lib/libgdrapi.so.2.4",)},
    "sources of gdrdrv": {"gdrdrv_sources": False},
    "libraries of libnccl-net-ofi.so": {"linked": {PLUGIN: outputs.LDD_MISSING}},
    "libraries of common_ops.so": {"linked": {"/x/sgl_kernel/sm90/common_ops.so": outputs.LDD_FOREIGN}},
    "stock DeepEP": {"packages": {**good(GDA).packages, "sgl-deep-ep": "0.1.2"}},
    "DeepEP": {"packages": {**good(GDA).packages, "deep-ep": "2.1.0+local"}},
    "package nvidia-nvshmem-cu13": {"packages": {**good(GDA).packages, "nvidia-nvshmem-cu13": "3.7.2"}},
    "deep_ep imported from": {"probe": probed(GDA, deep_ep="/src/deepep/deep_ep/__init__.py")},
    "commit of /opt/miles": {"checkouts": {**good(GDA).checkouts, "/opt/miles": done("cd" * 20)}},
    "train.py": {"train_script": None},
    "tools of the framework": {"tools": ("convert_hf_to_fp8.py", "fp8_cast_bf16.py")},
    "packages of the runtime": {"packages": {k: v for k, v in good(GDA).packages.items() if k != "zstandard"}},
    "flags of train.py": {"trainer_flags": frozenset({"--actor-nodes"})},
    "routes of the engine": {"engine_routes": frozenset({"/generate"})},
    "flags and variables of the engine": {"engine_names": frozenset({"--moe-runner-backend", "--tp-size"})},
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_wrong_image_fails_in_the_check_of_what_is_wrong_and_says_what_to_do(check: str) -> None:
    seen = good(GDA, **FAULTS[check])
    assert bad(seen) == {check}
    (found,) = failed(check_image(GDA, seen))
    assert found.found
    assert found.needed
    assert found.fix
    assert found.line().startswith("FAIL  ")


def test_every_check_of_the_stack_is_seen_to_fail() -> None:
    others = {
        # Below, with several faults at once or for another cause.
        "NCCL plugin",
        "export ncclGinPlugin_v13",
        *(f"{point.module}.{point.name}" for point in (*EXTENSION_POINTS["miles"], *ENGINE_POINTS["miles"])),
        *(f"package {name}" for name in GDA.packages),
        *(f"commit of {path}" for path in GDA.checkouts),
    }
    assert names(check_image(GDA, good(GDA))) <= set(FAULTS) | others


def test_a_missing_plugin_is_named_first_and_its_exports_with_it() -> None:
    seen = good(GDA, plugin=None, symbols={VERBS: good(GDA).symbols[VERBS]}, linked={})
    assert bad(seen) == {"NCCL plugin", "export ncclGinPlugin_v13", "export ncclGinPlugin_v14"}


def test_imports_that_fail_are_shown_by_their_last_line() -> None:
    text = "Traceback (most recent call last):\nImportError: libnvshmem_host.so.3: cannot open shared object file\n"
    checks = failed(check_image(GDA, good(GDA, probe=done(text, code=1))))
    assert {"import", "deep_ep imported from"} == names(checks)
    assert "libnvshmem_host.so.3" in next(check for check in checks if check.name == "import").found


def test_a_copied_folder_is_no_installed_package() -> None:
    text = "Traceback (most recent call last):\nimportlib.metadata.PackageNotFoundError: moerl-runtime\n"
    checks = failed(check_image(GDA, good(GDA, runtime=done(text, code=1))))
    assert {"package moerl-runtime", "graders"} == names(checks)
    assert "PackageNotFoundError" in checks[0].found


@pytest.mark.parametrize(
    ("version", "right"),
    [
        ("2.1.0+97d8f9b", True),
        ("2.1.0+97d8f9bcc1be", True),
        ("2.1.0+874779c", False),
        ("2.0.0+97d8f9b", False),
        ("2.1.0", False),
        ("2.1.0+", False),
        ("2.1.0+9", False),
    ],
)
def test_deepep_is_the_pinned_commit(version: str, right: bool) -> None:
    packages = {**good(GDA).packages, "deep-ep": version}
    assert ("DeepEP" not in bad(good(GDA, packages=packages))) is right


@pytest.mark.parametrize(("release", "right"), [("13.0", True), ("13.2", True), ("12.9", False), ("14.0", False)])
def test_the_compiler_is_of_the_stacks_major_version_and_not_older(release: str, right: bool) -> None:
    seen = good(GDA, compiler=done(outputs.NVCC.format(release)))
    assert ("nvcc" not in bad(seen)) is right
    assert "nvcc" in bad(good(GDA, compiler=Output(code=127, text="No such file or directory: 'nvcc'")))


def test_libraries_of_the_driver_may_be_missing_and_python_defines_its_own_symbols() -> None:
    assert "libcuda.so.1 => not found" in outputs.LDD_GOOD.text
    assert bad(good(GDA, linked={PLUGIN: outputs.LDD_GOOD})) == set()
    assert bad(good(GDA, linked={PLUGIN: Output(code=127, text="no ldd")})) == {"libraries of libnccl-net-ofi.so"}


def test_stock_deepep_fails_only_an_image_that_has_another() -> None:
    baseline = wanted("baseline")
    seen = good(baseline, packages={**good(baseline).packages, "sgl-deep-ep": "0.1.0"})
    (check,) = [check for check in check_image(baseline, seen) if check.name == "stock DeepEP"]
    assert check.status == "warning"
    assert bad(seen, baseline) == set()


@pytest.mark.parametrize("framework", EXTENSION_POINTS)
def test_a_framework_that_moved_fails_at_exactly_the_point_that_moved(framework: str) -> None:
    stack = wanted("baseline" if framework == "slime" else "efa-gda")
    kept = good(stack).contracts
    for place, contract in enumerate(kept):
        name = f"{contract.point.module}.{contract.point.name}"
        changed: list[Contract] = [replace(contract, found=None)]
        if contract.point.expects:
            changed.append(replace(contract, found=(contract.found or ())[1:]))
        if contract.point.kind == "call":
            changed.append(replace(contract, found=(*(contract.found or ()), "9 positional")))
        for wrong in changed:
            assert bad(good(stack, contracts=(*kept[:place], wrong, *kept[place + 1 :])), stack) == {name}


def test_a_renamed_field_of_a_request_is_the_engines_and_says_who_sends_it() -> None:
    (place,) = [at for at, kept in enumerate(good(GDA).contracts) if kept.point.name == "UpdateWeightFromDiskReqInput"]
    contracts = list(good(GDA).contracts)
    renamed = tuple("flush_kv_cache" if name == "flush_cache" else name for name in contracts[place].found or ())
    contracts[place] = replace(contracts[place], found=renamed)
    (check,) = failed(check_image(GDA, good(GDA, contracts=tuple(contracts))))
    assert check.name == "sglang.srt.managers.io_struct.UpdateWeightFromDiskReqInput"
    assert "moerl_runtime.engine" in str(check.fix)


def test_parameters_come_in_order_and_fields_in_any() -> None:
    points = {point.kind: point for point in EXTENSION_POINTS["miles"] if len(point.expects) > 1}
    fields = Contract(point=points["fields"], found=tuple(reversed(points["fields"].expects)))
    assert bad(good(GDA, contracts=(fields,))) == set()
    called = replace(points["fields"], kind="parameters", expects=("args", "path"))
    assert bad(good(GDA, contracts=(Contract(point=called, found=("args", "path", "more")),))) == set()
    assert bad(good(GDA, contracts=(Contract(point=called, found=("path", "args")),))) != set()


def test_engine_flags_that_the_trainer_passes_through_are_the_engines() -> None:
    seen = good(GDA, engine_names=frozenset({"--tp-size", "SGLANG_WARMUP_TIMEOUT"}))
    assert bad(seen) == {"flags of train.py", "flags and variables of the engine"}
    (check,) = [check for check in check_image(GDA, seen) if check.name == "flags of train.py"]
    assert "--sglang-moe-runner-backend" in check.found


def test_without_flags_of_an_environment_that_part_is_skipped_and_said() -> None:
    bare = replace(GDA, trainer_flags=(), engine_flags=())
    skipped = [check for check in check_image(bare, good(GDA)) if check.status == "skipped"]
    assert names(tuple(skipped)) == {"flags of train.py", "flags and variables of the engine"}
    assert all("--env" in check.found for check in skipped)


JUNK = st.text(max_size=200)


@given(
    text=JUNK,
    code=st.sampled_from([0, 1, 124, 127]),
    field=st.sampled_from(["providers", "libfabric", "probe", "runtime", "compiler"]),
)
def test_whatever_a_program_prints_is_a_verdict_and_no_crash(text: str, code: int, field: str) -> None:
    checks = check_image(GDA, good(GDA, **{field: Output(code=code, text=text)}))
    assert all(check.line() for check in checks)
    assert failed(checks)


@given(installer=JUNK)
def test_a_file_of_another_form_is_no_installer(installer: str) -> None:
    assert "EFA installer" in bad(good(GDA, installer=installer))
    assert "EFA installer" in bad(good(GDA, installer=None))
