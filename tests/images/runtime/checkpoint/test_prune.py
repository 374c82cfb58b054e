"""Pruning keeps what a resume may need: the newest of the lineage, pinned ones, and whatever may still become complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime.checkpoint import prune, resolve, upload
from moerl_runtime.checkpoint.layout import Announcement, Position
from moerl_runtime.faults import InputFault
from moerl_runtime.lease import LeaseLost

from .bed import PREFIX, RUN, acquire, assert_whole, content, items, save, uploader
from .fake_s3 import BUCKET, FakeS3

WHERE = (BUCKET, PREFIX, RUN)


def committed(service: FakeS3, scratch: Path, attempt: int, *steps: int) -> None:
    """Commits without the pruning that the uploader does afterwards."""
    for step in steps:
        save(scratch, content(attempt, step))
        worker = uploader(service.client(), scratch)
        announcement = Announcement(
            run=RUN,
            attempt=attempt,
            step=step,
            nodes=1,
            committer=worker.node,
            items=tuple(str(item) for item in items(step)),
            metadata={"cursor": step},
        )
        upload.upload_node(worker, announcement)
        upload.commit(worker, announcement)


def begun(service: FakeS3, attempt: int, step: int) -> None:
    """A save of which something is stored and that is not complete, with a part of a file under way."""
    client, below = service.client(), f"{PREFIX}{RUN}/steps/{attempt:06d}/{step:08d}/"
    client.put_object(Bucket=BUCKET, Key=f"{below}announced.json", Body=b"{}")
    client.create_multipart_upload(
        Bucket=BUCKET, Key=f"{below}files/x", ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
    )


def left(service: FakeS3) -> list[tuple[int, int]]:
    return [(found.attempt, found.step) for found in prune.positions(service.client(), *WHERE)]


@pytest.fixture
def service(tmp_path: Path) -> FakeS3:
    """Attempt 1 committed 10, 20, 30 and left 40 unfinished; attempt 2 resumed 20, committed 25, and is at 35."""
    service = FakeS3()
    acquire(service.client())
    committed(service, tmp_path / "1", 1, 10, 20, 30)
    begun(service, 1, 40)
    service.now += 1000
    acquire(service.client(), resumed_from=Position(attempt=1, step=20))
    begun(service, 2, 22)
    committed(service, tmp_path / "2", 2, 25)
    begun(service, 2, 35)
    return service


def test_the_newest_of_the_lineage_stay_and_abandoned_ones_go(service: FakeS3, tmp_path: Path) -> None:
    done = prune.prune(service.client(), *WHERE, retain_last=2)
    assert left(service) == [(1, 20), (2, 25), (2, 35)]
    assert (done.uploads, len(done.positions)) == (2, 4)
    assert [upload.key for upload in service.uploads.values()] == [f"{PREFIX}{RUN}/steps/000002/00000035/files/x"]
    assert assert_whole(service, tmp_path / "restored") == (2, 25)


def test_a_dry_run_removes_nothing_and_says_the_same(service: FakeS3) -> None:
    before = (dict(service.objects), dict(service.uploads))
    told = prune.prune(service.client(), *WHERE, retain_last=2, dry_run=True)
    assert (service.objects, service.uploads) == before
    assert prune.prune(service.client(), *WHERE, retain_last=2).positions == told.positions


def test_a_pinned_one_stays_until_it_is_unpinned(service: FakeS3) -> None:
    client, position = service.client(), Position(attempt=1, step=10)
    prune.pin(client, *WHERE, position)
    prune.prune(client, *WHERE, retain_last=1)
    assert left(service) == [(1, 10), (2, 25), (2, 35)]
    prune.unpin(client, *WHERE, position)
    prune.prune(client, *WHERE, retain_last=1)
    assert left(service) == [(2, 25), (2, 35)]


def test_only_complete_ones_are_pinned_and_only_pinned_ones_unpinned(service: FakeS3) -> None:
    with pytest.raises(InputFault, match="is no complete checkpoint"):
        prune.pin(service.client(), *WHERE, Position(attempt=1, step=40))
    with pytest.raises(InputFault, match="is not pinned"):
        prune.unpin(service.client(), *WHERE, Position(attempt=1, step=10))


def test_nothing_goes_while_nothing_is_complete() -> None:
    service = FakeS3()
    acquire(service.client())
    begun(service, 1, 10)
    assert prune.prune(service.client(), *WHERE, retain_last=1).objects == 0
    assert left(service) == [(1, 10)]


def test_the_last_one_cannot_be_asked_away(service: FakeS3) -> None:
    with pytest.raises(InputFault, match="would remove the only checkpoint"):
        prune.prune(service.client(), *WHERE, retain_last=0)


def test_nothing_goes_while_an_attempt_has_the_lease_and_no_record(service: FakeS3) -> None:
    acquire(service.client())
    del service.objects[f"{PREFIX}{RUN}/attempts/000003.json"]
    before = dict(service.objects)
    with pytest.raises(LeaseLost):
        prune.prune(service.client(), *WHERE, retain_last=1)
    assert service.objects == before


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_a_resume_finds_is_the_same_before_and_after(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    service, folder = FakeS3(), tmp_path_factory.mktemp("runs")
    for attempt in range(1, data.draw(st.integers(1, 3)) + 1):
        line = resolve.line(service.client(), *WHERE)
        beginning = data.draw(st.sampled_from(line)) if line else None
        acquire(service.client(), resumed_from=beginning)
        for step in sorted(data.draw(st.sets(st.integers(1, 5), max_size=3))):
            if data.draw(st.booleans()):
                committed(service, folder / str(attempt), attempt, step)
            else:
                begun(service, attempt, step)
    retain_last = data.draw(st.integers(1, 3))
    before = resolve.line(service.client(), *WHERE)
    prune.prune(service.client(), *WHERE, retain_last=retain_last)
    assert resolve.line(service.client(), *WHERE) == before[:retain_last]
    assert_whole(service, folder / "restored")
    assert prune.prune(service.client(), *WHERE, retain_last=retain_last).objects == 0


def test_what_is_no_checkpoint_is_never_taken_for_one_and_stops_nothing(tmp_path: Path) -> None:
    service = FakeS3()
    acquire(service.client())
    committed(service, tmp_path / "scratch", 1, 10, 20)
    marker = service.objects[f"{PREFIX}{RUN}/steps/000001/00000020/complete.json"].body
    below = f"{PREFIX}{RUN}/"
    strays = {
        f"{below}steps/000001/99/complete.json",
        f"{below}steps/2/00000099/complete.json",
        f"{below}steps/copy/00000099/complete.json",
        f"{below}steps/000001/00000099 (copy)/complete.json",
        f"{below}attempts/000009.json.old",
        f"{below}attempts/9.json",
        f"{below}attempts/note",
        f"{below}pins/please keep",
    }
    for key in strays:
        service.client().put_object(Bucket=BUCKET, Key=key, Body=marker)
    assert resolve.line(service.client(), *WHERE) == [Position(attempt=1, step=20), Position(attempt=1, step=10)]
    assert assert_whole(service, tmp_path / "restored") == (1, 20)
    pruned = prune.prune(service.client(), *WHERE, retain_last=1)
    assert pruned.positions == (Position(attempt=1, step=10),)
    assert strays <= set(service.objects)
    service.client().delete_object(Bucket=BUCKET, Key=f"{below}lease.json")
    assert acquire(service.client()).attempt.number == 2
