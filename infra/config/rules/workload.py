"""Geometry of the job: what divides what, what sits on which node, what crosses EFA, what fits in memory.

A wrong one of these seldom fails: it hangs in placement, or trains with reward 0 and exits 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.catalog.instances import InstanceType
from infra.catalog.models import Model
from infra.config.backend import a2a_backend, dispatcher
from infra.config.batch_plan import BATCH_FLAG, batch_plan, default_groups, engines_busy
from infra.config.faults import Finding
from infra.config.geometry import RolloutGeometry, TrainerGeometry, rollout_geometry, trainer_geometry
from infra.config.rules.registry import Context, fault, nodes_max, rule, warning
from infra.config.transport import stack_limit

FP8_BLOCK = 128
"""DeepGEMM's blockwise FP8 scales cover 128 x 128 weights."""
TRAINER_MEMORY_SHARE, ROLLOUT_MEMORY_SHARE = 0.85, 0.80
"""Share of a GPU that weights (and optimizer) may take before nothing is left for activations or KV cache."""
PLAN_OWNED = ("NCCL_", "FI_", "OFI_NCCL_", "EP_", "NVSHMEM_")
IBGDA_BACKENDS = {"deepep": "legacy DeepEP", "mooncake": "Mooncake EP"}
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class _Fleet:
    pool: str
    instance: InstanceType
    nodes: int


def _fleets(context: Context, role: str) -> Iterator[_Fleet]:
    for name, pool in context.pools(role):
        gpu_types = [instance for instance in context.instances(pool) if instance.gpus]
        if gpu_types:
            yield _Fleet(name, min(gpu_types, key=lambda instance: instance.gpu_memory_gib), nodes_max(pool))


def _trainers(context: Context) -> Iterator[tuple[_Fleet, Model, TrainerGeometry]]:
    model = context.model
    if model is not None:
        for fleet in _fleets(context, "trainer"):
            yield (
                fleet,
                model,
                trainer_geometry(
                    context.environment.workload.trainer, model, nodes=fleet.nodes, gpus_per_node=fleet.instance.gpus
                ),
            )


def _rollouts(context: Context) -> Iterator[tuple[_Fleet, Model, RolloutGeometry]]:
    model = context.model
    if model is not None:
        for fleet in _fleets(context, "rollout"):
            yield (
                fleet,
                model,
                rollout_geometry(
                    context.environment.workload.rollout, model, nodes=fleet.nodes, gpus_per_node=fleet.instance.gpus
                ),
            )


@rule("workload.model-known")
def model_known(context: Context) -> Iterator[Finding]:
    if context.model is None:
        yield fault(
            "workload.model",
            context.environment.workload.model,
            "the catalog does not know its layers and experts, so nothing about the job can be checked",
            f"Write one of {', '.join(sorted(context.catalog.models))}, or add its shape to the catalog.",
        )


@rule("workload.trainer-divides")
def trainer_divides(context: Context) -> Iterator[Finding]:
    """Ranks fill the pool exactly, in both the dense and the expert arrangement."""
    written = context.environment.workload.trainer
    for fleet, _, geometry in _trainers(context):
        dense = written.tensor_parallel * written.pipeline_parallel * written.context_parallel
        if geometry.gpus % dense:
            yield fault(
                "workload.trainer",
                f"tensor {written.tensor_parallel} x pipeline {written.pipeline_parallel} x context {written.context_parallel}",
                f"= {dense} does not divide the {geometry.gpus} GPUs of pool {fleet.pool}",
                f"Write factors whose product divides {geometry.gpus}, or change the pool's nodes.",
            )
        experts = written.expert_parallel * written.expert_tensor_parallel * written.pipeline_parallel
        if geometry.gpus % experts:
            yield fault(
                "workload.trainer.expert_parallel",
                written.expert_parallel,
                f"expert {written.expert_parallel} x expert tensor {written.expert_tensor_parallel} x pipeline"
                f" {written.pipeline_parallel} = {experts} does not divide the {geometry.gpus} GPUs of pool {fleet.pool}",
                f"Write a factor that leaves a divisor of {geometry.gpus}.",
            )


