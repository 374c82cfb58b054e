"""Derived numbers of one SGLang engine: how attention is split, how much it takes at once, what memory that leaves.

SGLang's own defaults never pass its own check of deepep_v2's buffer, so every limit that the check compares is set
here, from one number: the tokens that a rank may dispatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Literal

from infra.catalog.models import Model
from infra.config.backend import A2aBackend
from infra.config.geometry import RolloutGeometry
from infra.config.pool_plan import PoolPlan

MoeRunner = Literal["deep_gemm", "triton"]
DeepepV2Mode = Literal["direct", "hybrid"]
DRAIN_BUDGET_SECONDS = 100
GRACE_SECONDS = 110
"""Of the 120 s between a Spot notice and the end of the node: 100 for the agent's drain, 10 for the engine's exit."""
SAMPLES_PER_TASK = 8
"""Samples of one prompt, generated together: a GRPO group (Miles' recipes: 32 prompts x 8 samples)."""
RUNNING_REQUESTS_PER_ATTENTION_GROUP = 256
CHUNK_TOKENS_PER_ATTENTION_GROUP = 8_192
"""SGLang's default below 160 GiB of GPU memory, without an all-to-all buffer that bounds it."""
DISPATCH_TOKENS = (2_048, 1_024, 512, 256)
DISPATCH_BUFFER_GIB = 8.0
"""Most memory that worst-case expert routing may reserve on each GPU; the largest of DISPATCH_TOKENS that fits is taken."""
MEMORY_FLOOR_GIB = 10.0
"""SGLang's own reserve on cards above 60 GiB (arg_groups/memory_hook.py of 0.5.19)."""
MEMORY_FRACTION_MAX = 0.85
"""Leaves room for a weight reload in place, which stages tensors beside the weights that serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Limits of one engine. Requests and tasks count the whole engine, tokens and batch sizes what their name says."""

    sglang: str
    """Release of the software stack."""
    attention_data_parallel: int
    """Groups that each do the attention of their own requests: one a node, so that only expert traffic crosses EFA.
    1 switches data-parallel attention off."""
    dense_tensor_parallel: int | None
    """1 where the model has dense layers under data-parallel attention, None where SGLang's default is right."""
    moe_runner: MoeRunner | None
    """None for a dense model."""
    chunked_prefill_tokens: int
    """Engine-wide: SGLang divides it by the attention groups."""
    running_requests_max: int
    """Engine-wide: SGLang divides it by the attention groups."""
    graph_batch_max: int
    """Largest decode batch of one attention group that runs as a CUDA graph."""
    deepep_v2_mode: DeepepV2Mode | None
    """None for another backend."""
    dispatch_tokens_per_rank: int | None
    """Rows of deepep_v2's buffer on each GPU; None for another backend."""
    memory_fraction: float
    """Of GPU memory, for weights and KV cache."""
    samples_per_task: int
    tasks_max: int
    """Tasks that the agent leases at once."""
    engines_min: int
    """Engines on the nodes that the pool always has."""
    drain_budget_seconds: int
    grace_seconds: int


def engine_plan(
    pool: PoolPlan, geometry: RolloutGeometry, *, model: Model, backend: A2aBackend, precision: str, sglang: str
) -> EnginePlan:
    groups = geometry.nodes_per_engine
    dispatch = dispatch_tokens(model, geometry) if backend == "deepep_v2" else None
    running = RUNNING_REQUESTS_PER_ATTENTION_GROUP
    chunk = dispatch or CHUNK_TOKENS_PER_ATTENTION_GROUP
    buffer_gib = 0.0 if dispatch is None else dispatch_buffer_gib(model, geometry, dispatch)
    per_node = geometry.engines_per_node
    return EnginePlan(
        sglang=sglang,
        attention_data_parallel=groups,
        dense_tensor_parallel=1 if groups > 1 and 0 < model.moe_layers < model.layers else None,
        moe_runner=None if not model.experts else "deep_gemm" if precision == "fp8" else "triton",
        chunked_prefill_tokens=chunk * groups,
        running_requests_max=running * groups,
        graph_batch_max=running,
        deepep_v2_mode=deepep_v2_mode(geometry) if backend == "deepep_v2" else None,
        dispatch_tokens_per_rank=dispatch,
        memory_fraction=_memory_fraction(pool, geometry, chunk=chunk, running=running, buffer_gib=buffer_gib),
        samples_per_task=SAMPLES_PER_TASK,
        tasks_max=tasks_max(geometry),
        engines_min=pool.size.min * per_node if per_node else pool.size.min // geometry.nodes_per_engine,
        drain_budget_seconds=DRAIN_BUDGET_SECONDS,
        grace_seconds=GRACE_SECONDS,
    )


def tasks_max(geometry: RolloutGeometry) -> int:
    """Tasks whose samples one engine generates at the same time."""
    return RUNNING_REQUESTS_PER_ATTENTION_GROUP * geometry.nodes_per_engine // SAMPLES_PER_TASK


def deepep_v2_mode(geometry: RolloutGeometry) -> DeepepV2Mode:
    """`direct` speaks NVLink only; SGLang accepts it on several nodes and then hangs."""
    return "hybrid" if geometry.nodes_per_engine > 1 else "direct"


def dispatch_tokens(model: Model, geometry: RolloutGeometry) -> int:
    """Tokens that a rank may dispatch: the largest choice whose worst case fits, the smallest where none does."""
    fitting = [
        tokens for tokens in DISPATCH_TOKENS if dispatch_buffer_gib(model, geometry, tokens) <= DISPATCH_BUFFER_GIB
    ]
    return fitting[0] if fitting else DISPATCH_TOKENS[-1]


def dispatch_buffer_gib(model: Model, geometry: RolloutGeometry, tokens: int) -> float:
    """GPU memory of a decode step's worst case, in GiB; an estimate that a GPU run has to confirm.

    Decode cannot wait for counts inside a CUDA graph, so DeepEP v2 expands for every rank sending every token to as many
    of this rank's experts as routing allows (token_dispatcher/deepep_v2.py of SGLang 0.5.19). A row holds the dispatched
    FP8 token, both halves of the first GEMM in BF16, their product in FP8, and the BF16 result; scales are one in 32.
    """
    ranks = geometry.expert_parallel
    rows = tokens * ranks * min(model.top_k, max(1, model.experts // ranks))
    fp8 = (model.hidden + model.moe_intermediate) * (1 + 1 / 32)
    bf16 = 2 * (2 * model.moe_intermediate + model.hidden)
    buffer = 2 * tokens * ranks * model.hidden * 2
    return (rows * (fp8 + bf16) + buffer) / 2**30


def _memory_fraction(
    pool: PoolPlan, geometry: RolloutGeometry, *, chunk: int, running: int, buffer_gib: float
) -> float:
    """SGLang's own estimate of what is not weights or cache, plus the all-to-all buffer that it leaves out."""
    groups = geometry.nodes_per_engine
    graphs = running * 2 + (running * groups * 3 if groups > 1 else 0)
    mib = 512 + max(chunk, 2_048) * 1.5 + geometry.gpus_per_engine * 128 + graphs
    reserve_gib = max(MEMORY_FLOOR_GIB, mib / 1024) + buffer_gib
    share = (pool.gpu_memory_gib - reserve_gib) / pool.gpu_memory_gib
    return min(MEMORY_FRACTION_MAX, floor(share * 100) / 100)
