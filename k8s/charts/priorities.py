"""Priority classes: who goes first, and who may push whom aside.

Pools are kept apart by taints, so preemption is rare: agents push aside anything on their node, and the trainer a test
or prepare job that still stands on its pool. Rollouts and workers wait: to push an engine aside loses the tasks in it.
"""

from __future__ import annotations

from infra.config.plan import Plan
from k8s.manifest import Object, obj
from k8s.names import ROLLOUT_PRIORITY, SYSTEM_PRIORITY, TRAINER_PRIORITY, WORKER_PRIORITY

CLASSES: tuple[tuple[str, int, bool, str], ...] = (
    (SYSTEM_PRIORITY, 1_000_000, True, "Agents without which a GPU node is of no use."),
    (TRAINER_PRIORITY, 100_000, True, "The trainer: one lost pod ends the run."),
    (WORKER_PRIORITY, 10_000, False, "Environment and buffer workers, jobs beside a run."),
    (ROLLOUT_PRIORITY, 1_000, False, "Rollout engines: their tasks go back to the queue."),
)
"""(name, value, may preempt, description), highest first."""


def objects(_plan: Plan) -> tuple[Object, ...]:
    return tuple(
        obj(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            name,
            value=value,
            globalDefault=False,
            preemptionPolicy="PreemptLowerPriority" if preempts else "Never",
            description=description,
        )
        for name, value, preempts, description in CLASSES
    )
