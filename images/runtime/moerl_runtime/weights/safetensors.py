"""The safetensors format without torch: 8 bytes of header length, a JSON header, the tensors' bytes.

Source: the format's description in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_runtime.faults import RuntimeFault

LENGTH = struct.Struct("<Q")
HEADER_BYTES_MAX = 100 * 2**20
"""The format's own limit."""
METADATA = "__metadata__"
INDEX_NAME = "model.safetensors.index.json"
SUFFIX = ".safetensors"
FIX = "Fetch or publish the file anew."


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Where a tensor's bytes lie, from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_header(path: Path) -> Header:
    """Raises RuntimeFault for a file that is cut off or whose tensors lie outside it."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(LENGTH.size)
        length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
        if not 2 <= length <= min(HEADER_BYTES_MAX, size - LENGTH.size):
            raise RuntimeFault("safetensors", str(path), f"has no header of {length} bytes", FIX)
        text = stream.read(length)
    begin = LENGTH.size + length
    try:
        written: dict[str, Any] = json.loads(text)
        metadata = written.pop(METADATA, {})
        tensors = {name: _tensor(entry, begin) for name, entry in written.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeFault("safetensors", str(path), f"has a header that cannot be read: {error}", FIX) from error
    for name, tensor in tensors.items():
        if tensor.offset < begin or tensor.size_bytes < 0 or tensor.offset + tensor.size_bytes > size:
            raise RuntimeFault("safetensors", str(path), f"ends before its tensor {name}", FIX)
    return Header(tensors=tensors, metadata=metadata)


def write(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], metadata: Mapping[str, str]) -> None:
    """Writes a file of (dtype, shape, bytes) by name."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH.size)
    with path.open("wb") as stream:
        stream.write(LENGTH.pack(len(text)))
        stream.write(text)
        for _, _, data in tensors.values():
            stream.write(data)


def tensor_files(directory: Path) -> dict[str, Header]:
    """Headers of the directory's safetensors files, by file name."""
    return {path.name: read_header(path) for path in sorted(directory.glob(f"*{SUFFIX}"))}


def _tensor(entry: Mapping[str, Any], begin: int) -> Tensor:
    first, last = entry["data_offsets"]
    return Tensor(
        dtype=str(entry["dtype"]),
        shape=tuple(int(extent) for extent in entry["shape"]),
        offset=begin + int(first),
        size_bytes=int(last) - int(first),
    )
