"""What may close a gate, and what never does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.config.gates_plan import GatesPlan
from moerl_runtime.faults import InputFault
from moerl_runtime.plan import Node
from moerl_runtime.trainer import gates
from moerl_runtime.trainer.gates import Batch, Gates, History
from tests.images.runtime.trainer.fakes import history
from tests.shipped import SHIPPED, plan_of

BOUNDS = Gates(enforced=True, batches=5, repetition_share_max=0.3, truncated_share_max=0.9)
REWARDS = st.floats(-100, 100)
SHARES = st.floats(0, 1)


def batch(step: int, low: float, high: float, repetition: float = 0.0, truncated: float = 0.0) -> Batch:
    return Batch(step=step, reward_min=low, reward_max=high, repetition_share=repetition, truncated_share=truncated)


def run_of(*batches: Batch) -> History:
    found = History()
    for one in batches:
        found = found.after(one, keep=BOUNDS.batches)
    return found


def named(found: History) -> str | None:
    bad = gates.fault(BOUNDS, found)
    return None if bad is None else bad.key


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"reward_min": 0.0, "reward_max": 0.0}, "reward"),
        ({"reward_min": -1.0, "reward_max": -1.0}, "reward"),
        ({"repetition_share": 0.31}, "repetition share"),
        ({"repetition_share": 0.3}, None),
        ({"truncated_share": 0.91}, "truncated share"),
        ({"truncated_share": 0.9}, None),
        ({"reward_min": -1.0, "reward_max": 1.0}, None),
        ({}, None),
    ],
)
def test_each_gate_closes_beyond_its_bound(changes: dict[str, float], key: str | None) -> None:
    for count in (1, 5, 9):
        assert named(history(count, **changes)) == key, f"{count} batches"


def test_a_fault_says_gate_value_bound_and_where_to_look() -> None:
    text = str(gates.fault(BOUNDS, history(7, repetition_share=0.5)))
    assert text.startswith("repetition share = 0.5: is beyond 0.3 in each of the last 5 batches, to step 6. Compare")


def test_a_run_that_ends_with_the_best_reward_everywhere_is_healthy() -> None:
    """All rewards are equal, so no step learns any more: because nothing is left to learn."""
    solved = [batch(step, 1.0, 1.0) for step in range(1, 9)]
    assert named(run_of(batch(0, 0.0, 1.0), *solved)) is None
    assert named(run_of(*solved)) == "reward", "where nothing was ever learned from"


def test_a_collapse_to_the_lowest_reward_is_none() -> None:
    assert named(run_of(batch(0, 0.0, 1.0), *(batch(step, 0.0, 0.0) for step in range(1, 6)))) == "reward"
    assert named(run_of(batch(0, 0.0, 1.0), *(batch(step, 0.0, 0.0) for step in range(1, 5)))) is None


@given(st.lists(st.tuples(REWARDS, REWARDS, SHARES, SHARES), min_size=1, max_size=12))
def test_one_good_batch_among_the_last_opens_every_gate(rows: list[tuple[float, float, float, float]]) -> None:
    batches = [batch(step, min(a, b), max(a, b), *shares) for step, (a, b, *shares) in enumerate(rows)]
    good = batch(len(batches), -1_000.0, 1_000.0)
    for later in range(BOUNDS.batches):
        after = [batch(len(batches) + 1 + step, -1_000.0, -1_000.0, 1.0, 1.0) for step in range(later)]
        assert named(run_of(*batches, good, *after)) is None
    garbage = [batch(len(batches) + 1 + step, -1_000.0, -1_000.0, 1.0, 1.0) for step in range(BOUNDS.batches)]
    assert named(run_of(*batches, good, *garbage)) == "reward"


@given(st.lists(st.tuples(REWARDS, REWARDS, SHARES, SHARES), min_size=1, max_size=12), st.integers(0, 11))
def test_a_resume_from_any_step_judges_as_the_whole_run(
    rows: list[tuple[float, float, float, float]], saved: int
) -> None:
    """Through JSON, with the batch after the save known at the save already, and trained on again."""
    batches = [batch(step, min(a, b), max(a, b), *shares) for step, (a, b, *shares) in enumerate(rows)]
    known = json.loads(json.dumps(run_of(*batches[: saved + 2]).until(saved).document()))
    again = gates.history(known)
    assert len(again.batches) <= BOUNDS.batches + 1
    for later in batches[saved + 1 :]:
        again = again.after(later, keep=BOUNDS.batches)
    assert named(again) == named(run_of(*batches))


def test_a_batch_that_is_taken_again_counts_once() -> None:
    found = run_of(batch(0, 0.0, 0.0), batch(1, 0.0, 0.0), batch(1, 0.0, 1.0))
    assert [entry.step for entry in found.batches] == [0, 1]
    assert named(found) is None


def test_nothing_known_is_no_success() -> None:
    assert named(History()) == "batches"
    assert named(gates.history(None)) == "batches"


@pytest.mark.parametrize("name", SHIPPED)
def test_bounds_are_the_plans(name: str) -> None:
    plan = plan_of(name)
    ours = GatesPlan(enforced=True)
    document: dict[str, Any] = json.loads(json.dumps(plan.document()))
    assert gates.read(Node(document, "")) == Gates(
        enforced=True,
        batches=ours.batches,
        repetition_share_max=ours.repetition_share_max,
        truncated_share_max=ours.truncated_share_max,
    )
    del document["workload"]["gates"]["batches"]
    with pytest.raises(InputFault, match=r"workload\.gates\.batches"):
        gates.read(Node(document, ""))
