"""Parallelism arithmetic against numbers worked out by hand, and against a rank-by-rank count."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog.models import MODELS
from infra.config.environment import RolloutWorkload, TrainerWorkload
from infra.config.geometry import expert_params_b, rollout_geometry, trainer_geometry

QWEN_235B = MODELS["Qwen/Qwen3-235B-A22B"]
V3 = MODELS["deepseek-ai/DeepSeek-V3"]
POWERS = st.sampled_from([1, 2, 4, 8, 16])


def trainer(nodes: int = 16, model=QWEN_235B, gpus_per_node: int = 8, **parallel: int):
    return trainer_geometry(TrainerWorkload(**parallel), model, nodes=nodes, gpus_per_node=gpus_per_node)


def rollout(nodes: int = 32, model=QWEN_235B, **written):
    return rollout_geometry(RolloutWorkload(**written), model, nodes=nodes, gpus_per_node=8)


def test_reference_trainer_by_hand() -> None:
    geometry = trainer(tensor_parallel=4, pipeline_parallel=4, context_parallel=2, expert_parallel=16)
    assert geometry.gpus == 128
    assert geometry.data_parallel == 4  # 128 / (4 x 4 x 2)
    assert geometry.expert_data_parallel == 2  # 128 / (16 x 4)
    assert geometry.expert_group_nodes == 2  # 16 consecutive ranks on nodes of 8
    assert geometry.experts_cross_efa
    assert geometry.last_pipeline_layers == 22  # 94 - 3 x 24
    # Experts: 94 x 128 x 3 x 4096 x 1536 = 227.096e9, / 64 a rank = 3.548e9. The rest: 7.904e9 / 16 = 0.494e9.
    # Six bytes each = 24.25e9; twelve of the shards 0.494e9 / 8 + 3.548e9 / 2 = 22.03e9; 46.29e9 bytes = 43.1 GiB.
    assert expert_params_b(QWEN_235B) == pytest.approx(227.096, abs=0.001)
    assert geometry.gpu_memory_gib == pytest.approx(43.107, abs=0.005)


def test_reference_rollout_by_hand() -> None:
    geometry = rollout(precision="fp8", gpus_per_engine=16, expert_parallel=16)
    assert (geometry.nodes_per_engine, geometry.engines_per_node, geometry.engines_max) == (2, 0, 16)
    assert (geometry.moe_tensor_parallel, geometry.expert_group_nodes) == (1, 2)
    assert geometry.gpu_memory_gib == pytest.approx(235e9 * 1.03 / 16 / 2**30)
    assert rollout(precision="bf16", gpus_per_engine=16).gpu_memory_gib == pytest.approx(235e9 * 2 / 16 / 2**30)


@pytest.mark.parametrize(
    ("gpus_per_engine", "nodes", "per_engine", "per_node", "engines"),
    [(8, 2, 1, 1, 2), (4, 2, 1, 2, 4), (1, 3, 1, 8, 24), (16, 3, 2, 0, 1), (32, 3, 4, 0, 0), (24, 9, 3, 0, 3)],
)
def test_engines_of_a_pool_by_hand(gpus_per_engine, nodes, per_engine, per_node, engines) -> None:
    geometry = rollout(nodes, gpus_per_engine=gpus_per_engine)
    assert (geometry.nodes_per_engine, geometry.engines_per_node, geometry.engines_max) == (
        per_engine,
        per_node,
        engines,
    )


@pytest.mark.parametrize(
    ("model", "stages", "last"),
    [(QWEN_235B, 1, None), (QWEN_235B, 2, None), (QWEN_235B, 8, 10), (V3, 4, 13), (V3, 16, 1), (V3, 32, -1)],
)
def test_layers_of_the_last_stage_by_hand(model, stages, last) -> None:
    assert trainer(pipeline_parallel=stages, model=model).last_pipeline_layers == last


def test_engine_splits_experts_by_tensor_when_its_gpus_exceed_expert_parallel() -> None:
    assert rollout(gpus_per_engine=8, expert_parallel=2).moe_tensor_parallel == 4
    assert rollout(gpus_per_engine=8, expert_parallel=1).moe_tensor_parallel == 8


@given(tp=POWERS, pp=POWERS, cp=POWERS, ep=POWERS, etp=POWERS, replicas=st.integers(1, 6))
def test_every_rank_has_one_place_in_both_arrangements(tp, pp, cp, ep, etp, replicas) -> None:
    nodes = replicas * lcm(tp * pp * cp, ep * etp * pp, 8) // 8
    geometry = trainer(
        nodes,
        tensor_parallel=tp,
        pipeline_parallel=pp,
        context_parallel=cp,
        expert_parallel=ep,
        expert_tensor_parallel=etp,
    )
    assert geometry.data_parallel * tp * pp * cp == geometry.gpus == nodes * 8
    assert geometry.expert_data_parallel * ep * etp * pp == geometry.gpus
    assert geometry.gpu_memory_gib > 0


@given(
    gpus_per_node=st.sampled_from([1, 2, 4, 8, 16]),
    ep=st.integers(2, 40),
    etp=st.sampled_from([1, 2, 4]),
    cycles=st.integers(1, 3),
)
def test_expert_group_touches_as_many_nodes_as_a_count_of_its_ranks_says(gpus_per_node, ep, etp, cycles) -> None:
    width = ep * etp
    groups = cycles * lcm(width, gpus_per_node) // width
    touched = max(
        len({rank // gpus_per_node for rank in range(start, start + width)})
        for start in range(0, width * groups, width)
    )
    geometry = trainer(
        width * groups // gpus_per_node, gpus_per_node=gpus_per_node, expert_parallel=ep, expert_tensor_parallel=etp
    )
    assert geometry.expert_group_nodes == touched
    assert geometry.experts_cross_efa == (touched > 1)


def test_without_expert_parallel_no_expert_traffic_crosses_nodes() -> None:
    assert not trainer(expert_parallel=1).experts_cross_efa
    assert not rollout(gpus_per_engine=16, expert_parallel=1).experts_cross_efa


@given(
    axis=st.sampled_from(["tensor_parallel", "pipeline_parallel", "expert_parallel", "expert_tensor_parallel"]),
    base=st.fixed_dictionaries(
        {
            "tensor_parallel": st.sampled_from([1, 2, 4]),
            "pipeline_parallel": st.sampled_from([1, 2, 4]),
            "expert_parallel": st.sampled_from([1, 2, 4, 8]),
            "expert_tensor_parallel": st.sampled_from([1, 2]),
        }
    ),
    model=st.sampled_from([QWEN_235B, V3]),
)
def test_memory_falls_when_a_model_is_split_over_more_ranks(axis, base, model) -> None:
    wider = {**base, axis: base[axis] * 2}
    assert trainer(64, model, **wider).gpu_memory_gib < trainer(64, model, **base).gpu_memory_gib


@given(nodes=st.sampled_from([2, 4, 8, 16, 32]), model=st.sampled_from([QWEN_235B, V3]))
def test_memory_falls_when_the_optimizer_is_sharded_over_more_nodes(nodes, model) -> None:
    parallel = {"tensor_parallel": 4, "expert_parallel": 8}
    assert trainer(nodes * 2, model, **parallel).gpu_memory_gib < trainer(nodes, model, **parallel).gpu_memory_gib


def test_context_parallel_alone_changes_no_memory() -> None:
    assert trainer(context_parallel=4).gpu_memory_gib == pytest.approx(trainer(context_parallel=1).gpu_memory_gib)


@given(gpus=st.integers(1, 64), precision=st.sampled_from(["fp8", "bf16"]))
def test_engine_memory_falls_with_more_gpus_and_with_fp8(gpus, precision) -> None:
    one = rollout(gpus_per_engine=gpus, precision=precision)
    assert rollout(gpus_per_engine=gpus + 1, precision=precision).gpu_memory_gib < one.gpu_memory_gib
    assert rollout(gpus_per_engine=gpus, precision="fp8").gpu_memory_gib <= one.gpu_memory_gib


def test_dense_model_has_no_expert_parameters() -> None:
    dense = MODELS["Qwen/Qwen3-4B"]
    assert expert_params_b(dense) == 0
    # 4e9 x 6 bytes on one rank, and 12 bytes of a 128th: 24.375e9.
    assert trainer(model=dense).gpu_memory_gib == pytest.approx(24.375e9 / 2**30)
