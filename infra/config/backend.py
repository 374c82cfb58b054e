"""Which all-to-all carries tokens to their experts."""

from __future__ import annotations

from typing import Literal

from infra.catalog.software import SoftwareStack
from infra.config.environment import RolloutWorkload, TrainerWorkload
from infra.config.geometry import RolloutGeometry

A2aBackend = Literal["none", "deepep", "deepep_v2", "mooncake"]
Dispatcher = Literal["alltoall", "deepep", "deepep_v2"]


def a2a_backend(workload: RolloutWorkload, stack: SoftwareStack, geometry: RolloutGeometry) -> A2aBackend:
    """SGLang's --moe-a2a-backend: as written, else deepep_v2 where experts cross nodes and the stack has DeepEP at all.

    Inside one node NVLink makes the plain path good enough, and it serves every model and precision. Whether stack,
    pool and model can carry what is chosen is the rule `workload.engine-backend`.
    """
    if workload.backend is not None:
        return workload.backend
    if not geometry.experts_cross_efa:
        return "none"
    return "none" if stack.deepep is None else "deepep_v2"


def dispatcher(workload: TrainerWorkload, stack: SoftwareStack) -> Dispatcher:
    """Megatron's MoE token dispatcher: as written, else the stack's."""
    return workload.dispatcher or stack.trainer_dispatcher
