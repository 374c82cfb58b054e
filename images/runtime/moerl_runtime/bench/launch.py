"""One process per GPU, each with its own NCCL log, watched together: the first that fails ends the others, which would
wait in a collective until its timeout."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_runtime.bench.rank import RESULTS, log_path
from moerl_runtime.bench.settings import Settings, write

POLL_SECONDS = 0.2
STOP_SECONDS = 10.0
TAIL_LINES = 25
LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of all ranks by rank, or why there are none."""

    ranks: tuple[Mapping[str, Any], ...]
    failure: str = ""


def variables_of(settings: Settings, variables: Mapping[str, str], log: Path) -> dict[str, str]:
    """Environment of one rank: the pod's, NCCL's log, and what a bench on one node or on the CPU needs."""
    own = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET",
        "NCCL_DEBUG_FILE": str(log),
        "PYTHONFAULTHANDLER": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if settings.kind == "deepep":
        own |= {"EP_REUSE_NCCL_COMM": "0", "NCCL_CUMEM_ENABLE": "1"}
        if settings.nodes == 1:
            # Without a network there is no device-side networking to set up, and GPUs reach each other over NVLink.
            own |= {"EP_DISABLE_GIN": "1"}
    if settings.backend == "gloo":
        own |= {"OMP_NUM_THREADS": "1"}
        if settings.host in LOOPBACK:
            own |= {"GLOO_SOCKET_IFNAME": "lo"}
    return {**variables, **own}


def run_ranks(
    settings: Settings,
    folder: Path,
    *,
    variables: Mapping[str, str],
    seconds: float,
    clock: Callable[[], float],
    pause: Callable[[float], object],
    python: str = sys.executable,
) -> Outcome:
    """Runs this node's ranks in `folder` for `seconds` at most."""
    document = folder / "settings.json"
    write(settings, document)
    processes: list[subprocess.Popen[bytes]] = []
    end = clock() + seconds
    try:
        for local_rank in range(settings.ranks_per_node):
            with _output(folder, local_rank).open("wb") as output:
                processes.append(
                    subprocess.Popen(  # noqa: S603 - this interpreter, no shell
                        [python, "-m", "moerl_runtime.bench.rank", str(document), str(local_rank)],
                        env=variables_of(settings, variables, log_path(folder, local_rank)),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                    )
                )
        while True:
            codes = [process.poll() for process in processes]
            broken = [place for place, code in enumerate(codes) if code not in (None, 0)]
            if broken:
                return Outcome(ranks=(), failure=_reason(folder, broken[0], codes[broken[0]]))
            if all(code == 0 for code in codes):
                results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
                return Outcome(ranks=tuple(results))
            if clock() >= end:
                return Outcome(
                    ranks=(), failure=f"ranks were still at work after {seconds:g} s\n{_tail(_output(folder, 0))}"
                )
            pause(POLL_SECONDS)
    finally:
        _stop(processes)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        if process.poll() is None:
            process.kill()
            process.wait()


def _output(folder: Path, local_rank: int) -> Path:
    return folder / f"rank-{local_rank}.log"


def _reason(folder: Path, local_rank: int, code: int | None) -> str:
    how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
    return f"local rank {local_rank} {how}\n{_tail(_output(folder, local_rank))}"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
