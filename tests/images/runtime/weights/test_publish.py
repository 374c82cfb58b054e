"""One of two publishers has the pointer, and what is published is whole."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from awscrt.exceptions import AwsCrtError
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError

from moerl_runtime import protocol
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.protocol import Attempt, Current
from moerl_runtime.weights import manifest, publish, safetensors
from moerl_runtime.weights.pointer import Fenced
from moerl_runtime.weights.publish import Publisher, Share
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, FakeS3, refused

from .bed import BASE, PREFIX, RUN, S3, Node, State, Trainer, changed, current, state_of, write_delta, write_whole


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_publishers_in_a_race_the_newer_attempt_wins(tmp_path: Path, first: int) -> None:
    """Whoever comes first; and the loser is fenced at its next move."""
    service = FakeS3()
    old, new = (Trainer(S3(service), tmp_path, attempt=number) for number in (1, 2))
    old.begin()
    for number in (first, 1 - first):
        if number == 0:
            old.step()
        else:
            new.begin()
            break
    with pytest.raises(Fenced):
        old.step()
    assert (current(S3(service)).attempt, current(S3(service)).version) == (2, 0)
    with pytest.raises(RuntimeFault):
        old.step()


def test_engines_of_a_first_attempt_begin_with_the_base_model_that_they_have(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer, node = Trainer(s3, tmp_path), Node(tmp_path)
    trainer.begin()
    assert current(s3) == Current(run=RUN, attempt=1, version=0, manifest=None)
    assert node.bring(s3, current(s3)) == node.base


def test_engines_of_a_resumed_attempt_begin_with_the_resumed_step_not_with_the_base_model(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    resumed = changed(BASE, 9)
    trainer, node = Trainer(s3, tmp_path, attempt=2, base=resumed), Node(tmp_path)
    trainer.begin(resumed=True)
    directory = node.bring(s3, current(s3))
    assert state_of(directory) == resumed
    trainer.step()
    assert state_of(node.bring(s3, current(s3))) == trainer.states[1]


def test_a_version_that_does_not_follow_ends_the_run(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    folder = write_delta(tmp_path / "weight_v000002", BASE, changed(BASE, 2), 2)
    trainer.publisher.enqueue(folder, 2, "delta", 1)
    with pytest.raises(RuntimeFault, match="does not follow version 0"):
        trainer.publisher.flush(30.0)
    assert current(s3).version == 0
    with pytest.raises(RuntimeFault, match="does not follow version 0"):
        trainer.step()


def test_a_directory_that_misses_a_file_of_its_index_is_not_published(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    folder = write_delta(tmp_path / "weight_v000001", BASE, changed(BASE, 1), 1)
    next(folder.glob("*.safetensors")).unlink()
    trainer.publisher.enqueue(folder, 1, "delta", 0)
    with pytest.raises(RuntimeFault, match="instead of"):
        trainer.publisher.flush(30.0)


def test_a_directory_without_a_whole_model_is_no_version(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    whole = write_whole(tmp_path / "whole", BASE)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00003-of-00003.safetensors"}}
    (whole / safetensors.INDEX_NAME).write_text(json.dumps(index), encoding="utf-8")
    for directory in (tmp_path / "nowhere", whole):
        with pytest.raises(RuntimeFault, match="and its index"):
            publish._require_whole(directory)
    trainer.publisher.enqueue(tmp_path / "nowhere", 1, "full", None)
    with pytest.raises(RuntimeFault, match="and its index"):
        trainer.publisher.flush(30.0)
    assert current(s3).version == 0


def test_a_failure_surfaces_at_every_later_call_and_stops_what_waits(tmp_path: Path) -> None:
    def fails(operation: str) -> None:
        if operation == "upload_file":
            raise OSError("no route to host")

    s3 = S3(FakeS3(), fails)
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    first = write_delta(tmp_path / "v1", BASE, changed(BASE, 1), 1)
    trainer.publisher.enqueue(first, 1, "delta", 0)
    with pytest.raises(OSError, match="no route"):
        trainer.publisher.flush(30.0)
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            trainer.publisher.enqueue(first, 2, "delta", 1)
        with pytest.raises(OSError, match="no route"):
            trainer.publisher.offer_anchor(trainer.base, 2)
    assert first.is_dir()


def test_nothing_that_waited_is_published_after_a_failure(tmp_path: Path) -> None:
    gate, failures = threading.Event(), [OSError("no route to host")]

    def fails_once(operation: str) -> None:
        if operation == "upload_file" and failures:
            assert gate.wait(30)
            raise failures.pop()

    s3 = S3(FakeS3(), fails_once)
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    for version in (1, 2):
        trainer.publisher.enqueue(write_whole(tmp_path / str(version), BASE), version, "full", None)
    gate.set()
    with pytest.raises(OSError, match="no route"):
        trainer.publisher.flush(30.0)
    trainer.publisher.close()
    assert current(s3).version == 0


def test_a_lost_lease_stops_publication_before_the_pointer(tmp_path: Path) -> None:
    held = [True]

    def check() -> None:
        if not held[0]:
            raise RuntimeFault("lease", "run", "is lost", "End.")

    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path, check=check)
    trainer.begin()
    trainer.step()
    held[0] = False
    with pytest.raises(RuntimeFault, match="is lost"):
        trainer.step()
    assert current(s3).version == 1


def test_a_flush_does_not_wait_beyond_its_deadline(tmp_path: Path) -> None:
    gate = threading.Event()
    s3 = S3(FakeS3(), lambda operation: gate.wait(30) and None if operation == "upload_file" else None)
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    trainer.publisher.enqueue(write_delta(tmp_path / "v1", BASE, changed(BASE, 1), 1), 1, "delta", 0)
    with pytest.raises(RuntimeFault, match="still not published"):
        trainer.publisher.flush(0.0)
    gate.set()
    trainer.publisher.flush(30.0)
    assert trainer.publisher.published == 1


def test_what_is_published_leaves_the_trainer_s_disk(tmp_path: Path) -> None:
    trainer = Trainer(S3(FakeS3()), tmp_path)
    trainer.begin()
    trainer.step(anchor=True)
    assert list((trainer.folder / "published").iterdir()) == []
    assert (trainer.folder / "hf" / "1").is_dir()


def test_an_anchor_shortens_the_way_to_later_versions(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer, node = Trainer(s3, tmp_path, anchor_every=2), Node(tmp_path)
    trainer.begin()
    for version in range(1, 6):
        trainer.step(anchor=version == 4)
    assert trainer.reported == []
    assert state_of(node.bring(s3, current(s3))) == trainer.states[5]
    assert node.versions() == ["000001/00000004", "000001/00000005"]


def test_an_anchor_that_came_too_early_is_left_out(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path, anchor_every=5)
    trainer.begin()
    trainer.step(anchor=True)
    assert not any("/full/" in key for key in s3._service.objects)


@pytest.mark.parametrize("tensor", ["embed", "layers.0.experts.0"])
def test_an_export_that_is_not_the_version_is_no_anchor(tmp_path: Path, tensor: str) -> None:
    """A tensor that no delta changed, and one that a delta did."""
    s3 = S3(FakeS3())
    trainer, node = Trainer(s3, tmp_path, anchor_every=1), Node(tmp_path)
    trainer.begin()
    wrong: State = changed(BASE, 1)
    wrong[tensor] = bytes(len(wrong[tensor]))
    trainer.publisher.offer_anchor(write_whole(tmp_path / "hf", wrong), 1)
    trainer.step()
    assert len(trainer.reported) == 1
    assert tensor in trainer.reported[0]
    trainer.step()
    assert state_of(node.bring(s3, current(s3))) == trainer.states[2]


def test_an_anchor_that_is_gone_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path, anchor_every=1)
    trainer.begin()
    trainer.publisher.offer_anchor(tmp_path / "removed", 1)
    assert trainer.step() == 1
    assert len(trainer.reported) == 1
    assert trainer.step() == 2


class Interrupted(S3):
    """Something happens once, before the upload of the anchor's n-th file."""

    def __init__(self, at: int, what: Callable[[], object]) -> None:
        super().__init__(FakeS3())
        self._left, self._what = at, what

    def upload_file(self, filename: str, bucket: str, key: str, Config: object) -> None:
        if "/full/" in key:
            self._left -= 1
            if self._left == 0:
                self._what()
        super().upload_file(filename, bucket, key, Config)


