"""Derived numbers of the job: workers, engines, what crosses EFA, what one lost node costs, environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from infra.catalog import Catalog
from infra.catalog.transport_variables import variables
from infra.config.backend import A2aBackend, Dispatcher, a2a_backend, dispatcher
from infra.config.batch_plan import BatchPlan, batch_plan, engines_busy, queue_length
from infra.config.engine_plan import EnginePlan, engine_plan
from infra.config.environment import Environment, PoolRole
from infra.config.gates_plan import GatesPlan
from infra.config.geometry import (
    OPTIMIZER_BYTES,
    RolloutGeometry,
    TrainerGeometry,
    rollout_geometry,
    trainer_geometry,
)
from infra.config.model_plan import BF16_BYTES, ModelPlan, model_plan
from infra.config.needs_plan import DispatchNeeds, ExpertShape, dispatch_needs, expert_shape
from infra.config.pod_plan import (
    PodResources,
    RolloutPods,
    TrainerPods,
    cpu_worker,
    node_job,
    rollout_pods,
    trainer_pods,
)
from infra.config.pool_plan import PoolPlan

SAVE_MIB_PER_SECOND = 250
"""Of one node, with room to spare: sixteen nodes get more than twice of it from 19200 GiB of FSx, and NVMe ten times."""
SAVE_SECONDS_FLOOR = 600
WORKER_PORTS: Mapping[str, int] = MappingProxyType({"environment": 8_091, "buffer": 8_092})
"""Where the workers of each role listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    pool: str
    workers: int
    """One whole-node worker per node; the head takes a share of one node and no GPU."""
    geometry: TrainerGeometry
    dispatcher: Dispatcher
    save_optimizer: bool
    checkpoint_gib: float
    """One checkpoint: BF16 weights, and the optimizer's FP32 master weights and moments where they are saved."""
    save_seconds_max: int
    """Longest stall to expect of a save; health windows and communication timeouts are not shorter."""
    prove_fabric: bool
    """Whether workers prove the links between their nodes before the gang starts; False for one node, and without EFA."""
    flags: Mapping[str, bool | int | float | str]
    """Flags of the framework as the file has them; the others follow from the plan."""
    pods: TrainerPods
    variables: Mapping[str, str]

    @property
    def pods_running(self) -> int:
        """Pods of a run: its workers, the head and the submitter."""
        return self.workers + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWorkerPlan:
    """One worker per node of an environment or buffer pool."""

    pool: str
    role: PoolRole
    replicas_min: int
    replicas_max: int
    urls: tuple[str, ...]
    """Where pods of the run's namespace reach it: environments behind one name, every buffer under its own, by ordinal."""
    pod: PodResources


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The engines of one rollout pool."""

    pool: str
    precision: str
    geometry: RolloutGeometry
    backend: A2aBackend
    lost_with_one_node: int
    """Nodes that stop serving when one is reclaimed: the whole engine."""
    queue_length: int
    """Tasks in the queue for each engine that KEDA starts."""
    engines_busy: int
    """Engines that the trainer's window starts, of `geometry.engines_max`."""
    engine: EnginePlan
    drain_on_rebalance: bool
    """Whether agents act on a rebalance recommendation; False off Spot, where EC2 makes none."""
    dispatch: DispatchNeeds | None
    """Floors of its expert traffic; None where it has none over EFA or none is published."""
    pods: RolloutPods
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    model: str
    architecture: str
    shape: ExpertShape
    files: ModelPlan
    hub_token_secret_arn: str | None
    steps: int
    save_interval: int
    no_checkpoint: bool
    cuda_archs: tuple[str, ...]
    trainer: TrainerPlan
    batch: BatchPlan
    gates: GatesPlan
    rollouts: tuple[RolloutPlan, ...]
    cpu_workers: tuple[CpuWorkerPlan, ...]
    router: bool
    """Whether engines stand behind one address."""
    node_jobs: Mapping[str, PodResources]
    """Pod that has a whole node for itself, by GPU pool: preflight, benches, the prepare job."""

    @property
    def experts_over_efa(self) -> tuple[str, ...]:
        """Pools whose expert traffic crosses nodes over EFA."""
        crossing = [self.trainer.pool] if self.trainer.geometry.experts_cross_efa else []
        return (*crossing, *(rollout.pool for rollout in self.rollouts if rollout.geometry.experts_cross_efa))