@rule("workload.tensor-in-node")
def tensor_in_node(context: Context) -> Iterator[Finding]:
    for fleet, _, geometry in _trainers(context):
        for key in ("tensor_parallel", "expert_tensor_parallel"):
            width = getattr(geometry, key)
            if fleet.instance.gpus % width:
                yield fault(
                    f"workload.trainer.{key}",
                    width,
                    f"tensor parallel must divide a node's {fleet.instance.gpus} GPUs: across nodes each layer would wait"
                    " for EFA",
                    f"Write a divisor of {fleet.instance.gpus}.",
                )


@rule("workload.trainer-model")
def trainer_model(context: Context) -> Iterator[Finding]:
    """The model's heads, experts and layers split over the ranks."""
    written = context.environment.workload.trainer
    for _, model, geometry in _trainers(context):
        if model.attention_heads % written.tensor_parallel:
            yield fault(
                "workload.trainer.tensor_parallel",
                written.tensor_parallel,
                f"does not divide the {model.attention_heads} attention heads of {model.name}",
                "Write a divisor.",
            )
        if not model.mla and model.kv_heads % written.tensor_parallel and written.tensor_parallel % model.kv_heads:
            yield fault(
                "workload.trainer.tensor_parallel",
                written.tensor_parallel,
                f"neither divides nor is a multiple of the {model.kv_heads} key-value heads of {model.name}",
                f"Write a divisor of {model.kv_heads}.",
            )
        if written.expert_parallel > 1 and (not model.experts or model.experts % written.expert_parallel):
            yield fault(
                "workload.trainer.expert_parallel",
                written.expert_parallel,
                f"does not divide the {model.experts} experts of {model.name}"
                if model.experts
                else f"{model.name} is dense",
                "Write a divisor of the experts, or 1 for a dense model.",
            )
        if geometry.last_pipeline_layers is not None and geometry.last_pipeline_layers < 1:
            yield fault(
                "workload.trainer.pipeline_parallel",
                written.pipeline_parallel,
                f"leaves no layer of {model.layers} for the last stage",
                "Write fewer stages.",
            )


@rule("workload.engine-alignment")
def engine_alignment(context: Context) -> Iterator[Finding]:
    written = context.environment.workload.rollout
    for fleet, model, geometry in _rollouts(context):
        node = fleet.instance.gpus
        if written.gpus_per_engine % node and node % written.gpus_per_engine:
            yield fault(
                "workload.rollout.gpus_per_engine",
                written.gpus_per_engine,
                f"an engine would straddle nodes of {node} GPUs; the trainer then computes wrong addresses",
                f"Write a divisor or a multiple of {node}.",
            )
        elif geometry.engines_max == 0:
            yield fault(
                "workload.rollout.gpus_per_engine",
                written.gpus_per_engine,
                f"one engine needs {geometry.nodes_per_engine} nodes and pool {fleet.pool} has at most {fleet.nodes}",
                "Write fewer GPUs per engine or a larger maximum.",
            )
        elif geometry.nodes_per_engine > 1 and fleet.nodes % geometry.nodes_per_engine:
            yield warning(
                f"pools.{fleet.pool}.nodes",
                fleet.nodes,
                f"engines take {geometry.nodes_per_engine} nodes each; {fleet.nodes % geometry.nodes_per_engine} paid nodes"
                " would never serve",
                f"Write a multiple of {geometry.nodes_per_engine}.",
            )
        if model.attention_heads % written.gpus_per_engine and not model.mla:
            yield fault(
                "workload.rollout.gpus_per_engine",
                written.gpus_per_engine,
                f"does not divide the {model.attention_heads} attention heads of {model.name}",
                "Write a divisor.",
            )


@rule("workload.engine-experts")
def engine_experts(context: Context) -> Iterator[Finding]:
    written = context.environment.workload.rollout
    for _, model, geometry in _rollouts(context):
        key = "workload.rollout.expert_parallel"
        if written.expert_parallel == 1:
            continue
        if not model.experts:
            yield fault(key, written.expert_parallel, f"{model.name} is dense", "Write 1.")
        elif model.experts % written.expert_parallel:
            yield fault(
                key,
                written.expert_parallel,
                f"does not divide the {model.experts} experts of {model.name}",
                f"Write a divisor of {model.experts}.",
            )
        if geometry.moe_tensor_parallel > 1 or written.gpus_per_engine % written.expert_parallel:
            yield fault(
                key,
                written.expert_parallel,
                f"with {written.gpus_per_engine} GPUs per engine the experts would also be split by tensor; the engine's fused"
                " all-reduce then drops one reduction: reward 0, exit code 0",
                f"Write {written.gpus_per_engine} (the engine's GPUs) or 1.",
            )