@pytest.mark.parametrize("uploaded", [0, 1, 2])
def test_an_export_that_vanishes_while_it_is_stored_costs_the_anchor_and_not_the_run(
    tmp_path: Path, uploaded: int
) -> None:
    """A newer save is committed meanwhile, and its uploader removes the older ones from scratch."""
    hf = tmp_path / f"trainer-{RUN}-1" / "hf" / "1"
    s3 = Interrupted(uploaded + 1, lambda: shutil.rmtree(hf))
    trainer, node = Trainer(s3, tmp_path, anchor_every=1), Node(tmp_path)
    trainer.begin()
    assert trainer.step(anchor=True) == 1
    assert not hf.exists()
    assert len(trainer.reported) == 1
    assert "no anchor of version 1" in trainer.reported[0]
    assert not any(key.endswith("full/manifest.json") for key in s3._service.objects)
    trainer.step(anchor=True)
    assert len(trainer.reported) == 1, "the next save is an anchor"
    assert any(key.endswith("00000002/full/manifest.json") for key in s3._service.objects)
    trainer.step()
    assert state_of(node.bring(s3, current(s3))) == trainer.states[3]


def test_an_export_that_loses_a_file_before_it_is_stored_is_no_anchor_without_it(tmp_path: Path) -> None:
    """Half removed: the tensors are all there, and what engines read beside them is not."""
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path, anchor_every=1)
    trainer.begin()
    export = write_whole(tmp_path / "hf", changed(BASE, 1))
    trainer.publisher.offer_anchor(export, 1)
    trainer.publisher.flush(30.0)
    (export / "config.json").unlink()
    trainer.step()
    assert len(trainer.reported) == 1
    assert "config.json" in trainer.reported[0]
    assert not any(key.endswith("full/manifest.json") for key in s3._service.objects)


