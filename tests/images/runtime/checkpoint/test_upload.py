"""The uploader: nodes meet before the commit, nothing incomplete is committed, and the newest save is always the next."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from moerl_runtime.checkpoint import handover, upload
from moerl_runtime.protocol import Attempt

from .bed import RUN, Clock, acquire, announce, assert_whole, bring, content, held, newest, save, uploader
from .fake_s3 import FakeS3, refused

FIRST = Attempt(run=RUN, number=1)


@pytest.fixture
def service() -> FakeS3:
    service = FakeS3()
    acquire(service.client())
    return service


def failed(scratch: Path, step: int) -> str:
    """Why a save was not committed, as the trainer reads it."""
    with pytest.raises(handover.NotCommitted) as told:
        handover.await_committed(
            scratch / "checkpoints",
            attempt=FIRST,
            step=step,
            deadline_seconds=0,
            clock=Clock(),
            wait=Clock().wait,
        )
    return str(told.value)


def test_files_of_all_nodes_are_one_checkpoint(service: FakeS3, tmp_path: Path) -> None:
    nodes = [tmp_path / f"node-{number}" for number in range(3)]
    for number, scratch in enumerate(nodes):
        save(scratch, content(1, 10, nodes=3, node=number))
    announce(nodes[0], 1, 10, nodes=3)
    others = [uploader(service.client(), nodes[number], node=f"node-{number}", several_nodes=True) for number in (1, 2)]
    clock = Clock()

    def wait(seconds: float) -> None:
        # The committer waits: one node after the other uploads what it has.
        assert newest(service) is None
        clock.wait(seconds)
        if others:
            assert upload.work(others.pop())

    upload.work(uploader(service.client(), nodes[0], node="node-0", clock=clock, wait=wait, several_nodes=True))
    found = bring(service.client(), tmp_path / "restored")
    assert found is not None
    assert found.complete.nodes == ("node-0", "node-1", "node-2")
    expected = {name: body for number in range(3) for name, body in content(1, 10, nodes=3, node=number).items()}
    assert held(tmp_path / "restored") == expected


def test_other_nodes_upload_a_save_once(service: FakeS3, tmp_path: Path) -> None:
    scratch = tmp_path / "node-1"
    save(tmp_path / "node-0", content(1, 10, nodes=2))
    save(scratch, content(1, 10, nodes=2, node=1))
    announce(tmp_path / "node-0", 1, 10, nodes=2)
    committer = uploader(service.client(), tmp_path / "node-0", several_nodes=True, barrier_seconds=5.0)
    other = uploader(service.client(), scratch, node="node-1", several_nodes=True)
    assert not upload.work(other)
    upload.work(committer)
    assert upload.work(other)
    assert not upload.work(other)


def test_a_save_that_another_node_cannot_send_ends_neither_it_nor_the_next_one(service: FakeS3, tmp_path: Path) -> None:
    committer, scratch = tmp_path / "node-0", tmp_path / "node-1"
    save(committer, content(1, 10, nodes=2))
    save(scratch, content(1, 10, nodes=2, node=1))
    (scratch / "checkpoints" / "iter_0000010" / "link").symlink_to(tmp_path)
    lines: list[str] = []
    other = uploader(service.client(), scratch, node="node-1", several_nodes=True, report=lines.append)
    announce(committer, 1, 10, nodes=2)
    upload.work(uploader(service.client(), committer, several_nodes=True, barrier_seconds=5.0))
    assert not upload.work(other)
    assert "is no plain file" in lines[-1]
    save(committer, content(1, 20, nodes=2))
    save(scratch, content(1, 20, nodes=2, node=1))
    announce(committer, 1, 20, nodes=2)
    clock = Clock()

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        upload.work(other)

    upload.work(uploader(service.client(), committer, several_nodes=True, clock=clock, wait=wait))
    found = newest(service)
    assert found is not None
    assert found.step == 20


def test_a_node_that_does_not_come_fails_the_save_and_leaves_the_old_checkpoint(
    service: FakeS3, tmp_path: Path
) -> None:
    scratch = tmp_path / "node-0"
    save(scratch, content(1, 10))
    announce(scratch, 1, 10)
    upload.work(uploader(service.client(), scratch))
    save(scratch, content(1, 20, nodes=2))
    announce(scratch, 1, 20, nodes=2)
    clock = Clock()
    upload.work(uploader(service.client(), scratch, clock=clock, barrier_seconds=90.0))
    assert 90 <= clock.seconds < 100
    assert "1 of 2 nodes had uploaded their files after 90 s" in failed(scratch, 20)
    assert assert_whole(service, tmp_path / "restored") == (1, 10)


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("checkpoints/iter_0000010/__1_0.distcp", "__1_0.distcp"),
        ("checkpoints/iter_0000010/.metadata", ".metadata"),
        ("checkpoints/rollout/global_dataset_state_dict_10.pt", "global_dataset_state_dict_10.pt"),
    ],
)
def test_a_save_that_lacks_a_file_is_not_committed(service: FakeS3, tmp_path: Path, missing: str, told: str) -> None:
    files = content(1, 10)
    save(tmp_path, files)
    announce(tmp_path, 1, 10)
    (tmp_path / missing).unlink()
    upload.work(uploader(service.client(), tmp_path))
    assert newest(service) is None
    assert told in failed(tmp_path, 10)


def test_two_files_of_one_name_are_not_committed(service: FakeS3, tmp_path: Path) -> None:
    for number in (0, 1):
        scratch = tmp_path / f"node-{number}"
        save(scratch, content(1, 10, nodes=2, node=number))
        save(scratch, {"checkpoints/iter_0000010/common.pt": f"of node {number}".encode()})
    announce(tmp_path / "node-0", 1, 10, nodes=2)
    other = uploader(service.client(), tmp_path / "node-1", node="node-1", several_nodes=True)
    committer = uploader(
        service.client(), tmp_path / "node-0", wait=lambda _seconds: upload.work(other), several_nodes=True
    )
    upload.work(committer)
    assert newest(service) is None
    assert "common.pt differs between nodes" in failed(tmp_path / "node-0", 10)


def test_a_save_that_a_newer_one_overtakes_is_dropped(service: FakeS3, tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, content(1, step))
        announce(tmp_path, 1, step)
    upload.work(uploader(service.client(), tmp_path))
    assert assert_whole(service, tmp_path.parent / "restored-newest") == (1, 30)
    assert handover.waiting(tmp_path / "checkpoints") == []
    # The trainer that waited for an older one has what it needs.
    outcome = handover.await_committed(
        tmp_path / "checkpoints", attempt=FIRST, step=10, deadline_seconds=0, clock=Clock(), wait=Clock().wait
    )
    assert outcome.step == 30


def test_a_file_that_is_written_to_meanwhile_is_not_committed_as_it_was(service: FakeS3, tmp_path: Path) -> None:
    save(tmp_path, content(1, 10))
    announce(tmp_path, 1, 10)
    changed = tmp_path / "checkpoints/iter_0000010/common.pt"
    writes = 0

    def before(operation: str) -> None:
        nonlocal writes
        if operation == "put_object" and str(client.arguments["Key"]).endswith("common.pt") and writes < 3:
            writes += 1
            changed.write_bytes(b"1-10-common" + bytes(writes))

    client = service.client(before=before)
    lines: list[str] = []
    stop = Event()
    stop.set()
    upload.serve(uploader(client, tmp_path, report=lines.append), stop)
    # Each time S3 refused it, since it was not what had been read.
    assert sum("trying again" in line for line in lines) == 3
    found = newest(service)
    assert found is not None
    bring(service.client(), tmp_path.parent / "restored-changed")
    assert (
        tmp_path.parent / "restored-changed/checkpoints/iter_0000010/common.pt"
    ).read_bytes() == changed.read_bytes()


def test_saves_on_scratch_go_once_a_newer_one_is_committed_but_never_what_was_restored(
    service: FakeS3, tmp_path: Path
) -> None:
    def committed(attempt: int, step: int) -> None:
        save(tmp_path, content(attempt, step))
        announce(tmp_path, attempt, step)
        upload.work(uploader(service.client(), tmp_path, retain_last=5))

    committed(1, 10)
    service.now += 1000
    acquire(service.client(), holder="successor")
    bring(service.client(), tmp_path)
    for step in (20, 30, 40):
        committed(2, step)
    left = {path.name for path in (tmp_path / "checkpoints").glob("iter_*")}
    assert left == {"iter_0000010", "iter_0000030", "iter_0000040"}
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {"10", "30", "40"}


def test_outages_are_waited_out(service: FakeS3, tmp_path: Path) -> None:
    save(tmp_path, content(1, 10))
    announce(tmp_path, 1, 10)
    outages: list[Any] = [refused("SlowDown", 503, "PutObject"), OSError("no route"), refused("500", 500, "Head")]

    def before(operation: str) -> None:
        if operation in ("put_object", "upload_part") and outages:
            raise outages.pop()

    stop = Event()
    stop.set()
    clock = Clock()
    upload.serve(uploader(service.client(before=before), tmp_path, clock=clock), stop)
    assert clock.seconds == 3 * upload.RETRY_SECONDS
    assert assert_whole(service, tmp_path.parent / "restored-outage") == (1, 10)


def test_a_file_that_is_written_to_after_it_was_sent_is_sent_again(service: FakeS3, tmp_path: Path) -> None:
    save(tmp_path, content(1, 10))
    announce(tmp_path, 1, 10)
    changed = tmp_path / "hf/10/model.safetensors"
    writes = 0

    def after(operation: str) -> None:
        nonlocal writes
        if operation == "complete_multipart_upload" and "/hf/" in client.arguments["Key"] and writes < 2:
            writes += 1
            changed.write_bytes(bytes(200 + writes))

    client = service.client(after=after)
    lines: list[str] = []
    stop = Event()
    stop.set()
    upload.serve(uploader(client, tmp_path, report=lines.append), stop)
    assert sum("was written to while it was uploaded" in line for line in lines) == 2
    bring(service.client(), tmp_path.parent / "restored-sent")
    assert (tmp_path.parent / "restored-sent/hf/10/model.safetensors").read_bytes() == bytes(202)


def test_a_signal_during_an_upload_lets_it_end(service: FakeS3, tmp_path: Path) -> None:
    save(tmp_path, content(1, 10))
    announce(tmp_path, 1, 10)
    stop = Event()
    upload.serve(uploader(service.client(before=lambda _operation: stop.set()), tmp_path), stop)
    assert assert_whole(service, tmp_path.parent / "restored-signal") == (1, 10)


def test_a_link_is_not_followed(service: FakeS3, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    secret = tmp_path / "secret"
    secret.write_text("not to be uploaded")
    save(scratch, content(1, 10))
    (scratch / "checkpoints/iter_0000010/link").symlink_to(secret)
    announce(scratch, 1, 10)
    upload.work(uploader(service.client(), scratch))
    assert newest(service) is None
    assert "is no plain file" in failed(scratch, 10)
