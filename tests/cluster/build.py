"""`make control-plane`: builds the programs of the control plane from their Go modules into .cache/, once. What a folder named
by KUBEBUILDER_ASSETS holds at the right version is not built."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from infra.local.kubernetes.programs import (
    ASSETS,
    BUILT,
    CACHE,
    PROGRAMS,
    SOURCES,
    Program,
    cache_folder,
    given,
    go_version,
    module_version,
)
from infra.local.schemas import CACHE as SCHEMA_CACHE
from k8s.schemas import locked_schemas


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, help="packages compiled at a time; Go's own default otherwise")
    jobs: int | None = parser.parse_args().jobs
    go = go_version()
    if go is None:
        print("control plane: skipped, there is no Go on this machine; the cluster tests will skip too")
        return 0
    folder, ready = cache_folder(go), given(os.environ)
    for reason in ready.refused:
        print(f"control plane: {reason}: one is built")
    missing = [item for item in PROGRAMS if item.name not in ready.paths and not (folder / item.name).is_file()]
    if not missing and (folder / BUILT).is_file():
        _offer_schemas(folder)
        print(f"control plane: built already, {folder}")
        return 0
    began = time.monotonic()
    try:
        _fill(folder, missing, jobs)
    except subprocess.CalledProcessError as fault:
        command = " ".join(str(word) for word in fault.cmd[1:3])
        print(
            f"control plane: not built, `go {command}` failed, with the reason above. Modules come by GOPROXY, or from Go's"
        )
        print("module cache; programs that are built already are kept.")
        return 1
    _offer_schemas(folder)
    print(f"control plane: built in {time.monotonic() - began:.0f} s, {folder}")
    return 0


def _fill(folder: Path, missing: Sequence[Program], jobs: int | None) -> None:
    """Each program comes into the folder when it is whole, so that a build that is cut off goes on where it was."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / BUILT).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as written:
        part = Path(written)
        for number, program in enumerate(missing, start=1):
            print(f"[{number}/{len(missing)}] {program.name} {module_version(program)}", flush=True)
            started = time.monotonic()
            _build(program, part / program.name, jobs)
            (part / program.name).chmod(0o755)
            (part / program.name).replace(folder / program.name)
            print(f"      {time.monotonic() - started:.0f} s", flush=True)
        for name, (program_name, inside) in ASSETS.items():
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(_module_folder(program_name) / inside, part / name, copy_function=shutil.copyfile)
            _make_writable(part / name)
            (part / name).rename(folder / name)
    (folder / BUILT).touch()


def _build(program: Program, output: Path, jobs: int | None) -> None:
    flags = ["-s", "-w"]
    if program.stamp:
        version = module_version(program)
        major, minor, *_ = version.split(".")
        for variable, value in (("gitVersion", f"v{version}"), ("gitMajor", major), ("gitMinor", minor)):
            flags.append(f"-X {program.stamp}.{variable}={value}")
    command = ["build", "-mod=readonly", "-trimpath", f"-ldflags={' '.join(flags)}", "-o", str(output)]
    if jobs:
        command += ["-p", str(jobs)]
    _go(program.folder, *command, program.package)


def _module_folder(program_name: str) -> Path:
    program = next(program for program in PROGRAMS if program.name == program_name)
    return Path(_go(program.folder, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", program.module).strip())


def _go(folder: str, *arguments: str) -> str:
    """Output of `go` in a program's folder. Its messages go to stderr as they come; CalledProcessError when it fails."""
    variables = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    return subprocess.run(  # noqa: S603 - fixed arguments
        [shutil.which("go") or "go", *arguments],
        cwd=SOURCES / folder,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def _offer_schemas(folder: Path) -> None:
    """Definitions that the modules carry go into the cache of locked schemas, so the fast checks need no download of them."""
    locked = {schema.sha256 for schema in locked_schemas()}
    for path in sorted(folder.glob("*-crds/*.yaml")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest in locked:
            SCHEMA_CACHE.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, SCHEMA_CACHE / f"{digest}.yaml")


def _make_writable(folder: Path) -> None:
    """The module cache is read-only, and so is what is copied from it: then nobody could clean it up."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    sys.exit(main())
