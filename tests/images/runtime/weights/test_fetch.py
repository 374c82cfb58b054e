"""What an engine gets is the version, byte for byte, whatever the node had, and whoever died on the way."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime import protocol, store
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.weights import cache, fetch, manifest, pointer
from moerl_runtime.weights.transfer import Missing
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, Crash, FakeS3

from .bed import BASE, PREFIX, S3, Dies, Node, Trainer, changed, current, state_of


def published(folder: Path, versions: int, *, service: FakeS3 | None = None, **options: Any) -> tuple[FakeS3, Trainer]:
    """A run that published some versions, each third of them with an anchor."""
    service = service or FakeS3()
    trainer = Trainer(S3(service), folder, anchor_every=2, **{"keep_versions": 100, **options})
    trainer.begin()
    for version in range(1, versions + 1):
        trainer.step(anchor=version % 3 == 0)
    return service, trainer


def at(trainer: Trainer, version: int) -> protocol.Current:
    return protocol.Current(
        run=trainer.attempt.run,
        attempt=trainer.attempt.number,
        version=version,
        manifest=manifest.version_key(PREFIX, trainer.attempt, version) if version else None,
    )


@given(wanted=st.lists(st.integers(0, 8), min_size=1, max_size=6), keep=st.integers(0, 3))
@settings(deadline=None, max_examples=25)
def test_every_version_comes_out_right_in_whatever_order_it_is_asked_for(wanted: list[int], keep: int) -> None:
    """From the base model, an anchor, or a version that the node has; back to an older one as well."""
    with TemporaryDirectory() as name:
        service, trainer = published(Path(name), 8)
        node = Node(Path(name))
        for version in wanted:
            directory = node.bring(S3(service), at(trainer, version), keep=keep)
            assert state_of(directory) == trainer.states[version]
        assert state_of(node.base) == BASE
        assert not list((node.models / cache.POLICY).glob("*/*/.*"))


def test_a_version_that_is_there_costs_no_request(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 2)
    node = Node(tmp_path)
    first = node.bring(S3(service), at(trainer, 2))

    def refuse(operation: str) -> None:
        raise AssertionError(operation)

    assert node.bring(S3(service, refuse), at(trainer, 2)) == first


def test_the_next_version_reads_its_delta_alone(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 5)
    node, s3 = Node(tmp_path), S3(service)
    node.bring(s3, at(trainer, 4))
    s3.made.clear()
    node.bring(s3, at(trainer, 5))
    assert s3.made.count("download_file") == 2
    assert s3.made.count("get_object") == 1


def test_killed_at_any_moment_the_next_call_repairs(tmp_path: Path) -> None:
    """Before and after every call to S3 and in the middle of every file."""
    service, trainer = published(tmp_path / "trainer", 5)
    moment = 0
    while True:
        node = Node(tmp_path / str(moment))
        dies = Dies(moment)
        try:
            node.bring(S3(service, dies), at(trainer, 5))
        except Crash:
            for version in cache.versions(node.models):
                assert state_of(version) == trainer.states[int(version.name)]
        else:
            break
        assert state_of(node.bring(S3(service), at(trainer, 5))) == trainer.states[5]
        assert not list((node.models / cache.POLICY).glob("*/*/.*"))
        moment += 1
    assert moment > 20


@pytest.mark.parametrize("function", ["apply", "finish", "clean", "evict"])
@pytest.mark.parametrize("late", [False, True])
def test_killed_around_every_step_on_the_disk_the_next_call_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, late: bool
) -> None:
    service, trainer = published(tmp_path, 5)
    node = Node(tmp_path)
    holder = fetch.delta if function == "apply" else fetch.cache
    real = getattr(holder, function)

    def dies(*arguments: Any, **named: Any) -> None:
        if late:
            real(*arguments, **named)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(holder, function, dies)
        with pytest.raises(Crash):
            node.bring(S3(service), at(trainer, 5))
    for version in cache.versions(node.models):
        assert state_of(version) == trainer.states[int(version.name)]
    assert state_of(node.bring(S3(service), at(trainer, 5))) == trainer.states[5]


@pytest.mark.parametrize("step", ["_place", "_change"])
@pytest.mark.parametrize("moved_to", [3, 4, 5, 6])
def test_killed_inside_the_deltas_no_later_version_holds_what_was_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, moved_to: int
) -> None:
    """The pointer moves on meanwhile, to a version whose anchor is the one that was being made."""
    service, trainer = published(tmp_path, 6)
    real = getattr(fetch.delta, step)
    for survived in range(4):
        node = Node(tmp_path / f"{survived}")
        node.bring(S3(service), at(trainer, 2))
        left = survived

        def dies(*arguments: Any, **named: Any) -> None:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            real(*arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(fetch.delta, step, dies)
            with suppress(Crash):
                node.bring(S3(service), at(trainer, 3), workers=1)
        for version in (moved_to, 3):
            assert state_of(node.bring(S3(service), at(trainer, version))) == trainer.states[version]
        for path in cache.versions(node.models):
            assert state_of(path) == trainer.states[int(path.name)]


def test_what_was_downloaded_before_a_kill_is_not_read_again(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 3)
    node = Node(tmp_path)
    key = manifest.anchor_key(PREFIX, trainer.attempt, 3)
    whole = protocol.Current(run=trainer.attempt.run, attempt=1, version=3, manifest=key)
    dead = threading.Event()

    def die_in_the_second_file(operation: str) -> None:
        if dead.is_set() or (operation == "download_file in the middle" and s3.made.count("download_file") == 2):
            dead.set()
            raise Crash

    s3 = S3(service, die_in_the_second_file)
    with pytest.raises(Crash):
        node.bring(s3, whole)
    again = S3(service)
    assert state_of(node.bring(again, whole)) == trainer.states[3]
    assert again.made.count("download_file") == 2


def test_every_flipped_byte_in_the_bucket_is_found(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 3)
    for key in [key for key in service.objects if "/00000003/full/" in key or "/00000002/" in key]:
        if key.endswith(protocol.MANIFEST_NAME):
            continue
        found = service.objects[key]
        whole = found.body
        version = 3 if "/full/" in key else 2
        wanted = at(trainer, version)
        if version == 3:
            wanted = protocol.Current(
                run=wanted.run, attempt=1, version=3, manifest=manifest.anchor_key(PREFIX, trainer.attempt, 3)
            )
        for number, position in enumerate(range(0, len(whole), max(1, len(whole) // 8))):
            found.body = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
            node = Node(tmp_path / f"{len(whole)}-{key.rsplit('/', 1)[1]}-{number}")
            with pytest.raises(RuntimeFault, match="differs in chunk 0"):
                node.bring(S3(service), wanted)
            found.body = whole
            assert state_of(node.bring(S3(service), wanted)) == trainer.states[version]


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_manifest_that_is_cut_off_is_no_manifest(tmp_path: Path, length: int) -> None:
    service, trainer = published(tmp_path, 1)
    found = service.objects[manifest.version_key(PREFIX, trainer.attempt, 1)]
    found.body = found.body[:length]
    with pytest.raises(InputFault):
        Node(tmp_path).bring(S3(service), at(trainer, 1))


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../b", "", "x y", "a\\b"])
def test_a_manifest_cannot_write_outside_its_directory(tmp_path: Path, name: str) -> None:
    service, trainer = published(tmp_path, 1)
    found = service.objects[manifest.version_key(PREFIX, trainer.attempt, 1)]
    found.body = found.body.replace(
        b'"name":"model.safetensors.index.json"', b'"name":"%s"' % name.replace("\\", "\\\\").encode()
    )
    with pytest.raises(InputFault, match="is no relative path"):
        Node(tmp_path).bring(S3(service), at(trainer, 1))


def test_a_missing_version_is_waited_for_and_then_named(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 2)
    key = manifest.version_key(PREFIX, trainer.attempt, 2)
    hidden = service.objects.pop(key)
    node = Node(tmp_path)
    with pytest.raises(Missing, match="Read the pointer anew"):
        node.bring(S3(service), at(trainer, 2), deadline_seconds=20.0)
    assert 20.0 <= node.waited < 30.0
    node.waited = 0.0

    def comes_back(_: str) -> None:
        if node.waited > 5.0:
            service.objects[key] = hidden

    assert state_of(node.bring(S3(service, comes_back), at(trainer, 2))) == trainer.states[2]


def test_a_file_that_was_pruned_meanwhile_is_missing_not_broken(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 2)
    del service.objects[protocol.version_prefix(PREFIX, trainer.attempt, 1) + "model.safetensors.index.json"]
    with pytest.raises(Missing):
        Node(tmp_path).bring(S3(service), at(trainer, 2), deadline_seconds=1.0)


def test_a_full_disk_is_named_with_its_numbers_and_nothing_is_left(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 2)
    node = Node(tmp_path)
    with pytest.raises(RuntimeFault, match=r"has 0\.0 GiB free, and the version needs 2\.0"):
        node.bring(S3(service), at(trainer, 2), free_bytes=lambda _: 0)
    assert node.versions() == []


@pytest.mark.parametrize("function", ["apply", "read_index"])
def test_a_disk_that_fills_up_meanwhile_is_named_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    service, trainer = published(tmp_path, 2)
    node = Node(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(fetch.delta, function, full)
        with pytest.raises(RuntimeFault, match="the version needs"):
            node.bring(S3(service), at(trainer, 2))
    assert node.versions() == []
    assert state_of(node.bring(S3(service), at(trainer, 2))) == trainer.states[2]


def test_older_versions_make_room_when_the_disk_asks_for_it(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 4)
    node = Node(tmp_path)
    for version in (1, 2, 3):
        node.bring(S3(service), at(trainer, version), keep=10)

    def free(_: Path) -> int:
        return 0 if len(node.versions()) > 1 else 2**40

    node.bring(S3(service), at(trainer, 4), keep=10, free_bytes=free)
    assert node.versions() == ["000001/00000003", "000001/00000004"]


def test_what_an_engine_has_loaded_stays(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 4)
    node = Node(tmp_path)
    with cache.holding(node.bring(S3(service), at(trainer, 1))) as loaded:
        for version in (2, 3, 4):
            node.bring(S3(service), at(trainer, version), keep=0)
        assert state_of(loaded) == trainer.states[1]
        assert node.versions() == ["000001/00000001", "000001/00000003", "000001/00000004"]
    node.bring(S3(service), at(trainer, 2), keep=0)
    assert "000001/00000003" not in node.versions()


def test_pods_of_a_node_make_a_version_once(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 4)
    node = Node(tmp_path)
    downloads: list[str] = []
    found: list[Path] = []
    start = threading.Barrier(3)

    def pod() -> None:
        s3 = S3(service, lambda operation: downloads.append(operation) if operation == "download_file" else None)
        start.wait()
        found.append(node.bring(s3, at(trainer, 4), clock=lambda: 0.0, wait=threading.Event().wait))

    pods = [threading.Thread(target=pod) for _ in range(3)]
    for each in pods:
        each.start()
    for each in pods:
        each.join(60)
    assert found == [cache.version_path(node.models, trainer.attempt, 4)] * 3
    assert state_of(found[0]) == trainer.states[4]
    # Each download is seen before and after it: three files of the anchor, two of the delta.
    assert len(downloads) == 2 * 5


def test_a_node_whose_lock_is_never_given_back_says_so(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 1)
    node = Node(tmp_path)
    cache.open_to_agents(node.models)
    with cache.locked(node.models / cache.POLICY, deadline_seconds=1.0), pytest.raises(RuntimeFault, match="is locked"):
        node.bring(S3(service), at(trainer, 1))
    assert node.waited >= fetch.LOCK_SECONDS


def test_versions_of_an_older_attempt_are_no_start_for_a_newer_one(tmp_path: Path) -> None:
    """Version 1 of two attempts are different weights under one number."""
    service, first = published(tmp_path, 2)
    node = Node(tmp_path)
    node.bring(S3(service), at(first, 2))
    resumed = Trainer(S3(service), tmp_path, attempt=2, base=changed(BASE, 77))
    resumed.begin(resumed=True)
    resumed.step()
    resumed.step()
    assert state_of(node.bring(S3(service), current(S3(service)))) == resumed.states[2]


def test_without_the_base_model_it_says_what_to_run(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 1)
    node = Node(tmp_path)
    cache.discard(node.base)
    with pytest.raises(RuntimeFault, match="weights fetch"):
        node.bring(S3(service), at(trainer, 0))


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    service, trainer = published(tmp_path, 2)
    wrong = protocol.Current(
        run=trainer.attempt.run, attempt=1, version=1, manifest=manifest.version_key(PREFIX, trainer.attempt, 2)
    )
    with pytest.raises(InputFault, match="lies where"):
        Node(tmp_path).bring(S3(service), wrong)


def test_against_a_real_client_what_is_fetched_is_what_was_published(tmp_path: Path, local_aws: str) -> None:
    """boto3's own transfers, files of several parts included."""
    s3 = store.client("us-west-2", local_aws)
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    base = BASE | {"embed": bytes(range(256)) * (40 * 2**20 // 256)}
    trainer, node = Trainer(s3, tmp_path, base=base, anchor_every=2, workers=2), Node(tmp_path, base)
    trainer.begin()
    for version in range(1, 4):
        trainer.step(anchor=version == 2)
    found = pointer.read_current(s3, BUCKET, PREFIX)
    assert found is not None
    assert pointer.read_current(s3, BUCKET, PREFIX, found.etag) is None
    directory = node.bring(s3, found.current, workers=2)
    assert state_of(directory) == trainer.states[3]
    trainer.publisher.close()
