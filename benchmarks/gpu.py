"""The GPU parts of the runtime on one machine without EFA and without a network: build, preflight, benches.

    python3 benchmarks/gpu.py --payload DIR --work DIR --out DIR [--ranks 2] [--replace-nccl] [STEP ...]

needs a python3 that has torch and boto3, and nvcc. DIR of the payload holds

    nccl-2.31.2-sm90.tar.xz   nccl/lib/libnccl.so.2 and nccl/include, of the nvidia-nccl-cu13 wheel
    DeepEP/                   its sources, with third-party/fmt
    plan.json                 `moerl plan reference-p5en --json`

A step that was done in the same work folder is not done again; one that fails does not stop the others. All that is printed
goes to OUT/gpu.log, the documents of the benches and the times of the steps to OUT/gpu.json, NCCL's logs to
OUT/nccl-logs.tar.gz. Exit code 1 when a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
NCCL_VERSION = "2.31.2"
NCCL_ARCHIVE = f"nccl-{NCCL_VERSION}-sm90.tar.xz"
POOL, PORT = "rollout", 29_500
BUILD_JOBS = "16"
SYSTEM_COMPILER = ("/usr/bin/gcc", "/usr/bin/g++")
"""Taken where they exist: another one first on the path may bring a libstdc++ that is not the process's."""
TOOLCHAIN = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "LIBRARY_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "CPATH")
STATIC_LIBSTDCXX = "_ZNSt6localeC1Ev"
"""std::locale::locale(), which nothing but libstdc++ defines."""
MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
"""NVLink multicast is a resource of the whole host; nothing here needs it."""


