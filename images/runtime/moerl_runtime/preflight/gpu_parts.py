"""What only a GPU can show: that CUDA works at all, and that expert traffic inside the node is right."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moerl_runtime.bench import planned, verdict
from moerl_runtime.bench.launch import run_ranks
from moerl_runtime.bench.settings import Backend, Case, Settings
from moerl_runtime.preflight.check import Check, causes, failed, judged, skipped, telling
from moerl_runtime.preflight.collect import Ran, Runner
from moerl_runtime.preflight.expected import Expected

PROBE_SECONDS = 120.0
IMPORT_SECONDS = 300.0
"""torch out of an image whose layers come as they are read."""
RANKS_SECONDS = 420.0
"""Kernels are compiled on the first run; later ones find them in the cache."""
TOKENS, REPEATS = 128, 3
LOOPBACK, PORT = "127.0.0.1", 29_501
TRAFFIC = "expert traffic on this node"

_CUDA_ERRORS: Mapping[int, tuple[str, str, str]] = {
    -1: ("no-libcuda", "libcuda.so.1 is not there", "Request GPUs, and NVIDIA_DRIVER_CAPABILITIES=compute,utility."),
    100: ("no-gpu", "no GPU is visible (100)", "Request GPUs for this pod, and check the NVIDIA device plugin."),
    802: (
        "fabric-manager",
        "the system is not ready (802): fabric manager has not set up NVLink",
        "Check nvidia-fabricmanager on the node: it must run and be of the driver's release. Else replace the node.",
    ),
    803: (
        "cuda-compat",
        "driver and user-space library do not fit (803): the image's CUDA compatibility libraries are in the way",
        "Remove /usr/local/cuda*/compat from the image, or what puts it on LD_LIBRARY_PATH.",
    ),
    804: (
        "cuda-compat",
        "forward compatibility on hardware that has none (804)",
        "Remove /usr/local/cuda*/compat from the image, or update the node's driver.",
    ),
    46: ("gpu-busy", "a GPU is in use by another process (46)", "End what holds it, or replace the node."),
}


def judge_probe(output: str, *, gpus: int) -> Check:
    """The verdict over what cuda_probe printed; '' where it printed nothing."""
    try:
        found = json.loads(output.strip().splitlines()[-1])
        code, seen = int(found["code"]), int(found["gpus"])
    except (ValueError, IndexError, KeyError, TypeError):
        return Check(
            name="CUDA operation",
            status="failed",
            found="the process that tried it ended without an answer",
            needed="a trivial operation on every GPU",
            fix="Look for Xid messages in the node's kernel log; replace the node if there are any.",
            cause="cuda-crash",
        )
    cause, text, fix = _CUDA_ERRORS.get(
        code, ("cuda-error", f"CUDA error {code}", "Look the number up in cuda.h (CUresult), and at the kernel log.")
    )
    if code == 0:
        cause, text = "gpus-missing", f"works on {seen} GPUs"
        fix = "Request all GPUs of the plan, and check the NVIDIA device plugin."
    return judged(
        "CUDA operation",
        code == 0 and seen == gpus,
        found=text,
        needed=f"a trivial operation on {gpus} GPUs",
        fix=fix,
        cause=cause,
    )


def judge_libraries(ran: Ran | None, wanted: str | None) -> tuple[Check, ...]:
    """The verdict over what nccl_probe printed, for NCCL of version `wanted`; None: any version will do.

    Ranks would say it in the traceback of whichever dies first.
    """
    output = ran.output if ran is not None else ""
    loaded = _loaded(output)
    if ran is not None and ran.code == 0 and loaded is not None:
        return (
            Check(name="imports", status="ok", found="as a rank does them"),
            *verdict.one_nccl([{"software": {"nccl": loaded}}], wanted),
        )
    error = (telling(output) or ["ended without an answer"])[-1]
    about_nccl = loaded is not None and "nccl" in error.lower()
    nccl = verdict.one_nccl([{"software": {"nccl": loaded}}], wanted) if about_nccl else ()
    check = judged(
        "imports",
        False,
        found=f"a process that imports as ranks do has failed\n{output}" if output else error,
        needed="torch, and deep_ep where the plan uses it",
        fix="Build DeepEP with the one NCCL and install nothing over that (build/install-nccl.sh): EP_SUPPRESS_NCCL_CHECK "
        "hides what then crashes."
        if about_nccl
        else "Build the extension against the installed torch.",
        cause=next(iter(causes(nccl)), "nccl-foreign") if about_nccl else "import-failed",
    )
    return (check, *nccl)


def _loaded(output: str) -> Mapping[str, Any] | None:
    """The probe's document among what libraries print; None where it did not come so far."""
    for line in output.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and {"paths", "version"} <= found.keys():
            return found
    return None


def settings_for(expected: Expected, ranks: int) -> Settings:
    """One node, few tokens: this is about right and wrong."""
    backend: Backend = "deep_ep" if expected.deepep else "nccl"
    return Settings(
        kind="deepep",
        backend=backend,
        pool=expected.pool,
        host=LOOPBACK,
        port=PORT,
        nodes=1,
        node=0,
        ranks_per_node=ranks,
        links=expected.links,
        transport=expected.transport,
        cases=(Case(name="one node", shape=planned.fitting(expected.shape, ranks), tokens=TOKENS),),
        repeats=REPEATS,
    )


def gpu_checks(
    expected: Expected,
    *,
    run: Runner,
    variables: Mapping[str, str],
    clock: Callable[[], float],
    pause: Callable[[float], object],
    ranks: int | None = None,
) -> tuple[Check, ...]:
    """In order; what follows one that fails is left out. `ranks` stand for the pod's GPUs on another machine."""
    count = expected.gpus if ranks is None else ranks
    probed = run([sys.executable, "-m", "moerl_runtime.preflight.cuda_probe"], PROBE_SECONDS)
    first = judge_probe(probed.output if probed is not None else "", gpus=count)
    if failed([first]):
        return (first, skipped(TRAFFIC, "CUDA does not work"))
    modules = ["torch", "deep_ep"] if expected.deepep else ["torch"]
    imported = run([sys.executable, "-m", "moerl_runtime.preflight.nccl_probe", *modules], IMPORT_SECONDS)
    before = (first, *judge_libraries(imported, expected.nccl))
    if failed(before):
        return (*before, skipped(TRAFFIC, "its libraries are not right"))
    if count < 2:
        return (*before, skipped(TRAFFIC, "one GPU: nothing to exchange"))
    settings = settings_for(expected, count)
    with tempfile.TemporaryDirectory(prefix="moerl-preflight-") as folder:
        outcome = run_ranks(
            settings, Path(folder), variables=variables, seconds=RANKS_SECONDS, clock=clock, pause=pause
        )
    if not outcome.ranks:
        return (
            *before,
            Check(
                name=TRAFFIC,
                status="failed",
                found=outcome.failure,
                needed="dispatch and combine between the node's GPUs",
                fix="The last lines of the rank that failed say why; its NCCL is the image's, as seen before.",
                cause="expert-traffic",
            ),
        )
    return (
        *before,
        # Again, for what ranks have loaded since.
        *(replace(check, name=f"{check.name} (ranks)") for check in verdict.one_nccl(outcome.ranks, expected.nccl)),
        *verdict.correctness(settings, outcome.ranks),
    )
