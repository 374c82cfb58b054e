"""Limits of an engine agree with each other, whatever its model and geometry."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.catalog.models import MODELS, Model
from infra.config.engine_plan import (
    DISPATCH_BUFFER_GIB,
    DISPATCH_TOKENS,
    DRAIN_BUDGET_SECONDS,
    GRACE_SECONDS,
    MEMORY_FLOOR_GIB,
    EnginePlan,
    dispatch_buffer_gib,
    dispatch_tokens,
    engine_plan,
)
from infra.config.environment import RolloutWorkload
from infra.config.geometry import RolloutGeometry, rollout_geometry
from infra.config.plan import Plan
from tests.shipped import SHIPPED, plan_of

DEEPEP_V2 = [model for model in MODELS.values() if model.deepep_v2]
SPOT_NOTICE_SECONDS = 120


def geometry_of(model: Model, gpus: int, nodes: int = 32) -> RolloutGeometry:
    workload = RolloutWorkload(precision="fp8", gpus_per_engine=gpus, expert_parallel=gpus if model.experts else 1)
    return rollout_geometry(workload, model, nodes=nodes, gpus_per_node=8)


def engine_of(model: Model, geometry: RolloutGeometry, plan: Plan | None = None, precision: str = "fp8") -> EnginePlan:
    plan = plan or plan_of("reference-p5en")
    pool = plan.pool(plan.workload.rollouts[0].pool)
    backend = "deepep_v2" if geometry.experts_cross_efa else "none"
    return engine_plan(pool, geometry, model=model, backend=backend, precision=precision, sglang="0.5.19")


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(DEEPEP_V2), gpus=st.sampled_from([16, 32, 64]))
def test_no_rank_is_ever_handed_more_tokens_than_its_buffer_holds(model: Model, gpus: int) -> None:
    engine = engine_of(model, geometry_of(model, gpus))
    assert engine.dispatch_tokens_per_rank is not None
    assert engine.chunked_prefill_tokens // engine.attention_data_parallel <= engine.dispatch_tokens_per_rank
    assert engine.running_requests_max // engine.attention_data_parallel <= engine.dispatch_tokens_per_rank
    assert engine.graph_batch_max <= engine.dispatch_tokens_per_rank


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(DEEPEP_V2), gpus=st.sampled_from([16, 32, 64]))
def test_buffer_is_the_largest_that_fits_its_memory(model: Model, gpus: int) -> None:
    geometry = geometry_of(model, gpus)
    chosen = dispatch_tokens(model, geometry)
    larger = [tokens for tokens in DISPATCH_TOKENS if tokens > chosen]
    assert all(dispatch_buffer_gib(model, geometry, tokens) > DISPATCH_BUFFER_GIB for tokens in larger)
    assert chosen == DISPATCH_TOKENS[-1] or dispatch_buffer_gib(model, geometry, chosen) <= DISPATCH_BUFFER_GIB


def test_buffer_estimate_is_worked_out_by_hand() -> None:
    """2048 tokens x 16 ranks x 8 experts a rank are 262144 rows of 20144 bytes, and half a GiB for both directions."""
    model = MODELS["Qwen/Qwen3-235B-A22B"]
    assert dispatch_buffer_gib(model, geometry_of(model, 16), 2048) == pytest.approx(5.418, abs=0.001)
    assert dispatch_tokens(model, geometry_of(model, 16)) == 2048
    wide = MODELS["deepseek-ai/DeepSeek-V3"]
    assert dispatch_tokens(wide, geometry_of(wide, 64)) == 512


@pytest.mark.parametrize("name", SHIPPED)
def test_memory_left_beside_weights_and_cache_covers_sglangs_reserve_and_the_buffer(name: str) -> None:
    plan = plan_of(name)
    model = MODELS[plan.workload.model]
    for rollout in plan.workload.rollouts:
        engine, memory = rollout.engine, plan.pool(rollout.pool).gpu_memory_gib
        tokens = engine.dispatch_tokens_per_rank
        buffer_gib = dispatch_buffer_gib(model, rollout.geometry, tokens) if tokens else 0
        assert (1 - engine.memory_fraction) * memory >= MEMORY_FLOOR_GIB + buffer_gib - 1e-6
        assert engine.memory_fraction * memory > rollout.geometry.gpu_memory_gib


@pytest.mark.parametrize(
    ("model", "gpus", "precision", "runner", "dense"),
    [
        ("Qwen/Qwen3-4B", 8, "bf16", None, None),
        ("Qwen/Qwen3-30B-A3B", 8, "bf16", "triton", None),
        ("Qwen/Qwen3-30B-A3B", 8, "fp8", "deep_gemm", None),
        ("Qwen/Qwen3-235B-A22B", 16, "fp8", "deep_gemm", None),
        ("deepseek-ai/DeepSeek-V3", 16, "fp8", "deep_gemm", 1),
        ("deepseek-ai/DeepSeek-V3", 8, "fp8", "deep_gemm", None),
    ],
)
def test_runner_follows_precision_and_dense_layers_stay_whole_across_nodes(
    model: str, gpus: int, precision: str, runner: str | None, dense: int | None
) -> None:
    engine = engine_of(MODELS[model], geometry_of(MODELS[model], gpus), precision=precision)
    assert (engine.moe_runner, engine.dense_tensor_parallel) == (runner, dense)


@pytest.mark.parametrize(("gpus", "groups"), [(1, 1), (4, 1), (8, 1), (16, 2), (64, 8)])
def test_attention_never_leaves_its_node(gpus: int, groups: int) -> None:
    model = MODELS["Qwen/Qwen3-235B-A22B"]
    assert engine_of(model, geometry_of(model, gpus)).attention_data_parallel == groups


def test_tasks_fill_the_running_batch_and_no_more() -> None:
    for name in SHIPPED:
        for rollout in plan_of(name).workload.rollouts:
            engine = rollout.engine
            samples = engine.tasks_max * engine.samples_per_task
            assert engine.running_requests_max - engine.samples_per_task < samples <= engine.running_requests_max


@pytest.mark.parametrize(("gpus", "least", "engines"), [(8, 3, 3), (4, 3, 6), (16, 3, 1), (32, 3, 0)])
def test_engines_kept_are_those_that_fit_the_nodes_kept(gpus: int, least: int, engines: int) -> None:
    plan = plan_of("reference-p5en")
    pool = plan.pool("rollout")
    pool = replace(pool, size=replace(pool.size, min=least))
    model = MODELS["Qwen/Qwen3-30B-A3B"]
    made = engine_plan(pool, geometry_of(model, gpus), model=model, backend="none", precision="fp8", sglang="0.5.19")
    assert made.engines_min == engines


def test_drain_and_the_engines_exit_fit_a_spot_notice() -> None:
    assert DRAIN_BUDGET_SECONDS < GRACE_SECONDS < SPOT_NOTICE_SECONDS


def test_a_pod_without_efa_devices_is_not_told_to_use_efa() -> None:
    """An engine that shares its node gets no EFA, and NCCL_NET would then end it."""
    shared = plan_of("starter-p5en", {"workload.rollout.gpus_per_engine": 4, "workload.rollout.expert_parallel": 4})
    whole = plan_of("starter-p5en")
    assert shared.workload.rollouts[0].pods.engine.efa == 0
    assert "NCCL_NET" not in shared.workload.rollouts[0].variables
    assert whole.workload.rollouts[0].variables["NCCL_NET"] == "Libfabric"
