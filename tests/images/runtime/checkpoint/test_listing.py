"""What a save must consist of: what was announced, and every shard that its own index names."""

from __future__ import annotations

from pathlib import Path

import pytest

from moerl_runtime.checkpoint import listing

BELOW = "checkpoints/iter_0000010"


def absent(_name: str) -> bytes:
    raise AssertionError("nothing is to be read")


def test_an_item_is_a_file_or_a_directory_with_one() -> None:
    names = {"hf/10/config.json", "checkpoints/cursor.pt"}
    assert listing.missing(names, ["hf/10", "checkpoints/cursor.pt"], absent) == []
    assert listing.missing(names, ["hf/1", "checkpoints/cursor", "hf/10/config"], absent) == [
        "hf/1",
        "checkpoints/cursor",
        "hf/10/config",
    ]


def test_every_shard_that_the_index_names_must_be_there_and_every_index() -> None:
    index = b"\x80\x04\x95.__0_0.distcp\x94..__0_1.distcp....__12_3.distcp."
    names = {f"{BELOW}/.metadata", f"{BELOW}/__0_0.distcp", f"{BELOW}/__12_3.distcp", f"{BELOW}/extra"}
    assert listing.missing(names, [BELOW], lambda _name: index) == [f"{BELOW}/__0_1.distcp"]
    assert listing.missing({f"{BELOW}/__0_0.distcp"}, [BELOW], absent) == [f"{BELOW}/.metadata"]
    assert listing.missing({f"{BELOW}/.metadata"}, [BELOW], lambda _name: b"") == []


def test_the_names_in_the_index_that_torch_itself_writes_are_found(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed import checkpoint

    checkpoint.save({"weight": torch.zeros(4), "bias": torch.ones(2)}, checkpoint_id=tmp_path, no_dist=True)
    shards = {path.name for path in tmp_path.glob("*.distcp")}
    assert shards
    names = {f"{BELOW}/{path.name}" for path in tmp_path.iterdir()}
    read = (tmp_path / ".metadata").read_bytes()
    assert listing.missing(names, [BELOW], lambda _name: read) == []
    for shard in shards:
        assert listing.missing(names - {f"{BELOW}/{shard}"}, [BELOW], lambda _name: read)[-1] == f"{BELOW}/{shard}"


def test_the_number_of_a_save_is_megatrons() -> None:
    assert listing.iteration([f"{BELOW}/common.pt", "hf/10/config.json"]) == 10
    assert listing.iteration(["hf/10/config.json", "iter_0000010", "checkpoints/iter_10/x"]) is None


def test_saves_on_scratch_are_told_from_other_files(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    for name in ("checkpoints/iter_0000010", "checkpoints/iter_x", "checkpoints/rollout", "hf/20", "hf/x", "other/30"):
        (tmp_path / name).mkdir(parents=True)
    found = [(number, path.relative_to(tmp_path).as_posix()) for number, path in listing.saves(directory)]
    assert found == [(10, "checkpoints/iter_0000010"), (20, "hf/20")]