def test_a_fault_of_s3_while_an_anchor_is_stored_is_a_fault_of_the_run(tmp_path: Path) -> None:
    def refuses() -> None:
        raise refused("AccessDenied", 403, "PutObject")

    trainer = Trainer(Interrupted(1, refuses), tmp_path, anchor_every=1)
    trainer.begin()
    with pytest.raises(ClientError, match="AccessDenied"):
        trainer.step(anchor=True)


def test_without_exports_the_publisher_makes_anchors_itself(tmp_path: Path) -> None:
    """Else a run whose exports are no anchors ends up with a chain that nobody can replay."""
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path, anchor_every=2, keep_versions=1)
    trainer.begin()
    for _ in range(9):
        trainer.step()
    anchors = {int(key.split("/")[3]) for key in s3._service.objects if key.endswith("full/manifest.json")}
    assert anchors == {8}
    assert not any("/00000007/" in key for key in s3._service.objects)
    assert state_of(Node(tmp_path).bring(s3, current(s3))) == trainer.states[9]
    assert len(list(publish.anchors_beside(trainer.folder / "published").glob("policy/*/*/*"))) <= 2


def test_an_anchor_that_cannot_be_made_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path, anchor_every=1)
    trainer.begin()
    with monkeypatch.context() as patched:
        patched.setattr(publish.cache, "free_bytes", lambda _: 0)
        for _ in range(3):
            trainer.step()
    assert [line.split(":")[1] for line in trainer.reported] == [" no anchor of version 2", " no anchor of version 3"]
    trainer.step()
    assert any("/00000004/full/" in key for key in s3._service.objects)


