"""Scratch that attempts share: each has its own directory, and what ended ones left goes, once nothing can come of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moerl_runtime import lease
from moerl_runtime.checkpoint import handover, restore, shared, upload
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.checkpoint.shared import ABANDONED_SECONDS, Shared
from moerl_runtime.faults import InputFault

from .bed import PREFIX, RUN, Clock, Inline, announce, content, held, moving, newest, save, tracker, uploader
from .fake_s3 import BUCKET, Client, Crash, FakeS3
from .test_crash_points import Moment, dying_on_disk


class Bed:
    """One file system, and S3 behind it."""

    lease: lease.Lease

    def __init__(self, root: Path) -> None:
        self.root, self.service = root, FakeS3()
        self.told: list[str] = []
        root.mkdir()
        self.now = root.stat().st_mtime + 3_600

    def scratch(self, attempt: str, run: str = RUN) -> Path:
        return self.root / run / attempt

    def look(self, attempt: str, *, run: str = RUN, begins: bool = True) -> Shared:
        return shared.look(
            self.root,
            self.scratch(attempt, run) / "checkpoints",
            run,
            begins=begins,
            unix_clock=lambda: self.now,
            report=self.told.append,
        )

    def take(self, attempt: str, run: str = RUN, **options: object) -> lease.Lease:
        clock = Clock()
        return lease.acquire(
            self.service.client(),
            bucket=BUCKET,
            prefix=PREFIX,
            run=run,
            holder=attempt,
            clock=clock,
            wait=clock.wait,
            **options,  # type: ignore[arg-type]
        )

    def save(self, attempt: str, number: int, step: int) -> None:
        save(self.scratch(attempt), content(number, step))
        announce(self.scratch(attempt), number, step)

    def upload(self, attempt: str) -> None:
        given = self.look(attempt, begins=False)
        upload.work(uploader(self.service.client(), self.scratch(attempt), node=attempt, shared=given))

    def restore(self, attempt: str, *, run: str = RUN, look: Shared | None = None) -> Client:
        client = self.service.client()
        restore.restore(
            client,
            BUCKET,
            PREFIX,
            run,
            self.scratch(attempt, run) / "checkpoints",
            files=Inline(),
            moves=moving(client),
            free_bytes=lambda _path: 2**40,
            shared=look or self.look(attempt, run=run),
        )
        return client

    def waiting(self, attempt: str) -> list[int]:
        return [ready.step for ready in handover.waiting(self.scratch(attempt) / "checkpoints")]


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return made(tmp_path / "attempts")


def made(root: Path) -> Bed:
    """Attempt `one` has the lease, has committed step 10 and announced step 20."""
    bed = Bed(root)
    bed.restore("one")
    bed.lease = bed.take("one")
    bed.save("one", 1, 10)
    bed.upload("one")
    bed.save("one", 1, 20)
    return bed


@pytest.mark.parametrize("end", ["live", "released", "run out"])
def test_the_next_attempts_restore_leaves_a_save_that_waits_to_the_uploader_of_the_one_before(
    bed: Bed, end: str
) -> None:
    """A job that was deleted and created again: the old uploader is at its save for as long as its grace."""
    if end == "released":
        bed.lease.release()
    if end == "run out":
        bed.service.now += lease.TTL_SECONDS + 1
    bed.restore("two")
    assert bed.waiting("one") == [20]
    assert handover.restored(bed.scratch("two") / "checkpoints") == Position(attempt=1, step=10)
    bed.upload("one")
    found = newest(bed.service)
    assert found is not None
    assert found.position == Position(attempt=1, step=20)
    # Once the next one has the lease and has committed, nothing can come of the one before.
    bed.service.now += lease.TTL_SECONDS + 1
    bed.take("two", resumed_from=Position(attempt=1, step=10))
    bed.save("two", 2, 30)
    bed.upload("two")
    assert not bed.scratch("one").exists()
    assert bed.waiting("two") == []


def test_files_of_an_attempt_whose_lease_is_over_are_taken_over_and_the_rest_of_it_goes(bed: Bed) -> None:
    bed.upload("one")
    save(bed.scratch("one"), {"checkpoints/iter_0000030/__0_0.distcp": b"never announced", "weights/x": b"x"})
    bed.service.now += lease.TTL_SECONDS + 1
    made = bed.restore("two").made
    assert held(bed.scratch("two")) == content(1, 20)
    assert not bed.scratch("one").exists()
    # Not one of the files came from S3.
    fresh = Bed(bed.root.parent / "new")
    fresh.service = bed.service
    assert fresh.restore("three").made.count("get_object") >= made.count("get_object") + len(content(1, 20)) - 3


def test_a_damaged_file_of_the_attempt_before_is_fetched(bed: Bed) -> None:
    bed.upload("one")
    (bed.scratch("one") / "checkpoints/iter_0000020/common.pt").write_bytes(b"1-20-COMMON")
    bed.restore("two")
    assert held(bed.scratch("two")) == content(1, 20)


def test_a_live_attempt_of_another_run_keeps_all_it_has(bed: Bed) -> None:
    before = held(bed.scratch("one"))
    bed.restore("other", run="trainer-2")
    assert held(bed.scratch("one")) == before
    assert bed.waiting("one") == [20]
    bed.upload("one")
    before = held(bed.scratch("one"))
    bed.restore("other", run="trainer-2")
    assert held(bed.scratch("one")) == before


@pytest.mark.parametrize("end", ["released", "run out"])
def test_a_run_that_ended_leaves_nothing_to_the_next_run(bed: Bed, end: str) -> None:
    bed.upload("one")
    if end == "released":
        bed.lease.release()
    else:
        bed.service.now += lease.TTL_SECONDS
    bed.restore("other", run="trainer-2")
    assert not (bed.root / RUN).exists()


def test_nobody_comes_back_for_a_save_after_a_day(bed: Bed) -> None:
    bed.service.now += ABANDONED_SECONDS - 1
    bed.restore("other", run="trainer-2")
    assert bed.waiting("one") == [20]
    bed.service.now += 1
    bed.restore("other", run="trainer-2")
    assert not bed.scratch("one").exists()


def test_an_attempt_that_died_before_its_lease_leaves_nothing_to_the_next_of_its_run(bed: Bed) -> None:
    """Else a loop of nodes that fail their proof would fill the file system."""
    bed.restore("two")
    bed.restore("three")
    assert not bed.scratch("two").exists()
    assert held(bed.scratch("three")) == content(1, 10)


def test_an_attempt_that_has_no_lease_yet_is_left_alone(bed: Bed) -> None:
    """By the restore of an older one that is being deleted, by another run, and by the uploader of the one before."""
    old = bed.look("two")
    bed.restore("three")
    bed.restore("two", look=old)
    bed.restore("other", run="trainer-2")
    bed.upload("one")
    assert held(bed.scratch("three")) == content(1, 10)
    os.utime(bed.scratch("three"), (bed.now - ABANDONED_SECONDS,) * 2)
    bed.restore("other", run="trainer-2")
    assert not bed.scratch("three").exists()


def test_records_that_cannot_be_read_stop_no_other_run(bed: Bed) -> None:
    bed.service.objects[f"{PREFIX}{RUN}/lease.json"].body = b"{}"
    bed.restore("other", run="trainer-2")
    assert bed.waiting("one") == [20]
    assert any(f"what {RUN} has on scratch is left there" in line for line in bed.told)


def test_links_and_files_are_no_attempts(bed: Bed, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere/attempt"
    save(elsewhere, {"mine": b"x"})
    (bed.root / "linked").symlink_to(elsewhere.parent)
    (bed.root / RUN / "linked").symlink_to(elsewhere)
    bed.restore("two")
    assert (elsewhere / "mine").exists()


def test_the_directory_must_be_the_attempts_own(tmp_path: Path) -> None:
    """Everything beside it may be removed."""
    for directory in ("checkpoints", "trainer-2/one/checkpoints", f"{RUN}/checkpoints", f"{RUN}/../{RUN}/checkpoints"):
        with pytest.raises(InputFault, match="--attempts"):
            shared.look(
                tmp_path, tmp_path / directory, RUN, begins=True, unix_clock=lambda: 0.0, report=lambda _line: None
            )


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_any_change_of_the_disk_a_restore_harms_neither_itself_nor_the_save_that_waits(
    tmp_path: Path, moment: Moment
) -> None:
    number, ended = 0, False
    while not ended:
        bed = made(tmp_path / f"{number}")
        one, two = bed.scratch("one"), bed.scratch("two")
        save(bed.scratch("zero"), content(1, 5))  # of an attempt that never had the lease
        saved = content(1, 20)
        with dying_on_disk(number, moment):
            try:
                bed.restore("two")
                ended = True
            except Crash:
                pass
        assert tracker(two) is None or (tracker(two), held(two)) == ("10", content(1, 10)), number
        assert saved.items() <= held(one).items(), number
        bed.restore("two")
        assert (tracker(two), held(two)) == ("10", content(1, 10)), number
        assert not bed.scratch("zero").exists(), number
        bed.upload("one")
        found = newest(bed.service)
        assert found is not None
        assert found.position == Position(attempt=1, step=20), number
        number += 1
    assert number > 40