@rule("workload.engine-backend")
def engine_backend(context: Context) -> Iterator[Finding]:
    """The all-to-all of the rollout experts exists in the stack, on EFA, for this model and precision."""
    written, stack = context.environment.workload.rollout, context.stack
    for fleet, model, geometry in _rollouts(context):
        if not geometry.experts_cross_efa:
            continue
        pool = context.environment.pools[fleet.pool]
        transport = pool.transport or context.transport(pool).transport
        backend = a2a_backend(written, stack, geometry)
        key = "workload.rollout.backend" if written.backend else "workload.rollout.expert_parallel"
        value = written.backend or written.expert_parallel
        one_node = f"write gpus_per_engine and expert_parallel {fleet.instance.gpus} so that experts stay in one node"
        if backend in IBGDA_BACKENDS:
            yield fault(
                key,
                value,
                f"{IBGDA_BACKENDS[backend]} crosses nodes by IBGDA, which EFA does not have; expert parallel"
                f" {written.expert_parallel} spans {geometry.expert_group_nodes} nodes and stops with an illegal instruction",
                f"Write `backend: deepep_v2`, or {one_node}.",
            )
        elif backend == "deepep_v2" and stack.rollout_a2a != "deepep_v2":
            yield fault(
                key,
                value,
                f"software {stack.name}: {stack_limit(stack, 'rollout-deepep-v2')}",
                f"Write `software: efa-gda`, or {one_node}.",
            )
        elif backend == "deepep_v2" and transport == "none":
            yield fault(
                key,
                value,
                f"pool {fleet.pool} has no DeepEP transport over EFA",
                f"Give it gda or proxy, or {one_node}.",
            )
        elif backend == "deepep_v2" and written.precision != "fp8":
            yield fault(
                "workload.rollout.precision",
                written.precision,
                "SGLang's deepep_v2 backend serves blockwise FP8 experts only",
                f"Write `precision: fp8`, or {one_node}.",
            )
        elif backend == "deepep_v2" and not model.deepep_v2:
            yield fault(
                "workload.model",
                model.name,
                f"its architecture {model.architecture} is not in SGLang's deepep_v2 list: the flag would be accepted and"
                " expert parallel silently off",
                f"Choose a listed model, or {one_node}.",
            )
        elif backend == "none":
            yield warning(
                key,
                value,
                "experts on several nodes without an all-to-all backend gather every token on every node",
                f"Use software efa-gda, or {one_node}.",
            )


@rule("workload.expert-parallel-cap")
def expert_parallel_cap(context: Context) -> Iterator[Finding]:
    cap, written = context.stack.max_expert_parallel, context.environment.workload
    for key, width in (("rollout", written.rollout.expert_parallel), ("trainer", written.trainer.expert_parallel)):
        uses = key == "rollout" or dispatcher(written.trainer, context.stack) != "alltoall"
        if cap is not None and uses and width > cap:
            yield fault(
                f"workload.{key}.expert_parallel",
                width,
                f"software {context.stack.name} has been shown on EFA up to {cap} expert ranks",
                f"Write {cap} or less.",
            )


@rule("workload.trainer-dispatcher")
def trainer_dispatcher(context: Context) -> Iterator[Finding]:
    written = context.environment.workload.trainer.dispatcher
    if written is None or written == context.stack.trainer_dispatcher or written == "alltoall":
        return
    for _, _, geometry in _trainers(context):
        if written == "deepep" and geometry.experts_cross_efa:
            yield fault(
                "workload.trainer.dispatcher",
                written,
                f"legacy DeepEP crosses nodes by IBGDA, which EFA does not have; the expert group spans"
                f" {geometry.expert_group_nodes} nodes",
                "Write alltoall, which runs over NCCL.",
            )
        elif written == "deepep_v2":
            yield fault(
                "workload.trainer.dispatcher",
                written,
                f"software {context.stack.name}: {stack_limit(context.stack, 'trainer-deepep-v2')}",
                "Write alltoall, which runs over NCCL.",
            )


