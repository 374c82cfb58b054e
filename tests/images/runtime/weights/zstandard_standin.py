"""What this package uses of zstandard, over zlib: frames that know their size and notice when they are broken."""

from __future__ import annotations

import struct
import zlib

_HEAD = struct.Struct("<4sQ")
_MAGIC = b"ztst"


class ZstdError(Exception):
    pass


class ZstdCompressor:
    def __init__(self, level: int) -> None:
        self._level = level

    def compress(self, data: bytes) -> bytes:
        return _HEAD.pack(_MAGIC, len(data)) + zlib.compress(data, self._level)


class ZstdDecompressor:
    def decompress(self, data: bytes, max_output_size: int = 0) -> bytes:
        try:
            found = zlib.decompress(data[_HEAD.size :])
        except zlib.error as error:
            raise ZstdError(str(error)) from error
        if len(found) != frame_content_size(data) or len(found) > max_output_size:
            raise ZstdError("another size")
        return found


def frame_content_size(data: bytes) -> int:
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise ZstdError("no frame")
    size: int = _HEAD.unpack_from(data)[1]
    return size
