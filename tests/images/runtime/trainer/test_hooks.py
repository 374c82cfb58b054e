"""Weights leave with every version, by rank 0 or by every node, and a failed export stops the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moerl_runtime import lease
from moerl_runtime.faults import InputFault
from moerl_runtime.trainer import hooks, settings
from moerl_runtime.trainer.settings import Resumed
from moerl_runtime.weights.pointer import read_current
from tests.images.runtime.trainer.fakes import Bed, Posts, arguments_of, plan_document, reporter

RUN = "trainer-0123abcd"


class Published:
    """A publisher that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def begin(self, base: Path, *, resumed: bool) -> None:
        self.calls.append(("begin", base, resumed))

    def enqueue(self, version_dir: Path, version: int, kind: str, base: int | None) -> None:
        self.calls.append(("enqueue", version_dir.name, version, kind, base))

    def flush(self, deadline_seconds: float) -> None:
        self.calls.append(("flush", deadline_seconds))

    def offer_anchor(self, directory: Path, version: int) -> None:
        self.calls.append(("anchor", directory.name, version))

    def publish_shares(
        self, version_dir: Path | None, version: int, base: int, *, rank: int, gather: Callable[[Any], list[Any]]
    ) -> None:
        self.calls.append(("shares", version_dir and version_dir.name, version, base, rank, gather("share")))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[Published]:
    found = Published()
    monkeypatch.setattr(hooks, "_publisher", lambda _: found)
    made = reporter(Posts())
    monkeypatch.setattr(hooks, "_reporter", lambda _: made)
    yield found
    made.close()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process one rank of several, each with its host."""

    def be(rank: int, hosts: list[str]) -> None:
        def all_gather_object(found: list[Any], item: Any, group: Any) -> None:
            assert group == "gloo"
            found[:] = hosts if item == hosts[rank] else [f"{item} of {number}" for number in range(len(hosts))]

        distributed = SimpleNamespace(
            get_rank=lambda: rank, get_world_size=lambda: len(hosts), all_gather_object=all_gather_object
        )
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
        monkeypatch.setattr(hooks.socket, "gethostname", lambda: hosts[rank])
        monkeypatch.setattr(hooks.framework, "gloo_group", lambda _: "gloo")

    return be


def args_of(aws: Bed, tmp_path: Path, *, scratch: str = "fsx", **changes: Any) -> Any:
    return arguments_of(tmp_path, plan_document(aws, scratch=scratch), **changes)


def test_the_start_points_engines_at_the_base(aws: Bed, tmp_path: Path, published: Published) -> None:
    args = args_of(aws, tmp_path)
    hooks.published(args, args.update_weight_disk_dir, [])
    assert published.calls == [("begin", Path(args.hf_checkpoint), False)]
    resumed = args_of(aws, tmp_path, resumed=Resumed(attempt=1, step=3), attempt=2)
    hooks.published(resumed, args.update_weight_disk_dir, [])
    assert published.calls[1] == ("begin", Path(args.hf_checkpoint), True)


def test_on_shared_scratch_rank_0_alone_queues_the_version(
    aws: Bed, tmp_path: Path, published: Published, ranks: Callable[..., None]
) -> None:
    args = args_of(aws, tmp_path)
    for rank in (0, 1):
        ranks(rank, ["a", "b"])
        hooks.published(args, "/scratch/weights/weight_v000007", [])
    assert published.calls == [("enqueue", "weight_v000007", 7, "delta", 6)]


def test_the_last_version_is_waited_for(
    aws: Bed, tmp_path: Path, published: Published, ranks: Callable[..., None]
) -> None:
    """After it the process ends, and what is still queued ends with it. Versions begin at 0 in every attempt."""
    ranks(0, ["a"])
    args = args_of(aws, tmp_path, resumed=Resumed(attempt=1, step=3), attempt=2, num_rollout=10)
    for version in range(1, 7):
        hooks.published(args, f"/scratch/weights/weight_v{version:06d}", [])
    assert [call[0] for call in published.calls] == ["enqueue"] * 6 + ["flush"]


def test_on_local_scratch_the_lowest_rank_of_each_node_brings_its_files(
    aws: Bed, tmp_path: Path, published: Published, ranks: Callable[..., None]
) -> None:
    args = args_of(aws, tmp_path, scratch="nvme")
    hosts = ["a", "b", "a", "b"]
    for rank in range(4):
        ranks(rank, hosts)
        hooks.published(args, "/scratch/weights/weight_v000001", [])
    shares = [f"share of {number}" for number in range(4)]
    assert published.calls == [
        ("shares", "weight_v000001" if rank < 2 else None, 1, 0, rank, shares) for rank in range(4)
    ]


def test_an_engine_of_the_frameworks_own_stops_the_run(aws: Bed, tmp_path: Path, published: Published) -> None:
    args = args_of(aws, tmp_path)
    with pytest.raises(InputFault, match="sglang-config"):
        hooks.published(args, args.update_weight_disk_dir, [object()])
    assert published.calls == []


def test_a_save_offers_its_export_as_the_version_that_comes_next(
    aws: Bed, tmp_path: Path, published: Published
) -> None:
    args = args_of(aws, tmp_path, resumed=Resumed(attempt=1, step=3), attempt=2)
    export = tmp_path / "hf" / "5"
    export.mkdir(parents=True)
    with pytest.raises(hooks.ExportFailed, match="step 5 was not exported"):
        hooks.saved(args, 5, "/scratch/checkpoints/iter_0000005", str(export))
    (export / hooks.COMPLETE_NAME).touch()
    hooks.saved(args, 5, "/scratch/checkpoints/iter_0000005", str(export))
    assert published.calls == [("anchor", "5", 2)]


@pytest.mark.usefixtures("published")
def test_a_save_says_how_long_all_ranks_waited_for_it(
    aws: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Megatron's own save and the export included: Miles' timer began before both."""
    args = args_of(aws, tmp_path)
    shown = hooks._reporter(settings.of(args)).metrics
    monkeypatch.setattr(hooks, "time", SimpleNamespace(time=lambda: 1_090.5))
    for began, seconds in ((None, 0.0), (1_000.0, 90.5)):
        monkeypatch.setattr(hooks.framework, "save_began_unix_seconds", lambda _, began=began: began)
        hooks.saved(args, 5, "/scratch/checkpoints/iter_0000005", None)
        assert shown.value("moerl_trainer_save_seconds") == seconds


