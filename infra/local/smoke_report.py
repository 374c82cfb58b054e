"""What the smoke RL job did: its step log, its counts, and whether that is what it should have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from infra.local.smoke_weights import Brought
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.smoke import job
from moerl_runtime.weights.publish import ANCHOR_EVERY

SMOOTH_STEPS = 5
END_STEPS = 10
"""Those that the end is judged by. A step has eight prompts of unlike difficulty, and the mean of five of them still scatters by
more than a tenth; at the start there is no time for more, since learning has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How long the job is, and after which steps something happens to it."""

    steps: int = job.STEPS
    notice: int = 10
    """A worker is told that its node goes."""
    worker: int = 20
    """Another one is killed."""
    trainer: int = 32
    reward_gain_min: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form in which a version of the weights was in the bucket after its step."""

    version: int
    kind: str
    """delta or full."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of the trainer's step log."""

    at_seconds: float
    """Since the job's start."""
    attempt: int
    step: int
    reward: float
    samples: int
    groups: tuple[int, ...]
    weights: tuple[Form, ...]
    """Of the version that the step made, and of version 0 with an attempt's first."""
    kept: bool = True
    """False: done after the checkpoint that the next attempt resumed from, so done again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What engines loaded that were not there from the beginning."""

    late: tuple[Brought, ...]
    """The first version of every worker that took another's place."""
    at_end: Brought
    """The last version, on a node that began after the run."""
    end_is_export: bool
    """Whether that is the model in the last checkpoint."""


@dataclass(slots=True)
class Record:
    """What happened, in seconds since the start."""

    began: float
    events: list[tuple[float, str]] = field(default_factory=list)
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """Samples stored by each worker, in all, at a time."""


def summarize(
    steps: Sequence[Step],
    final: Checkpoint,
    series: Mapping[str, float],
    resumed: tuple[int, int] | None,
    record: Record,
    loaded: Loaded,
) -> dict[str, Any]:
    """The numbers of the job. `lost` counts prompts that were issued and are neither trained on nor owed any more."""
    kept = [step for step in steps if step.kept]
    groups = [group for step in kept for group in step.groups]
    ledger = final.metadata["ledger"]
    counters = ledger["counters"]
    owed = len(ledger["open"]) + len(ledger["again"])
    settled = len(set(groups)) + counters["dead"] + counters["skipped"]
    rewards = [step.reward for step in kept]
    return {
        "seconds": round(record.samples[-1][0] if record.samples else 0.0, 1),
        "steps": sorted({step.step for step in kept}),
        "steps_done_again": sum(not step.kept for step in steps),
        "tasks_issued": ledger["next_position"],
        "tasks_completed": len(set(groups)),
        "tasks_open_at_end": owed,
        "tasks_trained_twice": len(groups) - len(set(groups)),
        "tasks_lost": ledger["next_position"] - settled - owed,
        "tasks_dead": counters["dead"],
        "tasks_too_old": counters["stale"],
        "tasks_reissued": int(series.get("moerl_trainer_tasks_reissued_total", 0)),
        "tasks_returned": int(series.get('moerl_agent_tasks_total{outcome="returned"}', 0)),
        "results_delivered_twice": int(series.get('moerl_trainer_results_total{outcome="duplicate"}', 0)),
        "samples_stored": int(series.get("moerl_agent_samples_total", 0)),
        "reward_before": _mean(rewards[:SMOOTH_STEPS]),
        "reward_after": _mean(rewards[-END_STEPS:]),
        "trainer_killed_after_step": None if resumed is None else resumed[1],
        "resumed_from_step": None if resumed is None else resumed[0],
        "first_step_after_resume": min((step.step for step in kept if step.attempt == kept[-1].attempt), default=None),
        "attempts": sorted({step.attempt for step in steps}),
        "weights": _weights(steps, loaded),
        "events": [{"seconds": round(seconds, 1), "what": what} for seconds, what in record.events],
    }


