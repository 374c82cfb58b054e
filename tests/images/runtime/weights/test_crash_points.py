"""A publisher that dies at any moment leaves a version that engines can load, and a run that can go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from moerl_runtime import protocol
from moerl_runtime.weights import manifest, pointer
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, Crash, FakeS3

from .bed import BASE, PREFIX, S3, Dies, Node, State, Trainer, changed, current, state_of

STEPS = 3
RESUMED = changed(BASE, 50)


def run(s3: S3, folder: Path, *, attempt: int, base: State = BASE) -> Trainer:
    """Begins, publishes, anchors the second version, and prunes on the way."""
    trainer = Trainer(s3, folder, attempt=attempt, base=base, keep_versions=1, anchor_every=2)
    try:
        trainer.begin(resumed=attempt > 1)
        for version in range(1, STEPS + 1):
            trainer.step(anchor=version == 2)
    finally:
        trainer.publisher.close()
    return trainer


def states(base: State) -> dict[int, State]:
    found = {0: base}
    for version in range(1, STEPS + 1):
        found[version] = changed(found[version - 1], version)
    return found


def assert_manifests_are_whole(service: FakeS3) -> None:
    """Files come before their manifest and go after it."""
    for key in [key for key in service.objects if key.endswith(f"/{protocol.MANIFEST_NAME}")]:
        for file in manifest.decode_manifest(service.objects[key].body).files:
            assert len(service.objects[manifest.folder_of(key) + file.name].body) == file.size_bytes


@pytest.mark.parametrize("attempt", [1, 2])
def test_killed_before_or_after_any_call_the_pointer_names_a_whole_version(tmp_path: Path, attempt: int) -> None:
    base = BASE if attempt == 1 else RESUMED
    known = {1: states(BASE), 2: states(RESUMED), 3: states(RESUMED)}
    moment, reached = 0, set()
    while True:
        folder, service = tmp_path / str(moment), FakeS3()
        if attempt == 2:
            run(S3(service), folder / "before", attempt=1)
        try:
            run(S3(service, Dies(moment)), folder, attempt=attempt, base=base)
        except Crash:
            pass
        else:
            break
        assert_manifests_are_whole(service)
        found = pointer.read_current(S3(service), BUCKET, PREFIX)
        assert found is not None or attempt == 1
        node = Node(folder)
        if found is not None:
            at = found.current
            assert state_of(node.bring(S3(service), at)) == known[at.attempt][at.version]
            reached.add((at.attempt, at.version))
        after = run(S3(service), folder / "after", attempt=attempt + 1, base=RESUMED)
        at = current(S3(service))
        assert (at.attempt, at.version) == (attempt + 1, STEPS)
        assert state_of(node.bring(S3(service), at)) == after.states[STEPS]
        moment += 1
    assert moment > 60
    assert reached >= {(attempt, version) for version in range(STEPS)}


def test_a_write_whose_answer_is_lost_changes_nothing(tmp_path: Path) -> None:
    """boto3 repeats it, and a conditional write then looks lost to the one who won."""
    plain = S3(FakeS3())
    run(plain, tmp_path / "plain", attempt=1)
    for number in range(plain.calls):
        service = FakeS3()
        s3 = S3(service)
        s3.repeat_at = number
        run(s3, tmp_path / str(number), attempt=1)
        assert {key: item.body for key, item in service.objects.items()} == {
            key: item.body for key, item in plain._service.objects.items()
        }


def test_what_a_dead_publisher_left_half_written_is_pruned_by_the_next_attempt(tmp_path: Path) -> None:
    service = FakeS3()
    s3 = S3(service)

    def die_in_the_second_file(operation: str) -> None:
        if operation == "upload_file" and s3.made.count("upload_file") == 2:
            raise Crash

    s3._before = die_in_the_second_file
    with pytest.raises(Crash):
        run(s3, tmp_path / "first", attempt=1)
    assert any("/000001/" in key for key in service.objects)
    run(S3(service), tmp_path / "second", attempt=2, base=RESUMED)
    assert not any("/000001/" in key for key in service.objects)
