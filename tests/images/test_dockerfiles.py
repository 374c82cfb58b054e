"""The Dockerfiles and their scripts, as far as they can be held without a build: no Docker engine runs here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.catalog import CATALOG
from infra.catalog.software import Software
from infra.config.image_arguments import CAPABILITIES, CHECKOUTS, CONTEXT, image_arguments, unresolved_arguments
from moerl_runtime.image.capabilities import CAPABILITIES_FILE, Capabilities
from moerl_runtime.image.capabilities import read as read_capabilities
from tests.images import dockerfiles
from tests.images.dockerfiles import ROOT, SCRIPTS, code, faults, parse, shell

STACKS: list[Software] = list(CATALOG.software)
TEXTS = {stack: (ROOT / f"{CONTEXT}/{stack}/Dockerfile").read_text(encoding="utf-8") for stack in STACKS}
PARSED = {stack: parse(text) for stack, text in TEXTS.items()}
BIN = Path(sys.executable).parent
BASH, SH, GIT = (shutil.which(name) or name for name in ("bash", "sh", "git"))
each_stack = pytest.mark.parametrize("stack", STACKS)


def run(
    *command: str | Path,
    text: str | None = None,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program with these variables and PATH alone."""
    environment = {"PATH": os.environ["PATH"], **(variables or {})}
    return subprocess.run(  # noqa: S603 - programs of this test
        command, input=text, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def lint(program: str, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return run(BIN / program, *arguments, text=text)


@each_stack
def test_no_dockerfile_walks_into_a_known_trap(stack: Software) -> None:
    assert list(faults(PARSED[stack], stack)) == []


GDA = TEXTS["efa-gda"]
AGAIN = " && /mnt/build/install-nccl.sh\n"
LAST_PIN = GDA.rindex(AGAIN)
MUTATIONS = {
    "NCCL is not pinned again": GDA[:LAST_PIN] + "\n" + GDA[LAST_PIN + len(AGAIN) :],
    "NCCL is not pinned again after": GDA.replace(
        "install-libraries.sh && /mnt/build/install-nccl.sh", "install-nccl.sh && /mnt/build/install-libraries.sh"
    ),
    "cuDNN and NVSHMEM are not": GDA.replace("/mnt/build/install-libraries.sh && ", ""),
    "the last instruction is not the check": GDA + "RUN true\n",
    "may shadow an installed package": GDA.replace("WORKDIR /opt/moerl", "WORKDIR /src/deepep"),
    "is not declared in stage image": GDA.replace("ARG TILELANG\n", ""),
    "is not declared in stage base": GDA.replace("ARG EFA_INSTALLER\nARG", "ARG", 1),
    "is no earlier stage": GDA.replace("from=extensions", "from=wheels", 1),
    "is not in the build context": GDA.replace("source=build/checkout.sh", "source=build/check-out.sh", 1),
    "moerl_runtime is not in the build context": GDA.replace("source=runtime,", "source=moerl_runtime,"),
    "is called and not mounted": GDA.replace("target=/mnt/build/install-efa.sh", "target=/mnt/install_efa.sh"),
    "no label holds NCCL": GDA.replace('      io.moerl.nccl="${NCCL}" \\\n', ""),
    "is not built on the base image by its digest": GDA.replace("@${BASE_DIGEST} AS base", " AS base"),
    "stage arguments is not built": GDA.replace(":?unresolved-see-moerl-image-args", ""),
    "EFA is installed before": GDA.replace("remove-conflicts.sh", "X")
    .replace("install-efa.sh", "remove-conflicts.sh")
    .replace("X", "install-efa.sh"),
    "DeepEP is installed before": GDA.replace("install-sglang.sh", "X")
    .replace("install-trainer.sh", "install-sglang.sh")
    .replace(
        "pip install --no-cache-dir --no-deps --force-reinstall /wheels/deep_ep-*.whl", "/mnt/build/install-trainer.sh"
    )
    .replace("/mnt/build/X", "pip install /wheels/deep_ep-*.whl #"),
    "the runtime is not installed once": GDA.replace(
        "FROM base AS image\n", "FROM base AS image\nCOPY runtime/moerl_runtime /opt/moerl/moerl_runtime\n"
    ),
    "the runtime is not installed once, after": GDA.replace(
        "dependencies /mnt/runtime", "package /mnt/runtime /opt/moerl"
    ),
    "not installed once": GDA.replace("install-runtime.sh package", "install-runtime.sh dependencies"),
    "runs what it downloads": GDA.replace(
        "ENTRYPOINT []", "RUN curl -fsSL https://example.com/x | bash\nENTRYPOINT []"
    ),
}


@pytest.mark.parametrize("fault", MUTATIONS)
def test_each_trap_is_seen_when_a_dockerfile_walks_into_it(fault: str) -> None:
    assert MUTATIONS[fault] != GDA
    assert any(fault in found for found in faults(parse(MUTATIONS[fault]), "efa-gda"))


@each_stack
def test_every_argument_has_the_catalogs_value_and_no_other_is_there(stack: Software) -> None:
    ours = image_arguments(CATALOG.software[stack], CATALOG.image_sources[stack])
    wanted: dict[str, str | None] = {**ours.arguments, **dict.fromkeys(ours.unresolved)}
    wanted[CAPABILITIES] = None
    assert PARSED[stack].defaults == wanted


@each_stack
def test_a_build_stops_at_once_and_by_name_at_an_argument_without_a_value(stack: Software) -> None:
    open_ones = set(unresolved_arguments(CATALOG.software[stack], CATALOG.image_sources[stack])) | {CAPABILITIES}
    first, *_ = PARSED[stack].stages
    (step,) = first.runs()
    asked = set(step.command.partition("require.sh")[2].partition("&&")[0].split())
    # The digest is asked for by FROM itself.
    assert asked | {"BASE_DIGEST"} == open_ones
    second = PARSED[stack].stages[1]
    assert any(mount.get("from") == first.name for mount in second.runs()[0].mounts)

    def require(given: set[str]) -> subprocess.CompletedProcess[str]:
        return run(BASH, SCRIPTS / "require.sh", *sorted(asked), variables=dict.fromkeys(given, "x"))

    assert require(asked).returncode == 0
    refused = require(set())
    assert refused.returncode == 2
    assert all(name in refused.stderr for name in asked)
    assert "moerl image args" in refused.stderr


@each_stack
def test_hadolint_has_nothing_to_say(stack: Software) -> None:
    done = lint("hadolint", "--no-color", str(ROOT / f"{CONTEXT}/{stack}/Dockerfile"))
    assert (done.stdout, done.returncode) == ("", 0)


def test_hadolint_would_speak() -> None:
    assert lint("hadolint", "-", text="FROM debian\nRUN cd /tmp\n").returncode == 1


@each_stack
def test_shellcheck_has_nothing_to_say_about_what_is_run(stack: Software) -> None:
    for stage in PARSED[stack].stages:
        for step in (item for item in stage.instructions if item.word == "RUN"):
            done = lint("shellcheck", "--shell=sh", "-", text=f"{step.command}\n")
            assert (done.stdout, done.returncode) == ("", 0), step.command


def test_shellcheck_has_nothing_to_say_about_the_scripts() -> None:
    scripts = sorted(SCRIPTS.glob("*.sh"))
    done = lint("shellcheck", *map(str, scripts))
    assert (done.stdout, done.returncode) == ("", 0)
    assert lint("shellcheck", "--shell=sh", "-", text="echo $1\n").returncode == 1


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.sh")))
def test_a_script_is_used_can_be_run_stops_at_its_first_fault_and_names_what_it_reads(script: str) -> None:
    text = shell(script)
    assert any(script in step.scripts for parsed in PARSED.values() for stage in parsed.stages for step in stage.runs())
    assert os.access(SCRIPTS / script, os.X_OK)
    assert text.startswith("#!/bin/bash\n#")
    assert "\nset -euo pipefail\n" in text
    header = text.partition("\nset -euo")[0]
    assert all(name in header for name in dockerfiles.read_by(script)), dockerfiles.read_by(script)


# --- the traps that scripts hold


def test_held_packages_go_only_with_the_option_that_moves_them() -> None:
    for script in SCRIPTS.glob("*.sh"):
        for line in code(script.name).splitlines():
            if re.search(r"apt(-get)? .*(remove|purge)", line):
                assert "--allow-change-held-packages" in line, script.name
    removed = code("remove-conflicts.sh")
    for package in ("libnccl2", "libnccl-dev", "libibverbs1", "libmlx5-1", "ibverbs-utils", "cuda-compat-*"):
        assert f"'{package}'" in removed
    assert "rm -rf /usr/local/cuda*/compat" in removed
    assert "/opt/hpcx" in removed


def test_efa_is_verified_against_the_pinned_key_before_it_is_unpacked_and_touches_nothing_of_the_node() -> None:
    text = code("install-efa.sh")
    steps = [
        text.index("gpg --batch --status-file status --verify"),
        text.index("VALIDSIG .* ${EFA_KEY_FINGERPRINT}\\$"),
        text.index("exit 1"),
        text.index("tar --extract"),
        text.index("./efa_installer.sh"),
        text.index("rm -rf /var/lib/apt/lists"),
    ]
    assert steps == sorted(steps)
    call = text[text.index("./efa_installer.sh") :].splitlines()[0].split()
    assert set(call[1:]) == {"-y", "--skip-kmod", "--skip-limit-conf", "--no-verify", "--disable-ngc"}
    assert text.index("apt-get update") < text.index("./efa_installer.sh")
    assert text.count("/var/lib/apt/lists") == 1
    assert "--proto '=https'" in text


@pytest.mark.parametrize(
    ("status", "accepted"),
    [
        ("[GNUPG:] VALIDSIG AAAA 2026-08-01 1 0 4 0 1 8 00 4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC\n", True),
        ("[GNUPG:] VALIDSIG 4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC 2026-08-01 1 0 4 0 1 8 00 BBBB\n", False),
        ("[GNUPG:] ERRSIG A05480B1DD2D3CCC 1 8 00 1 9 -\n", False),
        ("", False),
    ],
)
def test_only_a_signature_of_the_pinned_primary_key_is_accepted(status: str, accepted: bool, tmp_path: Path) -> None:
    """The line of the script itself, on status files of the form that GnuPG documents (doc/DETAILS)."""
    (line,) = [line for line in code("install-efa.sh").splitlines() if "VALIDSIG" in line]
    (tmp_path / "status").write_text(status, encoding="utf-8")
    variables = {"EFA_KEY_FINGERPRINT": "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"}
    done = run(BASH, "-c", f"{line}\nexit 1\nfi\n", folder=tmp_path, variables=variables)
    assert (done.returncode == 0) is accepted


def test_deepep_is_built_for_the_pools_against_the_one_nccl_and_linked_by_paths_of_its_own() -> None:
    text = code("build-deepep.sh")
    assert "TORCH_CUDA_ARCH_LIST=$CUDA_ARCHS" in text
    assert "EP_NCCL_ROOT_DIR=/opt/nccl" in text
    assert "LIBRARY_PATH=/opt/nccl/lib:$nvshmem/lib:/usr/local/cuda/lib64/stubs" in text
    assert "--no-build-isolation" in text
    nccl, nvshmem = code("install-nccl.sh"), code("install-libraries.sh")
    # Neither package has the name that DeepEP links by.
    assert 'ln -sf libnccl.so.2 "$root/lib/libnccl.so"' in nccl
    assert 'ln -sf "$(basename "$host")" "$lib/libnvshmem_host.so"' in nvshmem
    assert "--no-deps --force-reinstall" in nccl
    assert "pip uninstall --yes --quiet sgl-deep-ep deep-ep" in code("install-sglang.sh")


def test_sources_of_the_kernel_module_are_not_where_the_node_has_its_own() -> None:
    text = code("install-gdrcopy.sh")
    assert '"$prefix/src/gdrdrv"' in text
    assert '"$prefix/scripts"' in text
    assert "prefix=/opt/gdrcopy" in text
    for stack, parsed in PARSED.items():
        named = "MOERL_GDRDRV_SOURCE=/opt/gdrcopy/src/gdrdrv" in TEXTS[stack]
        assert named == (CATALOG.software[stack].gdrcopy is not None)
        assert named == any("install-gdrcopy.sh" in step.scripts for step in parsed.final.runs())


@pytest.mark.parametrize(
    ("archs", "aggressive"), [("9.0", "0"), ("9.0;10.0", "1"), ("10.0", "1")], ids=["hopper", "both", "blackwell"]
)
def test_aggressive_loads_are_for_hopper_alone(archs: str, aggressive: str) -> None:
    (line,) = [line for line in code("build-deepep.sh").splitlines() if "aggressive=0" in line]
    done = run(BASH, "-euo", "pipefail", "-c", f"{line}\necho $aggressive", variables={"CUDA_ARCHS": archs})
    assert done.stdout.strip() == aggressive


# --- what is run for real


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    done = run(GIT, *identity, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def checkout(home: Path, repository: Path, commit: str, target: Path) -> int:
    script = SCRIPTS / "checkout.sh"
    return run(BASH, script, f"file://{repository}", commit, target, variables={"HOME": str(home)}).returncode


def test_checkout_takes_the_named_commit_also_over_an_older_tree_and_no_other(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    commits = []
    for text in ("one", "two"):
        (repository / "file").write_text(text, encoding="utf-8")
        git(repository, "add", "file")
        git(repository, "commit", "--quiet", "-m", text)
        commits.append(git(repository, "rev-parse", "HEAD"))
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    target = tmp_path / "target"
    assert checkout(tmp_path, repository, commits[1], target) == 0
    (target / "file").write_text("changed by the base image", encoding="utf-8")
    assert checkout(tmp_path, repository, commits[0], target) == 0
    assert (target / "file").read_text(encoding="utf-8") == "one"
    assert checkout(tmp_path, repository, "0" * 40, target) != 0
    # A branch would be taken, but is no commit.
    assert checkout(tmp_path, repository, "main", target) != 0


@each_stack
def test_the_image_gets_the_document_that_its_check_reads(stack: Software, tmp_path: Path) -> None:
    """The RUN that writes it, with the document that the command line hands out."""
    (step,) = [item for item in PARSED[stack].final.runs() if "CAPABILITIES" in item.command]
    command = step.command.partition("&&")[0]
    assert CAPABILITIES_FILE in command
    target = tmp_path / "capabilities.json"
    document = image_arguments(CATALOG.software[stack], CATALOG.image_sources[stack]).arguments[CAPABILITIES]
    done = run(SH, "-c", command.replace(CAPABILITIES_FILE, str(target)), variables={CAPABILITIES: document})
    assert done.returncode == 0
    read = read_capabilities(target, stack=stack)
    assert isinstance(read, Capabilities)
    assert read.nccl == CATALOG.software[stack].nccl


@each_stack
def test_checkouts_that_the_check_looks_at_are_made_by_the_dockerfile(stack: Software) -> None:
    made = " ".join(step.command for step in PARSED[stack].final.runs())
    for name, path in CHECKOUTS[stack].items():
        assert f'"${{{name}}}" {path}' in made


@each_stack
def test_train_script_and_python_path_lie_in_the_checkouts(stack: Software) -> None:
    values = " ".join(item.value for item in PARSED[stack].final.instructions if item.word == "ENV")
    framework = CHECKOUTS[stack]["FRAMEWORK_REF"]
    assert f"MOERL_TRAIN_SCRIPT={framework}/train.py" in values
    assert re.search(r"PYTHONPATH=\S+/Megatron-LM(\s|$)", values)


def test_the_context_is_scripts_and_runtime_and_no_cache() -> None:
    sent = {
        str(path.relative_to(dockerfiles.CONTEXT))
        for path in dockerfiles.CONTEXT.rglob("*")
        if path.is_file() and not dockerfiles.ignored(str(path.relative_to(dockerfiles.CONTEXT)))
    }
    assert "runtime/moerl_runtime/image/cli.py" in sent
    assert "runtime/moerl_runtime/__init__.py" in sent
    assert "runtime/pyproject.toml" in sent
    assert {f"build/{path.name}" for path in SCRIPTS.glob("*.sh")} <= sent
    assert not [path for path in sent if "__pycache__" in path or path.endswith("Dockerfile") or ".egg-info" in path]
