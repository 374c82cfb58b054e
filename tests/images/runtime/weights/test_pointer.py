"""current.json never goes back, whoever moves it and however often they race."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.protocol import Attempt, Current
from moerl_runtime.weights import manifest, pointer
from moerl_runtime.weights.pointer import Fenced
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, FakeS3

from .bed import PREFIX, RUN, S3, current


def to(attempt: int, version: int, run: str = RUN) -> Current:
    of = Attempt(run=run, number=attempt)
    return Current(
        run=run,
        attempt=attempt,
        version=version,
        manifest=manifest.version_key(PREFIX, of, version) if version else None,
    )


@given(moves=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.booleans()), max_size=20))
def test_the_pointer_never_goes_back(moves: list[tuple[int, int, bool]]) -> None:
    s3 = S3(FakeS3())
    seen = (0, -1)
    for attempt, version, begin in moves:
        try:
            pointer.move_current(s3, BUCKET, PREFIX, to(attempt, version), begin=begin)
        except RuntimeFault:
            assert (attempt, version) < seen
        else:
            assert (attempt, version) >= seen
            seen = (attempt, version)
        found = pointer.read_current(s3, BUCKET, PREFIX)
        assert found is not None
        assert (found.current.attempt, found.current.version) == seen


def test_an_older_attempt_is_told_that_it_has_been_replaced() -> None:
    s3 = S3(FakeS3())
    pointer.move_current(s3, BUCKET, PREFIX, to(2, 0), begin=True)
    with pytest.raises(Fenced, match="replaced by attempt 2"):
        pointer.move_current(s3, BUCKET, PREFIX, to(1, 7), begin=False)


def test_another_run_takes_over_by_beginning_and_in_no_other_way() -> None:
    s3 = S3(FakeS3())
    pointer.move_current(s3, BUCKET, PREFIX, to(3, 5), begin=False)
    with pytest.raises(Fenced, match="replaced by run"):
        pointer.move_current(s3, BUCKET, PREFIX, to(1, 1, "trainer-new"), begin=False)
    pointer.move_current(s3, BUCKET, PREFIX, to(1, 0, "trainer-new"), begin=True)
    with pytest.raises(Fenced):
        pointer.move_current(s3, BUCKET, PREFIX, to(3, 6), begin=False)


def test_a_write_whose_answer_was_lost_is_known_as_ones_own() -> None:
    s3 = S3(FakeS3())
    pointer.move_current(s3, BUCKET, PREFIX, to(1, 0), begin=True)
    s3.repeat_at = s3.calls + 1
    pointer.move_current(s3, BUCKET, PREFIX, to(1, 1), begin=False)
    assert current(s3) == to(1, 1)


def test_an_unchanged_pointer_is_not_read_again() -> None:
    s3 = S3(FakeS3())
    assert pointer.read_current(s3, BUCKET, PREFIX) is None
    pointer.move_current(s3, BUCKET, PREFIX, to(1, 0), begin=True)
    found = pointer.read_current(s3, BUCKET, PREFIX)
    assert found is not None
    assert pointer.read_current(s3, BUCKET, PREFIX, found.etag) is None


@pytest.mark.parametrize("there", [False, True])
def test_a_pointer_that_moves_between_the_read_and_the_write_is_not_overwritten(there: bool) -> None:
    service, other = FakeS3(), [to(2, 0)]
    if there:
        pointer.move_current(S3(service), BUCKET, PREFIX, to(1, 0), begin=True)

    def let_the_other_go_first(operation: str) -> None:
        if operation == "put_object" and other:
            pointer.move_current(S3(service), BUCKET, PREFIX, other.pop(), begin=True)

    with pytest.raises(Fenced):
        pointer.move_current(S3(service, let_the_other_go_first), BUCKET, PREFIX, to(1, 1), begin=False)
    assert current(S3(service)) == to(2, 0)


def test_threads_that_race_leave_the_highest() -> None:
    service, barrier = FakeS3(), threading.Barrier(8)
    lock = threading.Lock()

    class Serial(S3):
        """The fake's dictionaries, one call at a time; S3 does the same per key."""

        def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
            call = super().__getattr__(name)

            def alone(**arguments: object) -> object:
                with lock:
                    return call(**arguments)

            return alone

    lost: list[int] = []

    def move(attempt: int) -> None:
        barrier.wait()
        try:
            pointer.move_current(Serial(service), BUCKET, PREFIX, to(attempt, 0), begin=True)
        except Fenced:
            lost.append(attempt)

    threads = [threading.Thread(target=move, args=(attempt,)) for attempt in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert current(S3(service)).attempt == 8
    assert 8 not in lost
