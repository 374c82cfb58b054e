"""The ledger loses no prompt, counts none twice and uses no id twice, whatever happens in between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import Sample
from moerl_runtime.trainer.ledger import Ledger, Taken, positions

SAMPLE = Sample(
    group=0,
    sample=0,
    tokens=(1, 2, 3),
    response_length=2,
    response="a b",
    status="completed",
    reward=1.0,
    log_probs=(-0.1, -0.2),
    loss_mask=None,
    versions=(0,),
    worker="w",
    finished_unix_seconds=0.0,
)


def sample(group: int, number: int, version: int = 0) -> Sample:
    return replace(SAMPLE, group=group, sample=number, versions=(version,))


def ledger(samples: int = 2, window: int = 4, reissue_seconds: float = 100.0) -> Ledger:
    return Ledger(samples=samples, window=window, reissue_seconds=reissue_seconds)


def sent(book: Ledger, now: float = 0.0) -> list[int]:
    groups = [group.id for group in book.fill()]
    for group in groups:
        book.sent(group, now)
    return groups


def complete(book: Ledger, group: int, version: int = 0) -> None:
    for number in range(book.samples):
        book.record(sample(group, number, version))


def take(book: Ledger, step: int, count: int, oldest: int = 0) -> list[Taken]:
    taken = book.take(step, count, oldest_version=oldest)
    assert taken is not None
    return taken


def test_a_group_is_ready_when_all_its_samples_are_there_and_not_before() -> None:
    book = ledger()
    sent(book)
    assert book.record(sample(0, 0)) == "used"
    assert book.take(0, 1, oldest_version=0) is None
    assert book.record(sample(0, 0)) == "duplicate"
    assert book.take(0, 1, oldest_version=0) is None
    assert book.record(sample(0, 1)) == "used"
    (group,) = take(book, 0, 1)
    assert [entry.sample for entry in group.samples] == [0, 1]
    assert book.record(sample(0, 1)) == "unknown"


def test_a_sample_that_arrives_before_its_message_was_noted_is_kept() -> None:
    book = ledger(samples=1)
    book.fill()
    assert book.record(sample(0, 0)) == "used"


def test_the_oldest_ready_groups_are_taken_first_and_a_straggler_holds_up_nobody() -> None:
    book = ledger(samples=1)
    sent(book)
    for group in (3, 1, 2):
        complete(book, group)
    assert [group.id for group in take(book, 0, 2)] == [1, 2]
    complete(book, 0)
    assert [group.id for group in take(book, 1, 2)] == [0, 3]


def test_too_old_samples_are_not_trained_on_and_their_prompt_comes_again_under_a_new_id() -> None:
    book = ledger(samples=2, window=2)
    sent(book)
    book.record(sample(0, 0, version=3))
    book.record(sample(0, 1, version=1))  # the oldest counts
    complete(book, 1, version=2)
    assert [group.id for group in take(book, 5, 1, oldest=2)] == [1]
    assert [(group.id, group.position) for group in book.fill()] == [(2, 0), (3, 2)]
    assert book.counters.stale == 1


def test_a_damaged_group_is_tried_again_and_is_dead_after_three_of_them() -> None:
    book = ledger(samples=1, window=1)
    fates = []
    for number in range(3):
        assert [(group.id, group.position) for group in book.fill()] == [(number, 0)]
        fates.append(book.damaged(number))
    assert fates == ["again", "again", "dead"]
    assert [group.position for group in book.fill()] == [1]


def test_a_late_group_keeps_its_id_and_waits_longer_each_time() -> None:
    book = ledger(window=1)
    sent(book, 0.0)
    deadlines = []
    now = 0.0
    for _ in range(5):
        (group,) = book.overdue(1e9)
        deadlines.append(group.deadline - now)
        now = group.deadline
        assert book.overdue(now - 1) == []
        assert [entry.id for entry in book.overdue(now)] == [0]
        book.sent(0, now)
    assert deadlines == [100, 200, 400, 800, 800]
    assert book.counters.reissued == 5


def test_a_postponed_group_was_not_issued_again() -> None:
    book = ledger(window=1)
    sent(book)
    book.postpone(0, 100.0)
    assert book.overdue(299.0) == []
    assert [group.id for group in book.overdue(300.0)] == [0]
    assert book.counters.reissued == 0


def test_a_ready_group_is_neither_late_nor_dead() -> None:
    book = ledger(samples=1, window=1)
    sent(book)
    complete(book, 0)
    assert book.overdue(1e9) == []
    assert book.dead(0) is False
    assert [group.id for group in take(book, 0, 1)] == [0]


def test_a_checkpoint_counts_what_later_steps_took_as_open() -> None:
    book = ledger(samples=1)
    sent(book)
    for group in range(3):
        complete(book, group)
    take(book, 0, 2)
    take(book, 1, 1)
    state = json.loads(json.dumps(book.state(0)))
    again = ledger(samples=1)
    again.restore(state)
    assert [group.id for group in again.fill()] == [2, 3, 4, 5]
    assert again.counters.taken == 2


def test_lent_prompts_are_taken_and_may_be_given_back_once() -> None:
    book = ledger(samples=1, window=1)
    assert book.lend(0) == (0, 0)
    assert book.give_back(0) is True
    assert book.give_back(0) is False
    assert [(group.id, group.position) for group in book.fill()] == [(1, 0)]


@pytest.mark.parametrize(("key", "value"), [("form", 0), ("samples", 3)])
def test_a_state_of_another_form_or_group_size_is_refused(key: str, value: int) -> None:
    state = ledger().state(0) | {key: value}
    with pytest.raises(InputFault, match=str(value)):
        ledger().restore(state)


def test_a_ledger_that_has_issued_takes_up_no_state() -> None:
    book = ledger()
    book.fill()
    with pytest.raises(ValueError, match="issued nothing"):
        book.restore(ledger().state(0))


class Books(RuleBasedStateMachine):
    """A ledger under everything that queues, agents, a trainer and its restarts do to it."""

    @initialize(samples=st.integers(1, 3), window=st.integers(1, 6))
    def begin(self, samples: int, window: int) -> None:
        self.samples, self.window = samples, window
        self.book = ledger(samples=samples, window=window)
        self.now, self.version, self.step = 0.0, 0, 0
        self.ids: dict[int, int] = {}
        """Every group that this lineage of attempts opened, with its position."""
        self.consumed: list[tuple[int, int]] = []
        """(step, position)."""
        self.lost_to: dict[str, set[int]] = {"dead": set(), "skipped": set()}
        self.saved: tuple[dict[str, Any], int, dict[int, int], dict[str, set[int]]] | None = None

    @rule()
    def issue(self) -> None:
        self.open_window()
        for group in self.book.fill():
            self.book.sent(group.id, self.now)

    @rule()
    def open_window(self) -> None:
        for group in self.book.fill():
            if group.id in self.ids:
                assert self.ids[group.id] == group.position
            else:
                assert group.id == max(self.ids, default=-1) + 1
                self.ids[group.id] = group.position

    @rule(group=st.integers(0, 40), number=st.integers(-1, 3), age=st.integers(0, 3))
    def deliver(self, group: int, number: int, age: int) -> None:
        wanted = self.book.missing(group, number)
        outcome = self.book.record(sample(group, number, max(0, self.version - age)))
        assert (outcome == "used") == wanted

    @rule(age=st.integers(0, 3), most=st.integers(1, 6))
    def finish_some(self, age: int, most: int) -> None:
        for group in self.book.outstanding()[:most]:
            complete(self.book, group.id, max(0, self.version - age))

    @rule(seconds=st.floats(0, 500))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for group in self.book.overdue(self.now):
            self.book.sent(group.id, self.now)
        assert self.book.overdue(self.now) == []

    @rule(which=st.integers(0, 100))
    def damage(self, which: int) -> None:
        groups = self.book.outstanding()
        if groups:
            group = groups[which % len(groups)]
            if self.book.damaged(group.id) == "dead":
                self.lost_to["dead"].add(group.position)

    @rule(which=st.integers(0, 100), kind=st.sampled_from(["dead", "skipped"]))
    def give_up(self, which: int, kind: str) -> None:
        groups = self.book.outstanding()
        if groups:
            group = groups[which % len(groups)]
            if kind == "dead":
                assert self.book.dead(group.id)
            else:
                self.book.skip(group.id)
            self.lost_to[kind].add(group.position)

    @rule(count=st.integers(1, 3), staleness=st.integers(0, 2))
    def train(self, count: int, staleness: int) -> None:
        oldest = self.version - staleness
        taken = self.book.take(self.step, count, oldest_version=oldest)
        if taken is None:
            return
        assert [group.id for group in taken] == sorted(group.id for group in taken)
        for group in taken:
            assert [entry.sample for entry in group.samples] == list(range(self.samples))
            assert min(version for entry in group.samples for version in entry.versions) >= oldest
            self.consumed.append((self.step, group.position))
        self.step += 1
        self.version += 1

    @precondition(lambda self: self.step > 0)
    @rule()
    def save(self) -> None:
        lost = {kind: set(found) for kind, found in self.lost_to.items()}
        self.saved = (json.loads(json.dumps(self.book.state(self.step - 1))), self.step - 1, dict(self.ids), lost)
        self.book.saved(self.step - 1)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def die_and_resume(self) -> None:
        assert self.saved is not None
        state, step, ids, lost = self.saved
        self.book = ledger(samples=self.samples, window=self.window)
        self.book.restore(state)
        assert sorted(positions(self.book.state(step))) == sorted(positions(state))
        self.ids = dict(ids)
        self.lost_to = {kind: set(found) for kind, found in lost.items()}
        self.consumed = [entry for entry in self.consumed if entry[0] <= step]
        self.step, self.version = step + 1, 0
        assert self.book.counters.taken == len(self.consumed)

    @invariant()
    def every_prompt_is_in_exactly_one_place(self) -> None:
        owed = positions(self.book.state(self.step - 1))
        taken = (position for _, position in self.consumed)
        places = sorted([*owed, *taken, *self.lost_to["dead"], *self.lost_to["skipped"]])
        assert places == list(range(self.book.next_position))


Books.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestBooks = Books.TestCase