@dataclass
class Machine:
    """Where things are, and where output goes."""

    payload: Path
    work: Path
    out: Path
    ranks: int
    replace_nccl: bool
    log: TextIO
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def nccl(self) -> Path:
        """Root of the NCCL in use: ours, or torch's own place where ours was put."""
        return Path(self.replaced.read_text(encoding="utf-8")) if self.replaced.exists() else self.work / "nccl"

    @property
    def replaced(self) -> Path:
        return self.work / "nccl-replaced"

    @property
    def deepep(self) -> Path:
        return self.work / "DeepEP"

    def variables(self) -> dict[str, str]:
        site = [path for path in self.deepep.glob("build/lib.*") if path.is_dir()]
        paths = [str(ROOT / "images/runtime"), *map(str, site), os.environ.get("PYTHONPATH", "")]
        own = {
            "PYTHONPATH": ":".join(path for path in paths if path),
            "PYTHONUNBUFFERED": "1",
            "EP_JIT_CACHE_DIR": str(self.work / "jit"),
            "EP_NCCL_ROOT_DIR": str(self.nccl),
            "MOERL_PLAN": str(self.payload / "plan.json"),
        }
        library = self.nccl / "lib/libnccl.so.2"
        preload = {"LD_PRELOAD": str(library)} if library.exists() and not self.replaced.exists() else {}
        return {**os.environ, **MULTICAST_OFF, **own, **preload}

    def run(
        self,
        *command: str,
        seconds: float,
        folder: Path | None = None,
        extra: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> str:
        """Runs a program, its output to the log (unless `quiet`) and back. Raises SubprocessError where it fails or lasts."""
        self.say(f"$ {' '.join(command)}")
        process = subprocess.Popen(  # noqa: S603
            command,
            cwd=folder or ROOT,
            env={**self.variables(), **(extra or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Its children too: they would hold the GPUs.
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            self.say(output)
            raise
        if process.returncode or not quiet:
            self.say(output)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, output)
        return output

    def say(self, text: str) -> None:
        print(text, flush=True)
        print(text, file=self.log, flush=True)


def facts(machine: Machine) -> None:
    """What the machine is, before anything is changed."""
    machine.run("nvidia-smi", seconds=60)
    machine.run("nvidia-smi", "topo", "-m", seconds=60)
    machine.run("nvcc", "--version", seconds=60)
    named = {name: os.environ[name] for name in TOOLCHAIN if name in os.environ}
    machine.say(f"toolchain: {named}, g++ {shutil.which('g++')}, system {Path(SYSTEM_COMPILER[1]).exists()}")
    machine.run(
        sys.executable,
        "-c",
        "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.device_count())",
        seconds=120,
    )


def unpack(machine: Machine) -> None:
    with tarfile.open(machine.payload / NCCL_ARCHIVE) as archive:
        archive.extractall(machine.work, filter="data")
    if not machine.deepep.is_dir():
        shutil.copytree(machine.payload / "DeepEP", machine.deepep)
    try:
        _one_nccl(machine)
    except subprocess.CalledProcessError as error:
        if not machine.replace_nccl:
            raise
        found = [Path(word) for word in error.output.split() if word.endswith("/libnccl.so.2")]
        theirs = next(path for path in found if machine.work not in path.parents).parents[1]
        shutil.copytree(machine.nccl, theirs, dirs_exist_ok=True)
        machine.replaced.write_text(str(theirs), encoding="utf-8")
        _one_nccl(machine)


def _one_nccl(machine: Machine) -> None:
    """A process with torch has one NCCL and it is ours; prints the paths first, torch's own before a preloaded one."""
    machine.run(
        sys.executable,
        "-c",
        "import torch, sys\n"
        "from moerl_runtime.bench.loaded import loaded_nccl\n"
        "found = loaded_nccl()\n"
        "print(*sorted(found.paths, key=lambda path: 'site-packages' not in path), found.version)\n"
        f"sys.exit(len(found.paths) != 1 or found.version != {NCCL_VERSION!r})",
        seconds=120,
    )


def build(machine: Machine) -> None:
    """DeepEP's extension for the host; its kernels are compiled when they are first used."""
    there = all(Path(compiler).exists() for compiler in SYSTEM_COMPILER)
    system = dict(zip(("CC", "CXX"), SYSTEM_COMPILER, strict=True)) if there else {}
    paths = (machine.nccl / "lib", _cuda_stubs(), os.environ.get("LIBRARY_PATH", ""))
    machine.run(
        sys.executable,
        "setup.py",
        "build",
        seconds=420,
        folder=machine.deepep,
        extra={
            **system,
            "TORCH_CUDA_ARCH_LIST": "9.0",
            "MAX_JOBS": BUILD_JOBS,
            # setup.py names libnccl without saying where it is.
            "LIBRARY_PATH": ":".join(str(path) for path in paths if str(path)),
            # Before the objects, so that no member of a static libstdc++ is taken, whatever the compiler adds.
            "LDFLAGS": " ".join(
                filter(None, (os.environ.get("LDFLAGS"), "-Wl,--no-as-needed -l:libstdc++.so.6 -Wl,--as-needed"))
            ),
            "LD_PRELOAD": "",
        },
    )
    (extension,) = machine.deepep.glob("build/lib.*/deep_ep/_C.*.so")
    symbols = machine.run("nm", str(extension), seconds=60, quiet=True)
    if re.search(rf" [TtWwVu] {STATIC_LIBSTDCXX}$", symbols, re.MULTILINE):
        # The second copy has locale facets of its own, and the first regular expression ends the process.
        raise ValueError(f"{extension} carries a libstdc++ of its own beside torch's; link it with the shared one")
    machine.run(
        sys.executable, "-c", "import torch, deep_ep; print(deep_ep.__version__, deep_ep.__file__)", seconds=120
    )


def _cuda_stubs() -> Path:
    """libcuda to link against, where the driver's own is not on the linker's path."""
    return Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1] / "lib64/stubs"


def preflight(machine: Machine) -> None:
    """The GPU parts alone: what asks for EFA would fail here, rightly."""
    _moerl(machine, "preflight", "preflight", "gpu", "--pool", POOL, "--ranks", str(machine.ranks), seconds=240)


def fabric(machine: Machine) -> None:
    """What preflight runs between nodes, on the only one: NCCL, then DeepEP."""
    _moerl(machine, "fabric", "preflight", "fabric", *_meeting(machine, "fabric"), seconds=300)


def nccl(machine: Machine) -> None:
    _bench(machine, "nccl", "--largest-mib", "1024")


def deepep(machine: Machine) -> None:
    _bench(machine, "deepep", "--tokens", "8192", "--tokens", "128")


def upstream(machine: Machine) -> None:
    """DeepEP's own test: its first case, checked and timed by its profiler, to hold our numbers against."""
    for tokens in ("8192", "128"):
        machine.run(
            sys.executable,
            str(machine.deepep / "tests/elastic/test_ep.py"),
            f"--num-processes={machine.ranks}",
            f"--num-tokens={tokens}",
            "--num-topk=8",
            "--allow-hybrid-mode=0",
            "--test-first-only",
            seconds=180,
            folder=machine.work,
            extra={
                "EP_DISABLE_GIN": "1",
                "EP_REUSE_NCCL_COMM": "0",
                "NCCL_CUMEM_ENABLE": "1",
                "TORCHDYNAMO_DISABLE": "1",
            },
        )


def _bench(machine: Machine, kind: str, *arguments: str) -> None:
    _moerl(machine, kind, "bench", kind, *_meeting(machine, kind), *arguments, seconds=300)


def _meeting(machine: Machine, name: str) -> tuple[str, ...]:
    return (
        *("--pool", POOL, "--rendezvous", f"127.0.0.1:{PORT}", "--nodes", "1", "--ranks", str(machine.ranks)),
        *("--logs", str(machine.work / "logs" / name)),
    )


def _moerl(machine: Machine, name: str, *arguments: str, seconds: float) -> None:
    plan = ("--plan", str(machine.payload / "plan.json"))
    command = (sys.executable, "-m", "moerl_runtime", *arguments, *plan)
    documents = machine.results.setdefault("documents", {})
    try:
        output = machine.run(*command, seconds=seconds)
    except subprocess.CalledProcessError as error:
        # A verdict of failed is a result too.
        documents[name] = _last_document(error.output)
        raise
    documents[name] = _last_document(output)


def _last_document(output: str) -> Any:
    lines = output.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


STEPS: Mapping[str, Callable[[Machine], None]] = {
    step.__name__: step for step in (facts, unpack, build, preflight, fabric, nccl, deepep, upstream)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payload", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--replace-nccl",
        action="store_true",
        help="where preloading leaves two, put the payload's NCCL in the place of torch's own (throw-away machines)",
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"default: all of {', '.join(STEPS)}")
    arguments = parser.parse_args()
    unknown = [step for step in arguments.steps if step not in STEPS]
    if unknown:
        parser.error(f"unknown steps {', '.join(unknown)}; there are {', '.join(STEPS)}")
    for folder in (arguments.work, arguments.out):
        folder.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "gpu.log").open("a", encoding="utf-8") as log:
        machine = Machine(
            payload=arguments.payload.resolve(),
            work=arguments.work.resolve(),
            out=arguments.out.resolve(),
            ranks=arguments.ranks,
            replace_nccl=arguments.replace_nccl,
            log=log,
        )
        return _steps(machine, arguments.steps or list(STEPS))


def _steps(machine: Machine, names: list[str]) -> int:
    times: dict[str, Any] = machine.results.setdefault("steps", {})
    for name in names:
        done = machine.work / f"{name}.done"
        if done.exists() and name in ("unpack", "build"):
            machine.say(f"== {name}: done before")
            continue
        machine.say(f"== {name}")
        begun = time.monotonic()
        try:
            STEPS[name](machine)
            done.touch()
            verdict = "ok"
        except (subprocess.SubprocessError, OSError, ValueError, StopIteration) as error:
            verdict = f"failed: {error}"
        times[name] = {"seconds": round(time.monotonic() - begun, 1), "verdict": verdict}
        machine.say(f"== {name}: {verdict}, {times[name]['seconds']} s")
        (machine.out / "gpu.json").write_text(json.dumps(machine.results, indent=1, sort_keys=True), encoding="utf-8")
    logs = machine.work / "logs"
    if logs.is_dir():
        with tarfile.open(machine.out / "nccl-logs.tar.gz", "w:gz") as archive:
            archive.add(logs, arcname="logs")
    machine.say("\n".join(f"{name:12} {entry['seconds']:7} s  {entry['verdict']}" for name, entry in times.items()))
    return 0 if all(entry["verdict"] == "ok" for entry in times.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