def _weights(steps: Sequence[Step], loaded: Loaded) -> dict[str, Any]:
    """What was published, by what the bucket had after every step, and how engines that began later came by it."""
    forms = [form for step in steps for form in step.weights]
    deltas, anchors = ([form.size_bytes for form in forms if form.kind == kind] for kind in ("delta", "full"))
    versions = Counter(step.attempt for step in steps)
    return {
        "deltas": len(deltas),
        "delta_bytes": sum(deltas),
        "anchors": len(anchors),
        "anchor_bytes": sum(anchors),
        # Every ANCHOR_EVERY versions, of which one is that of a save; and what a resumed attempt begins with.
        "anchors_due": sum(count // ANCHOR_EVERY for count in versions.values()) + len(versions) - 1,
        "joined_late": [asdict(one) for one in loaded.late],
        "joined_at_end": asdict(loaded.at_end),
        "end_is_last_checkpoint": loaded.end_is_export,
    }


def _mean(rewards: Sequence[float]) -> float:
    return round(sum(rewards) / max(1, len(rewards)), 3)


def judge(found: Mapping[str, Any], course: Course) -> list[str]:
    """What is wrong with the job; empty when it did all that it should."""
    faults = []
    if found["steps"] != list(range(course.steps)):
        faults.append(f"{len(found['steps'])} steps of {course.steps} were done")
    for name in ("tasks_lost", "tasks_trained_twice", "tasks_dead"):
        if found[name]:
            faults.append(f"{name.replace('_', ' ')}: {found[name]}")
    if found["tasks_completed"] != course.steps * job.GROUPS:
        faults.append(f"{found['tasks_completed']} tasks were trained on, not {course.steps * job.GROUPS}")
    if found["resumed_from_step"] is None or len(found["attempts"]) < 2:
        faults.append("the trainer did not resume")
    elif found["first_step_after_resume"] != found["resumed_from_step"] + 1:
        faults.append(
            f"the trainer went on with step {found['first_step_after_resume']}, not after step {found['resumed_from_step']}"
        )
    weights = found["weights"]
    done = len(found["steps"]) + found["steps_done_again"]
    if weights["deltas"] != done:
        faults.append(f"{weights['deltas']} versions of {done} were published as deltas")
    if weights["anchors"] != weights["anchors_due"]:
        faults.append(f"{weights['anchors']} anchors were published, not {weights['anchors_due']}")
    if not weights["joined_late"]:
        faults.append("no engine that joined late loaded a version")
    for one in (*weights["joined_late"], weights["joined_at_end"]):
        if one["whole"] == "node":
            faults.append(f"{one['node']} was new, and began with what it had")
    if not weights["end_is_last_checkpoint"]:
        faults.append("the last version is not the model in the last checkpoint")
    if not found["reward_after"] >= found["reward_before"] + course.reward_gain_min:
        faults.append(f"the reward went from {found['reward_before']} to {found['reward_after']}")
    return faults


def lines(found: Mapping[str, Any]) -> list[str]:
    """For people."""
    weights = found["weights"]
    return [
        f"smoke RL job: {len(found['steps'])} steps in {found['seconds']:.0f} s, reward {found['reward_before']:.2f}"
        f" -> {found['reward_after']:.2f}",
        f"  tasks: {found['tasks_issued']} issued, {found['tasks_completed']} completed, {found['tasks_open_at_end']} open"
        f" at the end, {found['tasks_returned']} returned, {found['tasks_reissued']} reissued,"
        f" {found['results_delivered_twice']} results delivered twice, {found['tasks_lost']} lost",
        f"  weights: {weights['deltas']} deltas of {_mib(weights['delta_bytes'])} and {weights['anchors']} anchors of"
        f" {_mib(weights['anchor_bytes'])} published (a step changes the whole of this model)",
        "  engines joined late: "
        + "; ".join(str(Brought(**one)) for one in (*weights["joined_late"], weights["joined_at_end"])),
        f"  trainer killed after step {found['trainer_killed_after_step']}, resumed from the checkpoint of step"
        f" {found['resumed_from_step']}, {found['steps_done_again']} steps done again",
    ]


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