@rule("workload.fp8-blocks")
def fp8_blocks(context: Context) -> Iterator[Finding]:
    if context.environment.workload.rollout.precision != "fp8":
        return
    for _, model, geometry in _rollouts(context):
        if model.experts and model.moe_intermediate % (FP8_BLOCK * geometry.moe_tensor_parallel):
            yield fault(
                "workload.rollout.expert_parallel",
                context.environment.workload.rollout.expert_parallel,
                f"splits the experts' {model.moe_intermediate} columns by {geometry.moe_tensor_parallel}, not in blocks of"
                f" {FP8_BLOCK} that FP8 scales need",
                f"Write {context.environment.workload.rollout.gpus_per_engine}, so that each expert stays whole.",
            )


@rule("workload.trainer-memory")
def trainer_memory(context: Context) -> Iterator[Finding]:
    for fleet, model, geometry in _trainers(context):
        limit = fleet.instance.gpu_memory_gib * TRAINER_MEMORY_SHARE
        if geometry.gpu_memory_gib > limit:
            yield fault(
                "workload.trainer",
                f"{geometry.gpu_memory_gib:.0f} GiB per GPU",
                f"weights, gradients and optimizer of {model.name} leave no room for activations in the"
                f" {fleet.instance.gpu_memory_gib} GiB of a {fleet.instance.gpu_model}",
                "Raise pipeline, tensor or expert parallel, or the pool's nodes.",
            )


@rule("workload.engine-memory")
def engine_memory(context: Context) -> Iterator[Finding]:
    written = context.environment.workload.rollout
    for fleet, model, geometry in _rollouts(context):
        limit = fleet.instance.gpu_memory_gib * ROLLOUT_MEMORY_SHARE
        if geometry.gpu_memory_gib > limit:
            yield fault(
                "workload.rollout.gpus_per_engine",
                written.gpus_per_engine,
                f"the {written.precision} weights of {model.name} take {geometry.gpu_memory_gib:.0f} of the"
                f" {fleet.instance.gpu_memory_gib} GiB of a {fleet.instance.gpu_model}; none is left for the KV cache",
                "Write more GPUs per engine or `precision: fp8`.",
            )


@rule("workload.blast-radius")
def blast_radius(context: Context) -> Iterator[Finding]:
    for fleet, _, geometry in _rollouts(context):
        if context.environment.pools[fleet.pool].capacity.type == "spot" and geometry.nodes_per_engine > 1:
            yield warning(
                "workload.rollout.gpus_per_engine",
                geometry.gpus_per_engine,
                f"on Spot, one reclaimed node of pool {fleet.pool} takes its engine's {geometry.nodes_per_engine} nodes out of"
                " service together",
                "Engines of one node lose only themselves, where the model fits.",
            )


@rule("workload.experts-over-efa")
def experts_over_efa(context: Context) -> Iterator[Finding]:
    crossing = [geometry.experts_cross_efa for _, _, geometry in _trainers(context)]
    crossing += [geometry.experts_cross_efa for _, _, geometry in _rollouts(context)]
    if crossing and not any(crossing):
        yield warning(
            "workload",
            context.environment.workload.model,
            "no expert group spans two nodes, so neither trainer nor engines send expert traffic over EFA, and DeepEP"
            " changes nothing",
            "Raise expert_parallel above the GPUs of a node where the model gains from it.",
        )


@rule("workload.fleet-busy")
def fleet_busy(context: Context) -> Iterator[Finding]:
    """The batch of the file fills the fleet: engines that the window does not start are never missed by anything else."""
    flags = context.environment.workload.trainer.flags
    engines = [geometry for _, _, geometry in _rollouts(context)]
    for _, _, trainer in _trainers(context):
        batch = batch_plan(flags, data_parallel=trainer.data_parallel, fleet=engines)
        busy = sum(engines_busy(batch.window_groups, geometry, engines) for geometry in engines)
        most = sum(geometry.engines_max for geometry in engines)
        if busy < most:
            unwritten = {name: value for name, value in flags.items() if name != BATCH_FLAG}
            filling = default_groups(unwritten, data_parallel=trainer.data_parallel, fleet=engines)
            yield warning(
                f"workload.trainer.flags.{BATCH_FLAG}",
                batch.groups,
                f"{batch.staleness_versions} batches are out at once, and their {batch.window_groups} groups keep {busy} of"
                f" {most} engines busy; the others get no task",
                f"Remove the key, or write {filling}, which fills all engines, or give the rollout pools fewer nodes.",
            )


