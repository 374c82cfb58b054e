"""Variables that build scripts hand to other projects' builds: each is one that the pinned sources read.

A name that nothing reads is no error anywhere, so each stands here with the place that was read, at the version read. A moved
pin fails until its sources have been read again.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

import pytest

from infra.catalog import CATALOG
from infra.catalog.software import Software
from tests.images.dockerfiles import CONTEXT, SCRIPTS, code, parse

READ_AT: Mapping[str, set[str]] = {
    "flash-attn": {"2.8.3"},
    "transformer-engine": {"2.17.0"},
    "apex": {"10417aceddd7d5d05d7cbf7b0fc2daad1105f8b4"},
    "torch-memory-saver": {"74d68c5e4bedf2b6774f2c92ed0f81b7c8d91ed0", "b5588e83de86412a48689a6583a4b567e75f7acc"},
    # Read at the first; the second is a commit of the fork, for whose build the AWS samples set the same names.
    "deepep": {"b306af06afd412c88e51e71802951606e40b7358", "97d8f9bcc1be31e9036db2ab591ef9b9f4e38619"},
    # Its setup.py on main after 0.5.19; the variable is there since 0.5.16.
    "sglang": {"0.5.17", "0.5.19"},
}
NINJA = "torch, torch/utils/cpp_extension.py: _get_num_workers"
ARCHS = "torch, torch/utils/cpp_extension.py: _get_cuda_arch_flags"
READERS: Mapping[str, Mapping[str, str]] = {
    "build-deepep.sh": {
        "EP_NCCL_ROOT_DIR": "deepep, setup.py: persistent_env_names; deep_ep/utils/find_pkgs.py: EP_{NAME}_ROOT_DIR",
        "NVSHMEM_DIR": "deepep, deep_ep/utils/find_pkgs.py: {NAME}_DIR",
        "TORCH_CUDA_ARCH_LIST": "deepep, setup.py",
        "DISABLE_AGGRESSIVE_PTX_INSTRS": "deepep, setup.py",
        "LIBRARY_PATH": "gcc",
    },
    "build-extension.sh": {
        "FLASH_ATTENTION_FORCE_BUILD": "flash-attn, setup.py line 61",
        "FLASH_ATTN_CUDA_ARCHS": "flash-attn, setup.py line 70",
        "NVTE_PYTORCH_FORCE_BUILD": "transformer-engine, transformer_engine/pytorch/setup.py line 25",
        "CPATH": "gcc; transformer_engine/pytorch/csrc includes cudnn.h (common.h) and nccl.h (extensions.h)",
        "TORCH_CUDA_ARCH_LIST": ARCHS,
        "MAX_JOBS": NINJA,
    },
    "install-efa.sh": {"GNUPGHOME": "gpg"},
    "install-sglang.sh": {
        "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_SGLANG": "setuptools-scm, documentation, overrides: for one distribution",
        "SGLANG_BUILD_RUST_EXTS": "sglang, python/setup.py: _BUILD_RUST_EXTS_ENV",
    },
    "install-trainer.sh": {"TMS_CUDA_MAJOR": "torch-memory-saver, setup.py line 119"},
    "Dockerfile": {
        "CUDA_HOME": "torch, torch/utils/cpp_extension.py: _find_cuda_home; deepep, deep_ep/__init__.py",
        "EP_NCCL_ROOT_DIR": "deepep, deep_ep/utils/find_pkgs.py",
        "LIBRARY_PATH": "gcc",
        "PATH": "the shell",
        "PYTHONPATH": "Python",
    },
}
"""Of each script, and of the Dockerfiles, which variable is read by what."""
BASH = shutil.which("bash") or "bash"


def handed_on(script: str) -> set[str]:
    """Variables that a script sets: its own have lower case."""
    return set(re.findall(r"(?:^|[\s;(])([A-Z][A-Z0-9_]*)=", code(script)))


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_every_variable_of_a_script_has_a_reader(script: str) -> None:
    assert handed_on(script) == set(READERS.get(script, {}))


@pytest.mark.parametrize("stack", CATALOG.software)
def test_every_variable_of_an_image_has_a_reader(stack: str) -> None:
    parsed = parse((CONTEXT / stack / "Dockerfile").read_text(encoding="utf-8"))
    names = {
        name for stage in parsed.stages for item in stage.instructions if item.word == "ENV" for name in item.names
    }
    ours = {name for name in names if name.startswith("MOERL_")}
    assert names - ours <= set(READERS["Dockerfile"])


@pytest.mark.parametrize("stack", CATALOG.software)
def test_the_sources_of_the_readers_were_read_at_the_pins(stack: Software) -> None:
    software, sources = CATALOG.software[stack], CATALOG.image_sources[stack]
    pins: dict[str, object] = {name: pin for name, pin in sources.trainer.items() if name in READ_AT}
    if pins:  # the baseline builds none of them
        pins |= {"sglang": software.sglang, "deepep": software.deepep and software.deepep.ref}
    for name, pin in pins.items():
        assert pin in READ_AT[name], f"read the build of {name} at {pin}, and which variables it knows"
    read = {text.partition(",")[0] for readers in READERS.values() for text in readers.values()}
    assert set(READ_AT) - {"apex"} <= read
    if pins:
        assert set(pins) == set(READ_AT)


@pytest.mark.parametrize(
    ("cores", "available_gib", "gib_each", "jobs"),
    [
        # CodeBuild's largest machine that the image project takes, and as much as it has with nothing else running.
        (36, 70, 9, 7),
        (36, 70, 4, 17),
        (8, 500, 9, 8),
        (36, 6, 9, 1),
    ],
)
def test_as_many_compilers_run_as_memory_has_room_for(cores: int, available_gib: int, gib_each: int, jobs: int) -> None:
    """The function of the script itself, with stand-ins for the machine."""
    function = re.search(r"(?ms)^jobs\(\) \{$.*?^\}$", code("build-extension.sh"))
    assert function
    machine = f"nproc() {{ echo {cores}; }}\nawk() {{ echo {available_gib * 1_048_576}; }}\n"
    text = f"set -euo pipefail\n{machine}{function[0]}\njobs {gib_each}\n"
    done = subprocess.run([BASH, "-c", text], capture_output=True, text=True, check=True)  # noqa: S603 - the script's text
    assert done.stdout == f"{jobs}\n"


def test_every_extension_is_bounded_and_reads_what_the_machine_has() -> None:
    text = code("build-extension.sh")
    arms = re.findall(r"(?ms)^  ([a-z-]+)\)$(.*?)^    ;;$", text)
    bounds = {name: re.findall(r"MAX_JOBS=\$\(jobs (\d+)\)", body) for name, body in arms}
    assert bounds == {"tools": [], "transformer-engine": ["4"], "flash-attn": ["9"], "apex": ["4"]}
    for name, body in arms:
        assert (re.search(r"export .*MAX_JOBS", body) is not None) == (name != "tools")
    real = subprocess.run(
        ["awk", "/^MemAvailable:/ { print $2 }", "/proc/meminfo"],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    assert "/^MemAvailable:/ { print $2 }" in text
    assert int(real.stdout) > 0


def test_no_wheel_of_a_release_page_stands_in_for_a_build() -> None:
    text = code("build-extension.sh")
    for name in ("FLASH_ATTENTION_FORCE_BUILD", "NVTE_PYTORCH_FORCE_BUILD"):
        # Both compare with this very word.
        assert f"{name}=TRUE" in text
