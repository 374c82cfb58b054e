"""What SGLang refuses at start-up, and what it should refuse, as functions over an engine's command line.

From the wheels' srt/server_args.py and srt/arg_groups/{validation,parallel,moe}_hook.py. Only rules about options that
this package writes are here; the wheel has more, for backends that no stack uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from infra.catalog.models import DEEPEP_V2_ARCHITECTURES

Options = Mapping[str, str]
Variables = Mapping[str, str]

DISPATCH_VARIABLE = "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DISPATCH_DEFAULT = 128
PAGE_TOKENS = 128
"""The largest KV page that an attention backend chooses by itself; a chunk must be a multiple of the page."""
GRAPH_BATCH = ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")


@cache
def known_names(version: str) -> frozenset[str]:
    """Option and SGLANG_ variable names of a release. Raises ValueError for a release whose names nobody has read."""
    source = files("k8s.flags") / f"known_sglang_{version}.txt"
    if not source.is_file():
        raise ValueError(f"no list of SGLang {version}'s options; read them from its wheel first")
    lines = source.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def refusals(flags: Sequence[str], variables: Variables, *, version: str, architecture: str) -> tuple[str, ...]:
    """Every reason why this engine would not start, or would start and serve wrongly. Empty when there is none."""
    reasons = list(_names(flags, variables, version))
    options = parse(flags)
    for check in _CHECKS:
        reasons += check(options, variables)
    if options.get("--moe-a2a-backend") == "deepep_v2":
        if "--deepep-v2-mode" not in known_names(version):
            reasons.append(f"--moe-a2a-backend deepep_v2 came with 0.5.19, this is {version}")
        if architecture not in DEEPEP_V2_ARCHITECTURES:
            reasons.append(f"deepep_v2 is not validated for {architecture}")
    return tuple(reasons)


def parse(flags: Sequence[str]) -> dict[str, str]:
    """Options with their values; a switch has an empty one. Raises ValueError for a value without an option."""
    options: dict[str, str] = {}
    name = ""
    for text in flags:
        if text.startswith("--"):
            name = text
            options[name] = ""
        elif not name:
            raise ValueError(f"{text!r} follows no option")
        else:
            options[name], name = text, ""
    return options


def _names(flags: Sequence[str], variables: Variables, version: str) -> Iterator[str]:
    known = known_names(version)
    written = [text for text in flags if text.startswith("--")]
    yield from (f"{name} is no option of {version}" for name in written if name not in known)
    yield from (f"{name} is given twice" for name in sorted({name for name in written if written.count(name) > 1}))
    ours = (name for name in variables if name.startswith("SGLANG_"))
    yield from (f"{name} is no variable of {version}" for name in ours if name not in known)


def _nodes(options: Options, _: Variables) -> Iterator[str]:
    nodes, world = _number(options, "--nnodes", 1), _number(options, "--tp-size", 1)
    if world % nodes:
        yield f"--tp-size {world} does not divide by --nnodes {nodes}"
    if nodes > 1:
        yield from (
            f"--nnodes {nodes} without {name}" for name in ("--dist-init-addr", "--node-rank") if name not in options
        )


def _attention(options: Options, _: Variables) -> Iterator[str]:
    groups, world = _number(options, "--dp-size", 1), _number(options, "--tp-size", 1)
    on = "--enable-dp-attention" in options
    if groups > 1 and _number(options, "--nnodes", 1) > 1 and not on:
        yield "--dp-size above 1 on several nodes needs --enable-dp-attention"
    if on and world % groups:
        yield f"--tp-size {world} does not divide by --dp-size {groups}"
    if on and groups == 1:
        yield "--enable-dp-attention with --dp-size 1 is switched off in silence"
    if "--enable-dp-lm-head" in options and not on:
        yield "--enable-dp-lm-head needs --enable-dp-attention"
    if options.get("--moe-dense-tp-size", "1") not in ("1", str(world)):
        yield "--moe-dense-tp-size is 1 or --tp-size"


def _experts(options: Options, _: Variables) -> Iterator[str]:
    world, experts = _number(options, "--tp-size", 1), _number(options, "--ep-size", 1)
    backend = options.get("--moe-a2a-backend", "none")
    if backend != "none" and experts != world:
        yield f"--moe-a2a-backend {backend} turns --ep-size {experts} into {world} in silence"
    fused = "--enforce-disable-flashinfer-allreduce-fusion" not in options
    if 1 < experts < world and fused:
        yield f"--ep-size {experts} below --tp-size {world} loses an all-reduce to fusion: reward 0, exit code 0"


def _prefill(options: Options, _: Variables) -> Iterator[str]:
    chunk = _number(options, "--chunked-prefill-size", 0)
    if chunk > 0 and _per_group(options, chunk) % PAGE_TOKENS:
        yield f"--chunked-prefill-size {chunk} is no multiple of the KV page in each attention group"


def _deepep_v2(options: Options, variables: Variables) -> Iterator[str]:
    if options.get("--moe-a2a-backend") != "deepep_v2":
        return
    if options.get("--moe-runner-backend", "auto") not in ("auto", "deep_gemm"):
        yield "deepep_v2 runs with --moe-runner-backend deep_gemm only"
    if _number(options, "--nnodes", 1) > 1 and options.get("--deepep-v2-mode", "direct") == "direct":
        yield "--deepep-v2-mode direct on several nodes"
    capacity = int(variables.get(DISPATCH_VARIABLE, DISPATCH_DEFAULT))
    chunk = _per_group(options, _number(options, "--chunked-prefill-size", 8_192))
    if chunk > capacity:
        yield f"{DISPATCH_VARIABLE} {capacity} is below the prefill chunk of {chunk} tokens"
    graph = next((_number(options, name, 0) for name in GRAPH_BATCH if name in options), 512)
    running = _number(options, "--max-running-requests", 0)
    batch = min(graph, max(1, _per_group(options, running))) if running else graph
    if batch > capacity:
        yield f"{DISPATCH_VARIABLE} {capacity} is below the decode batch of {batch} requests"
    # SGLang checks graphs only: a larger batch runs without one and then overflows the buffer.
    if not running or _per_group(options, running) > capacity:
        yield f"{DISPATCH_VARIABLE} {capacity} is below --max-running-requests in each attention group"


def _server(options: Options, _: Variables) -> Iterator[str]:
    if ":" in options.get("--served-model-name", ""):
        yield "--served-model-name has a colon"
    level = options.get("--log-level", "info")
    if level != level.lower():
        yield f"--log-level {level} is not lower case"
    if "--max-queued-requests" in options:
        yield "--max-queued-requests answers 503 to requests that a pause put back"


def _per_group(options: Options, engine_wide: int) -> int:
    on = "--enable-dp-attention" in options
    return engine_wide // _number(options, "--dp-size", 1) if on else engine_wide


def _number(options: Options, name: str, default: int) -> int:
    return int(options.get(name, default))


_CHECKS: tuple[Callable[[Options, Variables], Iterator[str]], ...] = (
    _nodes,
    _attention,
    _experts,
    _prefill,
    _deepep_v2,
    _server,
)