@rule("workload.rebalance")
def rebalance(context: Context) -> Iterator[Finding]:
    if not context.environment.workload.rollout.drain_on_rebalance:
        return
    key = "workload.rollout.drain_on_rebalance"
    spot = [name for name, pool in context.pools("rollout") if pool.capacity.type == "spot"]
    if not spot:
        yield warning(
            key,
            True,
            "EC2 recommends a rebalance for Spot instances alone, no rollout pool is Spot, and the key changes nothing",
            "Remove the key.",
        )
    for fleet, _, geometry in _rollouts(context):
        if fleet.pool in spot and geometry.nodes_per_engine > 1:
            yield warning(
                key,
                True,
                f"one recommended node of pool {fleet.pool} takes its engine's {geometry.nodes_per_engine} nodes out of service,"
                " and the group starts again and again on them until EKS has a replacement, hours where Spot is short",
                "Remove the key, or write engines of one node.",
            )


@rule("workload.kv-transfer")
def kv_transfer(context: Context) -> Iterator[Finding]:
    written = context.environment.workload.rollout.kv_transfer
    if written is not None:
        yield warning(
            "workload.rollout.kv_transfer",
            written.backend,
            "no split fleet is rendered: engines of this package do prefill and decode themselves, and the key changes nothing",
            "Remove the key.",
        )


@rule("workload.backend-experts")
def backend_experts(context: Context) -> Iterator[Finding]:
    written = context.environment.workload.rollout
    if written.backend not in (None, "none") and written.expert_parallel != written.gpus_per_engine:
        yield fault(
            "workload.rollout.backend",
            written.backend,
            f"SGLang sets expert parallel to all {written.gpus_per_engine} GPUs of the engine under any all-to-all backend,"
            f" whatever is asked for ({written.expert_parallel})",
            f"Write `expert_parallel: {written.gpus_per_engine}`, or leave the backend out.",
        )


@rule("workload.router-on-spot")
def router_on_spot(context: Context) -> Iterator[Finding]:
    if not context.environment.workload.rollout.router:
        return
    for name, pool in context.pools("rollout"):
        if pool.capacity.type == "spot":
            yield fault(
                "workload.rollout.router",
                True,
                f"a router keeps sending to a reclaimed engine until its health check fails, and pool {name} is Spot",
                "Remove the key, or give the pool stable capacity.",
            )


@rule("workload.plan-owned-variables")
def plan_owned_variables(context: Context) -> Iterator[Finding]:
    for side, variables in _variables(context):
        for name, value in variables.items():
            if name.startswith(PLAN_OWNED):
                yield fault(
                    f"workload.{side}.variables.{name}",
                    value,
                    "the Plan sets the communication variables from instance type, stack and AMI; a second value makes one"
                    " of the two silently win",
                    f"Remove it; write pools.…{'.transport' if name.startswith('NCCL_GIN') else ' keys'} to change what follows.",
                )


@rule("workload.expandable-segments")
def expandable_segments(context: Context) -> Iterator[Finding]:
    kv = context.environment.workload.rollout.kv_transfer
    for side, variables in _variables(context):
        for name in ALLOCATOR_VARIABLES:
            value = variables.get(name, "")
            if "expandable_segments:true" in value.lower().replace(" ", ""):
                why = (
                    f"{kv.backend} cannot register such memory with EFA"
                    if kv and side == "rollout"
                    else "the memory saver of MoE runs aborts on such memory"
                )
                yield fault(f"workload.{side}.variables.{name}", value, why, "Remove expandable_segments.")


def _variables(context: Context) -> tuple[tuple[str, dict[str, str]], ...]:
    workload = context.environment.workload
    return (("trainer", workload.trainer.variables), ("rollout", workload.rollout.variables))
