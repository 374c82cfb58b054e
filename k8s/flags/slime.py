"""Command line of slime's train.py, for the baseline: the same loop in the one form in which slime starts no engine.

slime 0.2.4 has neither weight files nor hooks, so weights are published with each checkpoint, by the data source: engines
sample weights that are up to `save_interval` steps old. Write `save_interval: 1` where that matters and saves are small.
"""

from __future__ import annotations

from infra.config.faults import EnvironmentFault, Finding
from infra.config.plan import Plan
from k8s.flags.training import RUNTIME
from k8s.flags.training import trainer_flags as shared_flags


def trainer_flags(plan: Plan) -> tuple[str, ...]:
    """Arguments of train.py. Raises EnvironmentFault for a run without checkpoints, which would publish no weights, and
    for flags of the file that cannot work."""
    if plan.workload.no_checkpoint:
        finding = Finding(
            rule="workload.trainer-flags",
            key="workload.no_checkpoint",
            value=True,
            why="slime publishes weights with its checkpoints, so engines would sample the first ones for ever",
            fix="Remove the key, or use software efa-gda.",
        )
        raise EnvironmentFault(plan.name, (finding,))
    owned = {"debug-train-only": (), "rollout-function-path": (f"{RUNTIME}.rollout.generate_rollout",)}
    return shared_flags(plan, owned)
