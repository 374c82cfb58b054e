"""The judge of the smoke job: whatever was lost, done twice, not learned or not resumed is a fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.local import smoke_fleet, smoke_report
from infra.local.smoke_report import Course, Form, Loaded, Record, Step
from infra.local.smoke_weights import Brought
from moerl_runtime.checkpoint.layout import Complete
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.smoke import job
from moerl_runtime.weights.publish import ANCHOR_EVERY

RESUMED, KILLED_AFTER = 29, 32


def steps() -> list[Step]:
    """A job that went well: attempt 1 until it was killed, attempt 2 from its last checkpoint on."""
    made = [step(1, number, kept=number <= RESUMED) for number in range(KILLED_AFTER + 1)]
    return made + [step(2, number) for number in range(RESUMED + 1, job.STEPS)]


def step(attempt: int, number: int, *, kept: bool = True) -> Step:
    return Step(
        at_seconds=float(number + 10 * attempt),
        attempt=attempt,
        step=number,
        reward=0.05 + 0.6 * number / job.STEPS,
        samples=job.GROUPS * job.SAMPLES,
        groups=tuple(range(number * job.GROUPS, (number + 1) * job.GROUPS)),
        weights=forms(attempt, number),
        kept=kept,
    )


def forms(attempt: int, number: int) -> tuple[Form, ...]:
    """A delta of three bytes, and the anchors of four bytes that the publisher makes of every tenth and at a resume."""
    version = number + 1 if attempt == 1 else number - RESUMED
    begins = (Form(version=0, kind="full", size_bytes=4),) if attempt > 1 and version == 1 else ()
    anchor = (Form(version=version, kind="full", size_bytes=4),) if version % ANCHOR_EVERY == 0 else ()
    return (*begins, Form(version=version, kind="delta", size_bytes=3), *anchor)


LOADED = Loaded(
    late=(Brought(node="worker-3", attempt=1, version=14, deltas=4, whole="anchor", whole_version=10),),
    at_end=Brought(node="a node at the end", attempt=2, version=30, deltas=10, whole="anchor", whole_version=20),
    end_is_export=True,
)


def checkpoint(**changes: Any) -> Checkpoint:
    taken = job.STEPS * job.GROUPS
    ledger = {
        "next_position": taken + 3,
        "open": [[taken, taken, 0], [taken + 1, taken + 1, 0]],
        "again": [[taken + 2, 1]],
        "counters": {"taken": taken, "dead": 0, "skipped": 0, "stale": 1, "invalid": 0, "reissued": 0},
    } | changes
    complete = Complete(
        run=smoke_fleet.RUN, attempt=2, step=job.STEPS - 1, nodes=("a",), files=(), metadata={"ledger": ledger}
    )
    return Checkpoint(run=smoke_fleet.RUN, attempt=2, step=job.STEPS - 1, prefix="p", complete=complete)


def found(made: list[Step] | None = None, final: Checkpoint | None = None, loaded: Loaded = LOADED) -> dict[str, Any]:
    record = Record(began=0.0, samples=[(70.0, {})])
    return smoke_report.summarize(made or steps(), final or checkpoint(), {}, (RESUMED, KILLED_AFTER), record, loaded)


def test_a_job_that_went_well_has_no_fault() -> None:
    summary = found()
    assert smoke_report.judge(summary, Course()) == []
    assert summary["tasks_lost"] == 0
    assert summary["tasks_issued"] == summary["tasks_completed"] + 3
    assert summary["steps_done_again"] == KILLED_AFTER - RESUMED
    assert json.loads(json.dumps(summary)) == summary
    said = "\n".join(smoke_report.lines(summary))
    assert "0 lost" in said
    assert "63 deltas" in said
    assert "worker-3 version 14 from anchor 10 and 4 deltas; a node at the end version 30" in said


def test_versions_are_counted_in_both_forms() -> None:
    """33 steps of an attempt, then 30 of one that resumed: three anchors each, and the one that it began with."""
    weights = found()["weights"]
    assert (weights["deltas"], weights["delta_bytes"]) == (63, 189)
    assert (weights["anchors"], weights["anchor_bytes"], weights["anchors_due"]) == (7, 28, 7)


def published_whole(made: list[Step]) -> list[Step]:
    return [*made[:-1], replace(made[-1], weights=(Form(version=30, kind="full", size_bytes=4),))]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (published_whole, "62 versions of 63 were published as deltas"),
        (
            lambda made: [
                replace(entry, weights=tuple(form for form in entry.weights if form.kind == "delta")) for entry in made
            ],
            "0 anchors were published, not 7",
        ),
    ],
)
def test_versions_in_another_form_are_a_fault(spoil: Callable[[list[Step]], list[Step]], fault: str) -> None:
    assert fault in smoke_report.judge(found(spoil(steps())), Course())


@pytest.mark.parametrize(
    ("loaded", "fault"),
    [
        (replace(LOADED, late=()), "no engine that joined late loaded a version"),
        (
            replace(LOADED, late=(replace(LOADED.late[0], whole="node"),)),
            "worker-3 was new, and began with what it had",
        ),
        (replace(LOADED, end_is_export=False), "the last version is not the model in the last checkpoint"),
    ],
)
def test_an_engine_that_joined_late_has_to_come_by_the_weights(loaded: Loaded, fault: str) -> None:
    assert smoke_report.judge(found(loaded=loaded), Course()) == [fault]


def test_the_end_is_judged_by_more_steps_than_the_start() -> None:
    made = [replace(entry, reward=float(entry.step)) for entry in steps()]
    last = made[-1].step
    assert (found(made)["reward_before"], found(made)["reward_after"]) == (2.0, last - 4.5)


def drop_group(made: list[Step]) -> list[Step]:
    return [replace(made[0], groups=(*made[0].groups[1:], made[1].groups[0])), *made[1:]]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda made: made[:-1], "59 steps of 60"),
        (drop_group, "tasks trained twice: 1"),
        (lambda made: [replace(entry, reward=0.3) for entry in made], "the reward went from 0.3 to 0.3"),
        (lambda made: [replace(entry, attempt=1) for entry in made], "did not resume"),
        (lambda made: [entry for entry in made if entry.step != RESUMED + 1 or not entry.kept], "not after step 29"),
    ],
)
def test_what_the_step_log_shows_is_noticed(spoil: Callable[[list[Step]], list[Step]], fault: str) -> None:
    assert any(fault in said for said in smoke_report.judge(found(spoil(steps())), Course()))


def test_a_prompt_that_is_neither_trained_on_nor_owed_is_lost() -> None:
    summary = found(final=checkpoint(next_position=job.STEPS * job.GROUPS + 4))
    assert summary["tasks_lost"] == 1
    assert smoke_report.judge(summary, Course()) == ["tasks lost: 1"]


def test_a_task_that_died_is_a_fault() -> None:
    counters = {"taken": 480, "dead": 1, "skipped": 0, "stale": 0, "invalid": 0, "reissued": 0}
    summary = found(final=checkpoint(counters=counters, next_position=job.STEPS * job.GROUPS + 4))
    assert smoke_report.judge(summary, Course()) == ["tasks dead: 1"]
