"""Command line of slime's train.py, for the baseline: the same loop in the one form in which slime starts no engine.

slime 0.2.4 has neither weight files nor hooks, so weights are published with each checkpoint, by the data source: engines
sample weights that are up to `save_interval` steps old. Write `save_interval: 1` where that matters and saves are small.
"""

from __future__ import annotations

from collections.abc import Iterator

from infra.config.faults import EnvironmentFault, Finding
from infra.config.plan import Plan
from k8s.flags.training import RUNTIME
from k8s.flags.training import trainer_flags as shared_flags


def trainer_flags(plan: Plan) -> tuple[str, ...]:
    """Arguments of train.py. Raises EnvironmentFault for a run whose weights would never be published, and for flags of
    the file that cannot work."""
    findings = tuple(_unpublished(plan))
    if findings:
        raise EnvironmentFault(plan.name, findings)
    owned = {"debug-train-only": (), "rollout-function-path": (f"{RUNTIME}.rollout.generate_rollout",)}
    return shared_flags(plan, owned)


def _unpublished(plan: Plan) -> Iterator[Finding]:
    if plan.workload.no_checkpoint:
        yield Finding(
            rule="workload.trainer-flags",
            key="workload.no_checkpoint",
            value=True,
            why="slime publishes weights with its checkpoints, so engines would sample the first ones for ever",
            fix="Remove the key, or use software efa-gda.",
        )
    if plan.storage.scratch != "fsx" and plan.workload.trainer.geometry.nodes > 1:
        yield Finding(
            rule="workload.trainer-flags",
            key="checkpoints.scratch",
            value=plan.storage.scratch,
            why="slime writes its exports on one node and they are published from another, so both must see one scratch",
            fix="Write fsx, or use software efa-gda.",
        )
