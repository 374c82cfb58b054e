"""How many groups a step trains on, how many are out with the engines at once, and how many engines that keeps busy.

A group is the samples of one prompt, and one task of the queue. The trainer keeps a window of groups out, as many batches
as weights may be versions old, and KEDA starts engines by the tasks in the queue: so a batch that is small for the fleet
leaves engines unstarted, and nothing ever says so. The default batch therefore follows from the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, gcd

from infra.config.engine_plan import SAMPLES_PER_TASK, tasks_max
from infra.config.geometry import RolloutGeometry

GROUPS_A_STEP_MIN = 32
"""What upstream's recipes train on (Miles' run_qwen3_30b_a3b and run_qwen3_235b_a22b: 32 prompts x 8 samples)."""
STALENESS_VERSIONS = 2
"""Versions that the weights of a sample may be older than those which train on it."""
BATCH_FLAG, STEPS_FLAG, STALENESS_FLAG = "rollout-batch-size", "num-steps-per-rollout", "max-weight-staleness"

Written = Mapping[str, bool | int | float | str]
"""`workload.trainer.flags`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Counts, of groups where no other unit is named."""

    groups: int
    """Of one step."""
    staleness_versions: int
    """Versions that a sample may be behind, and batches that are out at once."""
    window_groups: int
    """Out with the engines at once."""
    fleet_groups: int
    """What all engines of the pools' maximum take at once."""


def batch_plan(written: Written, *, data_parallel: int, fleet: Sequence[RolloutGeometry]) -> BatchPlan:
    """The batch that the file writes, or the default one. A value that is no count counts as absent: the render refuses it."""
    staleness = count(written.get(STALENESS_FLAG)) or STALENESS_VERSIONS
    groups = count(written.get(BATCH_FLAG)) or default_groups(written, data_parallel=data_parallel, fleet=fleet)
    return BatchPlan(
        groups=groups,
        staleness_versions=staleness,
        window_groups=groups * staleness,
        fleet_groups=fleet_groups(fleet),
    )


def default_groups(written: Written, *, data_parallel: int, fleet: Sequence[RolloutGeometry]) -> int:
    """Upstream's groups a step, or as many as fill every engine, rounded up so that samples divide over ranks and steps."""
    staleness = count(written.get(STALENESS_FLAG)) or STALENESS_VERSIONS
    unit = data_parallel // gcd(data_parallel, SAMPLES_PER_TASK) * (count(written.get(STEPS_FLAG)) or 1)
    least = max(GROUPS_A_STEP_MIN, ceil(fleet_groups(fleet) / staleness))
    return ceil(least / unit) * unit


def fleet_groups(fleet: Sequence[RolloutGeometry]) -> int:
    """Groups that all engines of these pools' maximum take at once."""
    return sum(geometry.engines_max * tasks_max(geometry) for geometry in fleet)


def queue_length(geometry: RolloutGeometry, fleet: Sequence[RolloutGeometry]) -> int:
    """Tasks in the queue for each engine of this pool. Every pool reads the whole length, so of several each has an engine
    for a larger part of it: together they reach their maximum at what fills them all."""
    return max(1, fleet_groups(fleet) // max(1, geometry.engines_max))


def engines_busy(window_groups: int, geometry: RolloutGeometry, fleet: Sequence[RolloutGeometry]) -> int:
    """Engines of this pool that so many tasks start."""
    return min(geometry.engines_max, ceil(window_groups / queue_length(geometry, fleet)))


def count(written: bool | int | float | str | None) -> int | None:
    """The count, from 1 up, that a flag's value is; None for anything else."""
    text = "" if isinstance(written, bool) or written is None else str(written)
    return int(text) or None if text.isascii() and text.isdigit() else None
