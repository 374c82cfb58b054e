"""Compression and checksums of Miles' deltas, by the names that a delta's index gives them.

zstandard and xxhash are what Miles itself imports to write a delta, so its image has both. They are imported where they
are used: an agent of a run that publishes whole versions needs neither.
"""

from __future__ import annotations

import hashlib
import importlib
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from moerl_runtime.faults import RuntimeFault

ZSTD_LEVEL = 1
"""Miles' own: deltas are bound by memory bandwidth, not by size."""


class Hasher(Protocol):
    def update(self, data: Any, /) -> object: ...

    def hexdigest(self) -> str: ...


class _Adler32:
    def __init__(self) -> None:
        self._value = zlib.adler32(b"")

    def update(self, data: Any, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def hasher(name: str) -> Hasher:
    """A new hash of that name. Raises RuntimeFault for one that is unknown or whose package is missing."""
    known: dict[str, Callable[[], Any]] = {
        "xxh3-128": lambda: _package("xxhash", name).xxh3_128(),
        "blake3": lambda: _package("blake3", name).blake3(),
        "adler32": _Adler32,
        "sha256": hashlib.sha256,
    }
    if name not in known:
        raise RuntimeFault("checksum_format", name, "is unknown", f"Known are {', '.join(known)}.")
    made: Hasher = known[name]()
    return made


def checksum(name: str, data: Any) -> str:
    made = hasher(name)
    made.update(data)
    return made.hexdigest()


def compress(name: str, data: bytes) -> bytes:
    return bytes(_zstd(name).ZstdCompressor(level=ZSTD_LEVEL).compress(data))


def decompress(name: str, data: bytes, *, most_bytes: int) -> bytes:
    """Raises RuntimeFault for data that is broken or would become larger than `most_bytes`."""
    zstd = _zstd(name)
    try:
        size = zstd.frame_content_size(data)
        if not 0 <= size <= most_bytes:
            raise RuntimeFault("delta", size, f"is not a size up to {most_bytes} bytes", "Fetch the delta anew.")
        return bytes(zstd.ZstdDecompressor().decompress(data, max_output_size=max(1, size)))
    except zstd.ZstdError as error:
        raise RuntimeFault("delta", len(data), f"is no whole zstd frame: {error}", "Fetch the delta anew.") from error


def _zstd(name: str) -> ModuleType:
    if name != "zstd":
        raise RuntimeFault("compression_format", name, "is unknown", "Known is zstd.")
    return _package("zstandard", name)


def _package(module: str, purpose: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeFault(
            purpose, module, "is not installed, and this delta cannot be read without it", f"Add {module} to the image."
        ) from error