def test_whole_versions_need_no_deltas(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer, node = Trainer(s3, tmp_path), Node(tmp_path)
    trainer.begin()
    trainer.step(kind="full")
    assert trainer.step(kind="full") == 2
    assert state_of(node.bring(s3, current(s3))) == trainer.states[2]
    trainer.publisher.enqueue(trainer.base, 2, "full", None)
    with pytest.raises(RuntimeFault, match="is not after 2"):
        trainer.publisher.flush(30.0)


class Ranks:
    """Two nodes of a trainer, each with its own disk and its own half of the delta."""

    def __init__(self, s3s: Sequence[S3], folder: Path, *, anchor_every: int = 10) -> None:
        self.publishers = [
            Publisher(
                s3,
                bucket=BUCKET,
                weights_prefix=PREFIX,
                attempt=Attempt(run=RUN, number=1),
                workers=1,
                report=lambda _: None,
                anchor_every=anchor_every,
            )
            for s3 in s3s
        ]
        self.folder = folder
        self.barrier = threading.Barrier(len(s3s))
        self.shares: list[Share | None] = [None] * len(s3s)

    def gather(self, rank: int, share: Share) -> list[Share]:
        self.shares[rank] = share
        self.barrier.wait(10)
        found = [each for each in self.shares if each is not None]
        self.barrier.wait(10)
        return found

    def publish(self, version: int, old: State, new: State) -> list[BaseException | None]:
        directories = [self.folder / f"node{rank}" / f"weight_v{version:06d}" for rank in range(2)]
        whole = write_delta(self.folder / "whole" / str(version), old, new, version)
        header = safetensors.read_header(next(whole.glob("*.safetensors")))
        raw = next(whole.glob("*.safetensors")).read_bytes()
        weight_map = {}
        for rank, directory in enumerate(directories):
            directory.mkdir(parents=True)
            file = f"model-{rank:05d}-of-00002.safetensors"
            mine = sorted(header.tensors)[rank::2]
            tensors = {
                name: ("U8", at.shape, raw[at.offset : at.offset + at.size_bytes])
                for name, at in header.tensors.items()
                if name in mine
            }
            safetensors.write(directory / file, tensors, {name: header.metadata[name] for name in mine})
            weight_map |= dict.fromkeys(mine, file)
        index = (whole / safetensors.INDEX_NAME).read_text(encoding="utf-8")
        for name, file in weight_map.items():
            index = index.replace(f'"{name}": "model-00000-of-00001.safetensors"', f'"{name}": "{file}"')
        (directories[0] / safetensors.INDEX_NAME).write_text(index, encoding="utf-8")
        raised: list[BaseException | None] = [None, None]

        def rank_of(rank: int) -> None:
            try:
                self.publishers[rank].publish_shares(
                    directories[rank], version, version - 1, rank=rank, gather=lambda share: self.gather(rank, share)
                )
            except Exception as error:  # looked at by the test
                raised[rank] = error

        threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return raised


def test_shares_of_several_nodes_become_one_version(tmp_path: Path) -> None:
    service = FakeS3()
    ranks, node = Ranks([S3(service), S3(service)], tmp_path / "ranks"), Node(tmp_path)
    ranks.publishers[0].begin(write_whole(tmp_path / "hf", BASE), resumed=False)
    assert ranks.publish(1, BASE, changed(BASE, 3)) == [None, None]
    assert ranks.publish(2, changed(BASE, 3), BASE) == [None, None]
    assert state_of(node.bring(S3(service), current(S3(service)))) == BASE
    assert list((tmp_path / "ranks" / "node1").iterdir()) == []


def test_ranks_do_not_wait_for_anchors(tmp_path: Path) -> None:
    service, gate = FakeS3(), threading.Event()
    s3s = [S3(service, lambda operation: gate.wait(30) and None if operation == "download_file" else None), S3(service)]
    ranks, node = Ranks(s3s, tmp_path / "ranks", anchor_every=1), Node(tmp_path)
    ranks.publishers[0].begin(write_whole(tmp_path / "hf", BASE), resumed=False)
    states = [BASE, changed(BASE, 3), changed(BASE, 6), changed(BASE, 9)]
    for version in range(1, 4):
        assert ranks.publish(version, states[version - 1], states[version]) == [None, None]
    gate.set()
    ranks.publishers[0].flush(30.0)
    assert any("/00000002/full/manifest" in key for key in service.objects)
    assert state_of(node.bring(S3(service), current(S3(service)))) == states[3]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeFault("upload", "x", "failed", "Try again."),
        S3UploadFailedError("AccessDenied"),
        AwsCrtError(1051, "AWS_IO_SOCKET_CLOSED", "socket is closed"),
        refused("SlowDown", 503, "PutObject"),
        KeyError("layers.0"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_rank_that_fails_fails_all_and_publishes_nothing(tmp_path: Path, failing: int, error: Exception) -> None:
    """Whatever it fails with: the others wait for it."""
    service = FakeS3()

    def fails(operation: str) -> None:
        if operation == "upload_file":
            raise error

    s3s = [S3(service), S3(service)]
    s3s[failing] = S3(service, fails)
    ranks = Ranks(s3s, tmp_path / "ranks")
    ranks.publishers[0].begin(write_whole(tmp_path / "hf", BASE), resumed=False)
    raised = ranks.publish(1, BASE, changed(BASE, 3))
    assert isinstance(raised[failing], type(error) | RuntimeFault)
    assert isinstance(raised[1 - failing], RuntimeFault)
    assert type(error).__name__ in str(raised[1 - failing]) or "broke off" in str(raised[1 - failing])
    assert current(S3(service)).version == 0


def test_the_manifest_lists_every_file_with_its_digests(tmp_path: Path) -> None:
    s3 = S3(FakeS3())
    trainer = Trainer(s3, tmp_path)
    trainer.begin()
    trainer.step()
    key = current(s3).manifest
    assert key is not None
    found = manifest.decode_manifest(s3._service.objects[key].body)
    folder = manifest.folder_of(key)
    stored = {name.removeprefix(folder) for name in s3._service.objects if name.startswith(folder)}
    assert stored - {protocol.MANIFEST_NAME} == {file.name for file in found.files}
    assert found.base == 0
    assert found.anchor is None
