"""Parallelism arithmetic: which ranks form which group, what crosses EFA, what fits in GPU memory.

Megatron orders ranks tensor, context, (expert inside data), data, pipeline, so an expert group is a run of
`expert_tensor_parallel * expert_parallel` consecutive ranks; SGLang's expert group is the engine itself.
Nothing here refuses anything: rules do, on these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from infra.catalog.models import Model
from infra.config.environment import RolloutWorkload, TrainerWorkload

WEIGHT_AND_GRADIENT_BYTES = 6
"""BF16 weight plus FP32 main gradient, per parameter that a rank holds."""
OPTIMIZER_BYTES = 12
"""FP32 master weight and two Adam moments, per parameter, sharded over data parallel."""
ROLLOUT_BYTES = {"fp8": 1.03, "bf16": 2.0}
"""Bytes per parameter of the engine; FP8 carries block scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerGeometry:
    """Ranks of the trainer. Counts, no units; `expert_group_nodes` is how many nodes one expert group touches at most."""

    nodes: int
    gpus_per_node: int
    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    expert_parallel: int
    expert_tensor_parallel: int
    data_parallel: int
    expert_data_parallel: int
    expert_group_nodes: int
    last_pipeline_layers: int | None
    """Layers of the last stage when they do not divide evenly (Megatron's decoder-last-pipeline-num-layers)."""
    gpu_memory_gib: float
    """Weights, gradients and optimizer per GPU, without activations; an estimate."""

    @property
    def experts_cross_efa(self) -> bool:
        return self.expert_group_nodes > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGeometry:
    """Engines of the rollout fleet."""

    gpus_per_engine: int
    nodes_per_engine: int
    engines_per_node: int
    expert_parallel: int
    moe_tensor_parallel: int
    expert_group_nodes: int
    engines_max: int
    gpu_memory_gib: float
    """Weights per GPU, without KV cache; an estimate."""

    @property
    def experts_cross_efa(self) -> bool:
        return self.expert_group_nodes > 1


def trainer_geometry(workload: TrainerWorkload, model: Model, *, nodes: int, gpus_per_node: int) -> TrainerGeometry:
    gpus = nodes * gpus_per_node
    dense_ranks = workload.tensor_parallel * workload.pipeline_parallel * workload.context_parallel
    expert_ranks = workload.expert_parallel * workload.expert_tensor_parallel * workload.pipeline_parallel
    data_parallel, expert_data_parallel = max(1, gpus // dense_ranks), max(1, gpus // expert_ranks)
    stage_layers = ceil(model.layers / workload.pipeline_parallel)
    last = model.layers - stage_layers * (workload.pipeline_parallel - 1)
    return TrainerGeometry(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpus=gpus,
        tensor_parallel=workload.tensor_parallel,
        pipeline_parallel=workload.pipeline_parallel,
        context_parallel=workload.context_parallel,
        expert_parallel=workload.expert_parallel,
        expert_tensor_parallel=workload.expert_tensor_parallel,
        data_parallel=data_parallel,
        expert_data_parallel=expert_data_parallel,
        expert_group_nodes=_expert_nodes(workload.expert_parallel, workload.expert_tensor_parallel, gpus_per_node),
        last_pipeline_layers=None if last == stage_layers else last,
        gpu_memory_gib=_trainer_memory_gib(workload, model, data_parallel, expert_data_parallel),
    )


def rollout_geometry(workload: RolloutWorkload, model: Model, *, nodes: int, gpus_per_node: int) -> RolloutGeometry:
    nodes_per_engine = ceil(workload.gpus_per_engine / gpus_per_node)
    engines_per_node = max(1, gpus_per_node // workload.gpus_per_engine)
    weights = model.total_params_b * 1e9 * ROLLOUT_BYTES[workload.precision]
    return RolloutGeometry(
        gpus_per_engine=workload.gpus_per_engine,
        nodes_per_engine=nodes_per_engine,
        engines_per_node=engines_per_node if nodes_per_engine == 1 else 0,
        expert_parallel=workload.expert_parallel,
        moe_tensor_parallel=max(1, workload.gpus_per_engine // workload.expert_parallel),
        expert_group_nodes=_expert_nodes(workload.expert_parallel, 1, gpus_per_node),
        engines_max=nodes // nodes_per_engine if nodes_per_engine > 1 else nodes * engines_per_node,
        gpu_memory_gib=weights / workload.gpus_per_engine / 2**30,
    )


def expert_params_b(model: Model) -> float:
    """Parameters in routed experts, in billions: three matrices of hidden x intermediate per expert and MoE layer."""
    return model.moe_layers * model.experts * 3 * model.hidden * model.moe_intermediate / 1e9


def _expert_nodes(expert_parallel: int, expert_tensor_parallel: int, gpus_per_node: int) -> int:
    """Most nodes that one of the consecutive groups touches: one that does not divide a node straddles its border."""
    if expert_parallel == 1:
        return 1
    width = expert_parallel * expert_tensor_parallel
    return ceil((width + gpus_per_node - gcd(width, gpus_per_node)) / gpus_per_node)


def _trainer_memory_gib(
    workload: TrainerWorkload, model: Model, data_parallel: int, expert_data_parallel: int
) -> float:
    experts = expert_params_b(model) * 1e9
    dense = max(0.0, model.total_params_b * 1e9 - experts)
    dense /= workload.tensor_parallel * workload.pipeline_parallel
    experts /= workload.expert_parallel * workload.expert_tensor_parallel * workload.pipeline_parallel
    sharded = dense / (data_parallel * workload.context_parallel) + experts / expert_data_parallel
    return ((dense + experts) * WEIGHT_AND_GRADIENT_BYTES + sharded * OPTIMIZER_BYTES) / 2**30
