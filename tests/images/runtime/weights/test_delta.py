"""Deltas: the directory that is made is the state that was trained, byte for byte, or nothing is made of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import codecs, delta, safetensors
from moerl_runtime.weights.delta import Encoding

from .bed import BASE, State, changed, state_of, write_delta, write_whole

ENCODINGS: tuple[Encoding, ...] = ("overwrite", "xor")
TENSOR = st.binary(max_size=40)


@st.composite
def histories(draw: st.DrawFn) -> list[State]:
    """States of a model, one after the other: tensors keep their sizes, some bytes change."""
    first = draw(st.dictionaries(st.sampled_from([f"t{number}" for number in range(6)]), TENSOR, min_size=1))
    states = [first]
    for _ in range(draw(st.integers(1, 4))):
        states.append(
            {
                name: data if draw(st.booleans()) else draw(st.binary(min_size=len(data), max_size=len(data)))
                for name, data in states[-1].items()
            }
        )
    return states


@given(
    states=histories(),
    encodings=st.lists(st.sampled_from(ENCODINGS), min_size=4, max_size=4),
    workers=st.integers(1, 3),
)
@settings(deadline=None, max_examples=60)
def test_a_chain_of_deltas_leads_to_the_last_state(
    states: list[State], encodings: list[Encoding], workers: int
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        start = write_whole(folder / "start", states[0])
        deltas = [
            write_delta(folder / f"v{version}", states[version - 1], states[version], version, encodings[version - 1])
            for version in range(1, len(states))
        ]
        target = folder / "target"
        target.mkdir()
        delta.apply(start, deltas, target, workers=workers)
        assert state_of(target) == states[-1]
        assert state_of(start) == states[0]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_files_without_a_change_are_the_same_file(tmp_path: Path, encoding: Encoding) -> None:
    start = write_whole(tmp_path / "start", BASE)
    new = BASE | {"norm": b"m" * 16}
    target = tmp_path / "target"
    target.mkdir()
    delta.apply(start, [write_delta(tmp_path / "v1", BASE, new, 1, encoding)], target)
    same = {path.name for path in start.iterdir() if os.path.samefile(path, target / path.name)}
    assert same == {"config.json", "model-00001-of-00002.safetensors"}


def test_what_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "not the owner")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    start = write_whole(tmp_path / "start", BASE)
    target = tmp_path / "target"
    target.mkdir()
    delta.apply(start, [write_delta(tmp_path / "v1", BASE, changed(BASE, 1), 1)], target)
    assert state_of(target) == changed(BASE, 1)
    assert not os.path.samefile(start / "config.json", target / "config.json")


def test_where_the_kernel_cannot_clone_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(18, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refused)
    start = write_whole(tmp_path / "start", BASE)
    target = tmp_path / "target"
    target.mkdir()
    delta.apply(start, [write_delta(tmp_path / "v1", BASE, changed(BASE, 1), 1)], target)
    assert state_of(target) == changed(BASE, 1)


def test_an_empty_delta_changes_nothing(tmp_path: Path) -> None:
    start = write_whole(tmp_path / "start", BASE)
    target = tmp_path / "target"
    target.mkdir()
    delta.apply(start, [write_delta(tmp_path / "v1", BASE, BASE, 1)], target)
    assert state_of(target) == BASE


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_flipped_byte_of_a_delta_is_found(tmp_path: Path, encoding: Encoding) -> None:
    """In the compressed data, in the header, or in a checksum: it is refused, or the outcome is right all the same."""
    start, new = write_whole(tmp_path / "start", BASE), changed(BASE, 3)
    folder = write_delta(tmp_path / "v1", BASE, new, 1, encoding)
    (path,) = folder.glob("*.safetensors")
    whole = path.read_bytes()
    refused = 0
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 0x10
        path.write_bytes(broken)
        target = tmp_path / f"target-{position}"
        target.mkdir()
        try:
            delta.apply(start, [folder], target, workers=1)
        except RuntimeFault:
            refused += 1
        else:
            assert state_of(target) == new
    assert refused > len(whole) // 2


def test_a_delta_on_another_base_is_refused(tmp_path: Path) -> None:
    other = write_whole(tmp_path / "other", BASE | {"layers.0.experts.0": b"z" * 301})
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(RuntimeFault, match=r"layers\.0\.experts\.0"):
        delta.apply(other, [write_delta(tmp_path / "v1", BASE, changed(BASE, 1), 1)], target)


def test_a_tensor_that_the_base_does_not_have_is_refused(tmp_path: Path) -> None:
    start = write_whole(tmp_path / "start", BASE)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(RuntimeFault, match="new_head"):
        delta.apply(start, [write_delta(tmp_path / "v1", {"new_head": b"12"}, {"new_head": b"13"}, 1)], target)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ((2).to_bytes(4, "little") + (0).to_bytes(4, "little") + b"x", "2 changed bytes"),
        ((1).to_bytes(4, "little") + (16).to_bytes(4, "little") + b"x", "byte 16 of 16"),
        (b"\x01", "1 changed bytes"),
        (bytes(10**4), "is not a size up to"),
    ],
)
def test_an_overwrite_outside_its_tensor_is_refused(tmp_path: Path, raw: bytes, why: str) -> None:
    start = write_whole(tmp_path / "start", BASE)
    folder = write_delta(tmp_path / "v1", {"norm": BASE["norm"]}, {"norm": b"m" * 16}, 1)
    packed = codecs.compress("zstd", raw)
    (path,) = folder.glob("*.safetensors")
    safetensors.write(path, {"norm": ("U8", (len(packed),), packed)}, {"norm": "00000000"})
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(RuntimeFault, match=why):
        delta.apply(start, [folder], target)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("delta_encoding", "rle", "Known are xor and overwrite"),
        ("compression_format", "lz4", "Known is zstd"),
        ("checksum_format", "crc32", "Known are xxh3-128"),
        ("version", "x", "is no index"),
    ],
)
def test_an_unknown_format_is_named(tmp_path: Path, key: str, value: str, why: str) -> None:
    start = write_whole(tmp_path / "start", BASE)
    folder = write_delta(tmp_path / "v1", BASE, changed(BASE, 1), 1)
    index = json.loads((folder / safetensors.INDEX_NAME).read_text(encoding="utf-8"))
    index["metadata"][key] = value
    (folder / safetensors.INDEX_NAME).write_text(json.dumps(index), encoding="utf-8")
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(RuntimeFault, match=why):
        delta.apply(start, [folder], target)


def test_a_big_tensor_is_changed_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "BIG_BYTES", 17)
    start = write_whole(tmp_path / "start", BASE)
    target = tmp_path / "target"
    target.mkdir()
    delta.apply(start, [write_delta(tmp_path / "v1", BASE, changed(BASE, 3), 1)], target)
    assert state_of(target) == changed(BASE, 3)


def test_an_export_is_told_from_the_state_that_deltas_lead_to(tmp_path: Path) -> None:
    base, new = write_whole(tmp_path / "base", BASE), changed(BASE, 1)
    sums = delta.checksums(write_delta(tmp_path / "v1", BASE, new, 1))

    def why(name: str, state: State) -> str | None:
        return delta.difference(write_whole(tmp_path / name, state), base, sums, "adler32")

    assert why("same", new) is None
    assert "other tensors" in str(why("more", new | {"head": b"1"}))
    assert "instead of" in str(why("padded", new | {"embed": BASE["embed"] + b"00"}))
    assert "no delta changed it" in str(why("other", new | {"embed": b"e" * 200}))
    assert "than its delta" in str(why("older", BASE))