def workload_plan(environment: Environment, pools: tuple[PoolPlan, ...], catalog: Catalog) -> WorkloadPlan:
    written, stack = environment.workload, catalog.software[environment.software]
    model = catalog.models[written.model]
    by_role = {role: [pool for pool in pools if pool.role == role] for role in ("trainer", "rollout")}
    trainer_pool = by_role["trainer"][0]
    trainer = trainer_geometry(
        written.trainer, model, nodes=trainer_pool.size.max, gpus_per_node=trainer_pool.gpus_per_node
    )
    dispatches = dispatcher(written.trainer, stack)
    checkpoint_gib = (
        model.total_params_b * 1e9 * (BF16_BYTES + OPTIMIZER_BYTES * written.trainer.save_optimizer) / 2**30
    )
    fleet = [
        rollout_geometry(written.rollout, model, nodes=pool.size.max, gpus_per_node=pool.gpus_per_node)
        for pool in by_role["rollout"]
    ]
    batch = batch_plan(written.trainer.flags, data_parallel=trainer.data_parallel, fleet=fleet)
    rollouts = []
    for pool, geometry in zip(by_role["rollout"], fleet, strict=True):
        backend = a2a_backend(written.rollout, stack, geometry)
        pods = rollout_pods(pool, geometry, catalog.daemonsets)
        rollouts.append(
            RolloutPlan(
                pool=pool.name,
                precision=written.rollout.precision,
                geometry=geometry,
                backend=backend,
                lost_with_one_node=geometry.nodes_per_engine,
                queue_length=queue_length(geometry, fleet),
                engines_busy=engines_busy(batch.window_groups, geometry, fleet),
                engine=engine_plan(
                    pool,
                    geometry,
                    model=model,
                    backend=backend,
                    precision=written.rollout.precision,
                    sglang=stack.sglang,
                ),
                drain_on_rebalance=written.rollout.drain_on_rebalance and pool.capacity.type == "spot",
                dispatch=dispatch_needs(pool.transport, geometry.expert_group_nodes)
                if backend == "deepep_v2"
                else None,
                pods=pods,
                variables=_variables(
                    pool,
                    written.rollout.variables,
                    with_efa=bool(pods.engine.efa),
                    deepep_over_efa=geometry.experts_cross_efa and backend == "deepep_v2",
                ),
            )
        )
    archs = sorted({pool.cuda_arch for pool in pools if pool.cuda_arch})
    return WorkloadPlan(
        model=model.name,
        architecture=model.architecture,
        shape=expert_shape(model),
        files=model_plan(
            model.name,
            written.rollout.precision,
            total_params_b=model.total_params_b,
            node_gpu_memory_gib=trainer_pool.gpus_per_node * trainer_pool.gpu_memory_gib,
        ),
        hub_token_secret_arn=written.hub_token_secret_arn,
        steps=written.steps,
        save_interval=written.save_interval,
        no_checkpoint=written.no_checkpoint,
        cuda_archs=environment.images.cuda_archs or tuple(archs),
        trainer=TrainerPlan(
            pool=trainer_pool.name,
            workers=trainer_pool.size.max,
            geometry=trainer,
            dispatcher=dispatches,
            save_optimizer=written.trainer.save_optimizer,
            checkpoint_gib=checkpoint_gib,
            save_seconds_max=save_seconds_max(checkpoint_gib, trainer_pool.size.max),
            prove_fabric=written.trainer.prove_fabric and trainer_pool.size.max > 1 and trainer_pool.efa_per_node > 0,
            flags=written.trainer.flags,
            pods=trainer_pods(trainer_pool, catalog.daemonsets),
            variables=_variables(
                trainer_pool,
                written.trainer.variables,
                with_efa=bool(trainer_pool.efa_per_node),
                deepep_over_efa=trainer.experts_cross_efa and dispatches == "deepep_v2",
            ),
        ),
        batch=batch,
        gates=GatesPlan(enforced=written.trainer.gates),
        rollouts=tuple(rollouts),
        router=written.rollout.router,
        cpu_workers=tuple(
            CpuWorkerPlan(
                pool=pool.name,
                role=pool.role,
                replicas_min=pool.size.min,
                replicas_max=pool.size.max,
                urls=_worker_urls(pool),
                pod=cpu_worker(pool, catalog.daemonsets),
            )
            for pool in pools
            if pool.role in ("environment", "buffer")
        ),
        node_jobs={pool.name: node_job(pool, catalog.daemonsets) for pool in pools if pool.is_gpu},
    )


def _worker_urls(pool: PoolPlan) -> tuple[str, ...]:
    """By the names that `k8s.charts.workers` gives: a Service per role, a StatefulSet `ROLE-POOL` of buffers."""
    port = WORKER_PORTS[pool.role]
    if pool.role == "environment":
        return (f"http://{pool.role}:{port}",)
    return tuple(f"http://{pool.role}-{pool.name}-{ordinal}.{pool.role}:{port}" for ordinal in range(pool.size.max))


def save_seconds_max(checkpoint_gib: float, nodes: int) -> int:
    """Seconds of the slowest save to expect when every node writes its share."""
    return max(SAVE_SECONDS_FLOOR, ceil(checkpoint_gib * 1024 / nodes / SAVE_MIB_PER_SECOND))


def _variables(pool: PoolPlan, extra: Mapping[str, str], *, with_efa: bool, deepep_over_efa: bool) -> dict[str, str]:
    """The pool's communication variables and the user's own; rules have refused any that both set.

    A pod without EFA devices gets none, though its node may have them: NCCL would be told to fail rather than use NVLink
    with a plugin that finds no device.
    """
    own = variables(pool.transport, deepep_over_efa=deepep_over_efa) if with_efa else {}
    return {**own, **extra}
