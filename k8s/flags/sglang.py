"""Command line and environment of an SGLang engine, from the Plan.

What SGLang would refuse, or accept and then do wrong, is refused here (`k8s.flags.sglang_rules`), so that a rendered
engine starts. Names are checked against those of the pinned release: SGLang ignores an unknown variable in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from infra.config.plan import Plan
from infra.config.workload_plan import RolloutPlan
from k8s.flags.sglang_rules import known_names, refusals
from k8s.ports import ENGINE_BOOTSTRAP_PORT, ENGINE_PORT

LOOPBACK = "127.0.0.1"
FIRST_WEIGHT_VERSION = "0"
"""The base model. Versions are digits only: the trainer reads no staleness out of any other text."""
WATCHDOG_SECONDS = 900
"""Without a forward step. SGLang's 300 s are shorter than a first compile, and an in-place pause counts against it."""
DIST_TIMEOUT_SECONDS = 3_600
"""Ranks load weights at different speeds; NCCL's own limit ends the slow ones (sgl-project/sglang#3932)."""
WARMUP_SECONDS = 1_800
"""SGLang's own advice for a start that compiles DeepGEMM kernels (srt/environ.py of 0.5.19)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """Arguments of `python -m sglang.launch_server` and the environment they rely on."""

    flags: tuple[str, ...]
    variables: Mapping[str, str]


def engine_command(
    plan: Plan, rollout: RolloutPlan, *, model_path: str, jit_path: str, host: str = LOOPBACK
) -> EngineCommand:
    """One engine's command, the same in every pod of its group: Kubernetes puts the group's variables in.

    `host` is what the HTTP server binds; with the default only its own agent reaches it, so it needs no key.
    Raises ValueError with every reason why SGLang would not serve like this.
    """
    version = rollout.engine.sglang
    flags = tuple(
        text
        for name, value in _flags(plan, rollout, model_path=model_path, host=host)
        for text in ((name,) if value is None else (name, str(value)))
    )
    variables = {**_variables(rollout, jit_path), **rollout.variables}
    reasons = refusals(flags, variables, version=version, architecture=plan.workload.architecture)
    if reasons:
        raise ValueError(f"SGLang {version} would not serve pool {rollout.pool}: {'; '.join(reasons)}")
    return EngineCommand(flags=flags, variables=variables)


def _flags(
    plan: Plan, rollout: RolloutPlan, *, model_path: str, host: str
) -> Iterator[tuple[str, str | int | float | None]]:
    geometry, engine = rollout.geometry, rollout.engine
    yield "--model-path", model_path
    yield "--served-model-name", plan.workload.model
    yield "--host", host
    yield "--port", ENGINE_PORT
    yield "--load-format", "auto"
    yield "--weight-version", FIRST_WEIGHT_VERSION
    yield "--tp-size", geometry.gpus_per_engine
    yield "--ep-size", geometry.expert_parallel
    if geometry.nodes_per_engine > 1:
        yield "--nnodes", geometry.nodes_per_engine
        yield "--node-rank", "$(LWS_WORKER_INDEX)"
        yield "--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{ENGINE_BOOTSTRAP_PORT}"
        yield "--dist-timeout", DIST_TIMEOUT_SECONDS
    if engine.attention_data_parallel > 1:
        yield "--dp-size", engine.attention_data_parallel
        yield "--enable-dp-attention", None
        yield "--enable-dp-lm-head", None
    if engine.dense_tensor_parallel is not None:
        yield "--moe-dense-tp-size", engine.dense_tensor_parallel
    if engine.moe_runner is not None:
        yield "--moe-a2a-backend", rollout.backend
        # Never auto: the trainer picks the FP8 scale format by this very value, and does not know deepep_v2's default.
        yield "--moe-runner-backend", engine.moe_runner
    if engine.deepep_v2_mode is not None:
        yield "--deepep-v2-mode", engine.deepep_v2_mode
    yield "--mem-fraction-static", engine.memory_fraction
    yield "--chunked-prefill-size", engine.chunked_prefill_tokens
    yield "--max-running-requests", engine.running_requests_max
    renamed = "--cuda-graph-max-bs-decode"
    yield renamed if renamed in known_names(engine.sglang) else "--cuda-graph-max-bs", engine.graph_batch_max
    yield "--watchdog-timeout", WATCHDOG_SECONDS
    yield "--enable-metrics", None
    # Lower case: uvicorn dies of another.
    yield "--log-level", "info"


def _variables(rollout: RolloutPlan, jit_path: str) -> dict[str, str]:
    engine = rollout.engine
    own = {
        # /health then answers at once, also while requests are held by a pause or weights load.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false",
        "SGLANG_WARMUP_TIMEOUT": str(WARMUP_SECONDS),
        "SGLANG_CACHE_DIR": jit_path,
        "SGLANG_DG_CACHE_DIR": f"{jit_path}/deep_gemm",
        "TRITON_CACHE_DIR": f"{jit_path}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{jit_path}/inductor",
        "CUDA_CACHE_PATH": f"{jit_path}/nv",
        "FLASHINFER_WORKSPACE_BASE": jit_path,
    }
    if engine.moe_runner == "deep_gemm":
        own["SGLANG_JIT_DEEPGEMM_FAST_WARMUP"] = "true"
    if engine.dispatch_tokens_per_rank is not None:
        own["SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] = str(engine.dispatch_tokens_per_rank)
        own["EP_JIT_CACHE_DIR"] = f"{jit_path}/deep_ep"
        if engine.deepep_v2_mode == "direct":
            own["EP_DISABLE_GIN"] = "1"
    known = known_names(engine.sglang)
    return {name: value for name, value in own.items() if not name.startswith("SGLANG_") or name in known}
