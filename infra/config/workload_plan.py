"""Derived numbers of the job: workers, engines, what crosses EFA, what one lost node costs, environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infra.catalog import Catalog
from infra.catalog.transport_variables import variables
from infra.config.backend import A2aBackend, Dispatcher, a2a_backend, dispatcher
from infra.config.environment import Environment, Kv, PoolRole
from infra.config.geometry import RolloutGeometry, TrainerGeometry, rollout_geometry, trainer_geometry
from infra.config.pod_plan import PodResources, RolloutPods, TrainerPods, cpu_worker, rollout_pods, trainer_pods
from infra.config.pool_plan import PoolPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan:
    pool: str
    workers: int
    """One whole-node worker per node; the head takes a share of one node and no GPU."""
    geometry: TrainerGeometry
    dispatcher: Dispatcher
    save_optimizer: bool
    pods: TrainerPods
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuWorkerPlan:
    """One worker per node of an environment or buffer pool."""

    pool: str
    role: PoolRole
    replicas_min: int
    replicas_max: int
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
    kv_transfer: Kv | None
    pods: RolloutPods
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    model: str
    architecture: str
    steps: int
    save_interval: int
    no_checkpoint: bool
    cuda_archs: tuple[str, ...]
    trainer: TrainerPlan
    rollouts: tuple[RolloutPlan, ...]
    cpu_workers: tuple[CpuWorkerPlan, ...]

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
    rollouts = []
    for pool in by_role["rollout"]:
        geometry = rollout_geometry(written.rollout, model, nodes=pool.size.max, gpus_per_node=pool.gpus_per_node)
        rollouts.append(
            RolloutPlan(
                pool=pool.name,
                precision=written.rollout.precision,
                geometry=geometry,
                backend=a2a_backend(written.rollout, stack, geometry),
                lost_with_one_node=geometry.nodes_per_engine,
                kv_transfer=written.rollout.kv_transfer,
                pods=rollout_pods(pool, geometry, catalog.daemonsets),
                variables=_variables(pool, geometry.experts_cross_efa, written.rollout.variables),
            )
        )
    archs = sorted({pool.cuda_arch for pool in pools if pool.cuda_arch})
    return WorkloadPlan(
        model=model.name,
        architecture=model.architecture,
        steps=written.steps,
        save_interval=written.save_interval,
        no_checkpoint=written.no_checkpoint,
        cuda_archs=environment.images.cuda_archs or tuple(archs),
        trainer=TrainerPlan(
            pool=trainer_pool.name,
            workers=trainer_pool.size.max,
            geometry=trainer,
            dispatcher=dispatcher(written.trainer, stack),
            save_optimizer=written.trainer.save_optimizer,
            pods=trainer_pods(trainer_pool, catalog.daemonsets),
            variables=_variables(trainer_pool, trainer.experts_cross_efa, written.trainer.variables),
        ),
        rollouts=tuple(rollouts),
        cpu_workers=tuple(
            CpuWorkerPlan(
                pool=pool.name,
                role=pool.role,
                replicas_min=pool.size.min,
                replicas_max=pool.size.max,
                pod=cpu_worker(pool, catalog.daemonsets),
            )
            for pool in pools
            if pool.role in ("environment", "buffer")
        ),
    )


def _variables(pool: PoolPlan, experts_over_efa: bool, extra: Mapping[str, str]) -> dict[str, str]:
    """The pool's communication variables and the user's own; rules have refused any that both set."""
    own = variables(pool.transport, expert_parallel_over_efa=experts_over_efa) if pool.efa_per_node else {}
    return {**own, **extra}
