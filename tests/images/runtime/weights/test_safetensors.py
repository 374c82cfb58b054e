"""The format: what is written is read back, and a file that is cut off anywhere is refused."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import safetensors

TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=20).filter(lambda name: name != safetensors.METADATA),
    st.binary(max_size=64),
    max_size=6,
)
METADATA = st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3)


@given(tensors=TENSORS, metadata=METADATA)
def test_what_is_written_is_read_back(tensors: dict[str, bytes], metadata: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        safetensors.write(path, {name: ("U8", (len(data),), data) for name, data in tensors.items()}, metadata)
        header = safetensors.read_header(path)
        raw = path.read_bytes()
    assert dict(header.metadata) == metadata
    assert {name: raw[at.offset : at.offset + at.size_bytes] for name, at in header.tensors.items()} == tensors
    assert all((at.dtype, at.shape) == ("U8", (at.size_bytes,)) for at in header.tensors.values())


def test_a_file_cut_off_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.write(path, {"a": ("U8", (5,), b"12345"), "b": ("BF16", (2,), b"1234")}, {"format": "pt"})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(RuntimeFault):
            safetensors.read_header(path)


@pytest.mark.parametrize("offsets", [[4, 2], [-9, 2], [0, 10**9], ["a", 1], [1]])
def test_tensors_outside_the_file_are_refused(tmp_path: Path, offsets: list[object]) -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [2], "data_offsets": offsets}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.LENGTH.pack(len(text)) + text + b"1234")
    with pytest.raises(RuntimeFault):
        safetensors.read_header(path)
