"""One process of a bench: `python -m moerl_runtime.bench.rank SETTINGS LOCAL_RANK`. The parent writes SETTINGS and reads
what local rank 0 leaves beside it, the results of all ranks of all nodes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from moerl_runtime.bench import collectives, deepep, expert_traffic, meeting, timing
from moerl_runtime.bench.loaded import loaded_nccl
from moerl_runtime.bench.nccl_log import parse
from moerl_runtime.bench.settings import Settings, read

RESULTS = "results.json"


def log_path(folder: Path, local_rank: int) -> Path:
    """NCCL's log of a rank."""
    return folder / f"nccl-{local_rank}.log"


def run(
    settings: Settings,
    folder: Path,
    local_rank: int,
    *,
    clock: Callable[[], float],
    pause: Callable[[float], object],
) -> None:
    import torch
    import torch.distributed as dist

    rank = settings.node * settings.ranks_per_node + local_rank
    on_gpu = settings.backend != "gloo"
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if settings.backend == "deep_ep":
        deepep.load()
    store = meeting.store(
        settings.host,
        settings.port,
        ranks=settings.ranks,
        leads=rank == 0,
        seconds=settings.meet_seconds,
        clock=clock,
        pause=pause,
    )
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=settings.operation_seconds),
        device_id=device if on_gpu else None,
    )
    try:
        timer: Callable[[Sequence[timing.Step]], list[float]]
        if on_gpu:
            timer = partial(timing.on_gpu, warmups=settings.warmups, repeats=settings.repeats)
        else:
            timer = partial(timing.on_cpu, warmups=settings.warmups, repeats=settings.repeats, clock=clock)
        with torch.inference_mode():
            if settings.kind == "nccl":
                measured = collectives.measure(settings, rank=rank, device=device, timer=timer)
            else:
                measured = expert_traffic.measure(
                    settings, rank=rank, device=device, group=dist.group.WORLD, timer=timer
                )
        own = {
            "rank": rank,
            "measured": measured,
            "software": _software(settings),
            "evidence": _evidence(folder, local_rank),
        }
        everyone: list[Any] = [None] * settings.ranks
        dist.all_gather_object(everyone, own)
        if local_rank == 0:
            (folder / RESULTS).write_text(json.dumps(everyone), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _evidence(folder: Path, local_rank: int) -> dict[str, Any]:
    log = log_path(folder, local_rank)
    return asdict(parse(log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""))


def _software(settings: Settings) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
    if settings.backend == "gloo":
        return found
    found |= {"nccl": asdict(loaded_nccl()), "gpu": torch.cuda.get_device_name()}
    if settings.backend == "deep_ep":
        deep_ep = deepep.load()
        found["deepep"] = {"version": deep_ep.__version__, "path": deep_ep.__file__}
    return found


def main(arguments: Sequence[str]) -> None:
    path = Path(arguments[0])
    run(read(path), path.parent, int(arguments[1]), clock=time.perf_counter, pause=threading.Event().wait)


if __name__ == "__main__":
    main(sys.argv[1:])