def test_versions_that_an_earlier_attempt_left_on_the_node_are_removed(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path)
    left = Path(args.update_weight_disk_dir)
    (left / "weight_v000003").mkdir(parents=True)
    (left / "weight_v000003" / "model.safetensors").touch()
    (left / "other").mkdir()
    hooks.started(args)
    assert [path.name for path in left.iterdir()] == ["other"]
    hooks.started(args_of(aws, tmp_path, update_weight_disk_dir=str(tmp_path / "none")))


def test_the_real_publisher_asks_for_the_lease_and_moves_the_pointer(
    aws: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reporter(Posts())
    monkeypatch.setattr(hooks, "_reporter", lambda _: made)
    args = args_of(aws, tmp_path)
    with pytest.raises(lease.LeaseLost):
        hooks.published(args, args.update_weight_disk_dir, [])
    assert read_current(aws.s3, aws.bucket, "weights/") is None
    lease.acquire(aws.s3, bucket=aws.bucket, prefix="checkpoints/", run=RUN, holder="x", resumed_from=None)
    hooks.published(args, args.update_weight_disk_dir, [])
    found = read_current(aws.s3, aws.bucket, "weights/")
    assert found is not None
    assert (found.current.run, found.current.attempt, found.current.version) == (RUN, 1, 0)
    made.close()
