"""Restoring: all of one checkpoint, nothing of an attempt that died, and nothing fetched that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from moerl_runtime.checkpoint import handover, restore, upload
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.checkpoint.restore import NoSpace
from moerl_runtime.checkpoint.transfer import Damaged
from moerl_runtime.faults import InputFault

from .bed import PREFIX, RUN, Inline, acquire, announce, bring, content, held, moving, newest, save, tracker, uploader
from .fake_s3 import BUCKET, Client, FakeS3


@pytest.fixture
def service(tmp_path: Path) -> FakeS3:
    """Step 10 is committed."""
    service = FakeS3()
    acquire(service.client())
    save(tmp_path / "origin", content(1, 10))
    announce(tmp_path / "origin", 1, 10)
    upload.work(uploader(service.client(), tmp_path / "origin"))
    return service


def fetched(client: Client) -> int:
    """Objects that were downloaded: the first three reads are the attempt's record and the marker."""
    return client.made.count("get_object")


def test_a_run_without_checkpoints_begins_anew_whatever_lies_on_scratch(tmp_path: Path) -> None:
    service = FakeS3()
    save(tmp_path, content(1, 30))
    handover.write(tmp_path / "checkpoints" / handover.TRACKER_NAME, "30")
    assert bring(service.client(), tmp_path) is None
    assert tracker(tmp_path) is None
    assert not (tmp_path / "checkpoints/iter_0000030").exists()
    assert not (tmp_path / "hf/30").exists()
    assert handover.restored(tmp_path / "checkpoints") is None


def test_what_is_on_scratch_already_is_proven_and_not_fetched(service: FakeS3, tmp_path: Path) -> None:
    first = service.client()
    bring(first, tmp_path / "scratch")
    again = service.client()
    bring(again, tmp_path / "scratch")
    assert fetched(first) > 10 > fetched(again)
    assert held(tmp_path / "scratch") == content(1, 10)
    (tmp_path / "scratch/checkpoints/iter_0000010/common.pt").write_bytes(b"1-10-damaged")
    (tmp_path / "scratch/checkpoints/iter_0000010/__9_0.distcp").write_bytes(b"of a save that died")
    repaired = service.client()
    bring(repaired, tmp_path / "scratch")
    assert fetched(repaired) == fetched(again) + 1
    assert held(tmp_path / "scratch") == content(1, 10)


def test_other_files_of_scratch_are_left_alone(service: FakeS3, tmp_path: Path) -> None:
    others = {"checkpoints/notes.txt": b"mine", "weights/current": b"x", "hf/readme": b"y"}
    save(tmp_path / "scratch", others)
    bring(service.client(), tmp_path / "scratch")
    assert held(tmp_path / "scratch") == content(1, 10) | others


def test_a_scratch_that_is_too_small_is_refused_before_anything_is_fetched(service: FakeS3, tmp_path: Path) -> None:
    client = service.client()
    with pytest.raises(NoSpace, match="MiB free") as told:
        restore.restore(
            client,
            BUCKET,
            PREFIX,
            RUN,
            tmp_path / "scratch/checkpoints",
            files=Inline(),
            moves=moving(client),
            free_bytes=lambda _path: 100,
        )
    assert told.value.exit_code == 6
    assert held(tmp_path / "scratch") == {}


def test_a_damaged_object_ends_the_restore_and_the_tracker_stays_away(service: FakeS3, tmp_path: Path) -> None:
    key = next(key for key in service.objects if key.endswith("__0_0.distcp"))
    body = service.objects[key].body
    service.objects[key].body = body[:-1] + b"?"
    with pytest.raises(Damaged, match=r"__0_0\.distcp"):
        bring(service.client(), tmp_path / "scratch")
    assert tracker(tmp_path / "scratch") is None
    service.objects[key].body = body
    bring(service.client(), tmp_path / "scratch")
    assert held(tmp_path / "scratch") == content(1, 10)


def test_an_older_one_can_be_restored_by_its_position(service: FakeS3, tmp_path: Path) -> None:
    older = newest(service)
    save(tmp_path / "origin", content(1, 20))
    announce(tmp_path / "origin", 1, 20)
    upload.work(uploader(service.client(), tmp_path / "origin"))
    bring(service.client(), tmp_path / "scratch")
    client = service.client()
    restore.restore(
        client,
        BUCKET,
        PREFIX,
        RUN,
        tmp_path / "scratch/checkpoints",
        files=Inline(),
        moves=moving(client),
        free_bytes=restore.free_bytes,
        found=older,
    )
    assert tracker(tmp_path / "scratch") == "10"
    assert handover.restored(tmp_path / "scratch/checkpoints") == Position(attempt=1, step=10)
    assert not (tmp_path / "scratch/checkpoints/iter_0000020").exists()
    assert acquire(client, resumed_from=handover.restored(tmp_path / "scratch/checkpoints")).resumed_from == Position(
        attempt=1, step=10
    )


def test_a_name_that_leads_out_of_scratch_is_refused(service: FakeS3, tmp_path: Path) -> None:
    key = next(key for key in service.objects if key.endswith("complete.json"))
    service.objects[key].body = service.objects[key].body.replace(
        b"checkpoints/iter_0000010/common.pt", b"checkpoints/../../../../common.pt"
    )
    with pytest.raises(InputFault, match="leads out of scratch"):
        bring(service.client(), tmp_path / "scratch")
    assert tracker(tmp_path / "scratch") is None


def test_a_directory_that_is_in_the_way_of_a_file_does_not_stop_it(service: FakeS3, tmp_path: Path) -> None:
    (tmp_path / "scratch/checkpoints/iter_0000010/common.pt").mkdir(parents=True)
    bring(service.client(), tmp_path / "scratch")
    assert held(tmp_path / "scratch") == content(1, 10)
