"""Miles' disk-delta: the tensors that a version changed, each as its difference to the version before, compressed.

    model-NNNNN-of-NNNNN.safetensors   a uint8 tensor of compressed difference per changed tensor; in the header's metadata
                                       the checksum of each tensor's whole new bytes
    model.safetensors.index.json       version, base_version, delta_encoding, compression_format, checksum_format, weight_map

`xor` is old ^ new, as long as the tensor. `overwrite` is the number of changed bytes, their positions, and the new bytes;
count and positions are 32-bit and little-endian. A delta may be empty: an index without files. Positions in a tensor above
4 GiB do not fit, and Miles lets them wrap; the checksum finds it.
Source: miles/utils/disk_delta.py and update_weight_from_distributed/delta.py of radixark/miles v0.1.0.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from moerl_runtime import disk
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import codecs, safetensors
from moerl_runtime.weights.safetensors import INDEX_NAME, Tensor

Encoding = Literal["xor", "overwrite"]
FIX = "Publish the version anew, or fetch it again from an anchor."
BIG_BYTES = 256 * 2**20
"""Tensors above are changed one at a time: a difference may take five times its tensor."""
COMPARE_BYTES = 8 * 2**20
COPY_BYTES = 2**30
NOT_LINKED = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EACCES, errno.ENOTSUP})
"""Another user's file, another file system, or one without links: then it is copied."""
NOT_CLONED = frozenset({errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.ENOTSUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    version: int
    base: int
    encoding: str
    compression: str
    checksum_format: str
    files: Mapping[str, str]
    """Changed tensor to the file that has its difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One difference of one tensor."""

    path: Path
    tensor: Tensor
    index: Index
    checksum: str


def read_index(directory: Path) -> Index:
    """Raises RuntimeFault for a directory without a whole index."""
    path = directory / INDEX_NAME
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        metadata = written["metadata"]
        return Index(
            version=int(metadata["version"]),
            base=int(metadata["base_version"]),
            encoding=metadata["delta_encoding"],
            compression=metadata["compression_format"],
            checksum_format=metadata["checksum_format"],
            files=dict(written["weight_map"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeFault("delta", str(path), f"is no index of a delta: {error!r}", FIX) from error


def checksums(directory: Path) -> dict[str, str]:
    """Checksums of the whole new tensors, by name, of the delta files that lie in this directory."""
    return {
        name: header.metadata[name]
        for header in safetensors.tensor_files(directory).values()
        for name in header.tensors
    }


def write(
    directory: Path,
    changed: Mapping[str, tuple[bytes, bytes]],
    *,
    version: int,
    base: int,
    encoding: Encoding = "overwrite",
    checksum_format: str = "xxh3-128",
) -> None:
    """Writes the delta of (old, new) bytes by tensor, as Miles would; the index is written last."""
    directory.mkdir(parents=True, exist_ok=True)
    name = "model-00000-of-00001.safetensors"
    if changed:
        packed = {tensor: codecs.compress("zstd", encode(old, new, encoding)) for tensor, (old, new) in changed.items()}
        safetensors.write(
            directory / name,
            {tensor: ("U8", (len(data),), data) for tensor, data in packed.items()},
            {tensor: codecs.checksum(checksum_format, new) for tensor, (_, new) in changed.items()},
        )
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{base:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum_format,
    }
    index = {"metadata": metadata, "weight_map": dict.fromkeys(changed, name)}
    partial = directory / f"{INDEX_NAME}.tmp"
    partial.write_text(json.dumps(index), encoding="utf-8")
    partial.replace(directory / INDEX_NAME)


def encode(old: bytes, new: bytes, encoding: Encoding) -> bytes:
    """The difference of two tensors of one size, not compressed."""
    import numpy

    before, after = numpy.frombuffer(old, numpy.uint8), numpy.frombuffer(new, numpy.uint8)
    if encoding == "xor":
        return bytes((before ^ after).tobytes())
    positions = numpy.flatnonzero(before != after).astype("<u4")
    count = numpy.array([positions.size], "<u4")
    return bytes(count.tobytes() + positions.tobytes() + after[positions].tobytes())


def apply(start: Path, deltas: Sequence[Path], target: Path, *, workers: int = 4) -> None:
    """Makes the empty directory `target` a full copy of `start` with the deltas applied in order.

    Files without a changed tensor are linked; the others are cloned, which costs no copy on XFS, and changed in place. Each
    tensor is checked against the checksum of the last delta that changed it. Raises RuntimeFault where that does not fit;
    `start` stays as it was, and `target` is then nothing to serve.
    """
    steps = _steps(deltas)
    homes = {
        name: (file, tensor)
        for file, header in safetensors.tensor_files(start).items()
        for name, tensor in header.tensors.items()
    }
    for name in steps:
        if name not in homes:
            raise RuntimeFault("delta", name, f"is a tensor that {start} does not have", "Publish a whole version.")
    changed = {homes[name][0] for name in steps}
    for path in sorted(start.rglob("*")):
        relative = path.relative_to(start)
        if path.is_dir():
            (target / relative).mkdir(exist_ok=True)
        elif not path.name.startswith("."):
            _place(path, target / relative, own=relative.as_posix() in changed)
    alone = threading.Lock()

    def change(name: str) -> None:
        file, tensor = homes[name]
        if tensor.size_bytes < BIG_BYTES:
            _change(target / file, name, tensor, steps[name])
            return
        with alone:
            _change(target / file, name, tensor, steps[name])

    pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="delta")
    try:
        for future in [pool.submit(change, name) for name in steps]:
            future.result()
        for future in [pool.submit(disk.sync, target / file) for file in sorted(changed)]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def difference(directory: Path, base: Path, changed: Mapping[str, str], checksum_format: str) -> str | None:
    """Why `directory` is not `base` with the tensors `changed` (name to checksum) in their new state; None where it is."""
    import numpy

    def located(folder: Path) -> dict[str, tuple[Path, Tensor]]:
        return {
            name: (folder / file, tensor)
            for file, header in safetensors.tensor_files(folder).items()
            for name, tensor in header.tensors.items()
        }

    there, expected = located(directory), located(base)
    if there.keys() != expected.keys():
        return f"it has other tensors: {', '.join(sorted(there.keys() ^ expected.keys())[:3])}"
    for name, (path, tensor) in there.items():
        old_path, old = expected[name]
        if (tensor.dtype, tensor.shape) != (old.dtype, old.shape):
            return f"{name} is {tensor.dtype} {list(tensor.shape)} instead of {old.dtype} {list(old.shape)}"
        data = _view(path, tensor, "r")
        if name in changed:
            if codecs.checksum(checksum_format, data) != changed[name]:
                return f"{name} has another {checksum_format} than its delta"
        else:
            before = _view(old_path, old, "r")
            pieces = range(0, tensor.size_bytes, COMPARE_BYTES)
            if not all(
                numpy.array_equal(data[at : at + COMPARE_BYTES], before[at : at + COMPARE_BYTES]) for at in pieces
            ):
                return f"{name} differs from version 0, and no delta changed it"
    return None


def _steps(deltas: Sequence[Path]) -> dict[str, list[Step]]:
    steps: dict[str, list[Step]] = {}
    for directory in deltas:
        index, headers = read_index(directory), safetensors.tensor_files(directory)
        for name, file in index.files.items():
            header = headers.get(file)
            if header is None or name not in header.tensors or name not in header.metadata:
                raise RuntimeFault("delta", name, f"is not in {directory / file} with its checksum", FIX)
            step = Step(path=directory / file, tensor=header.tensors[name], index=index, checksum=header.metadata[name])
            steps.setdefault(name, []).append(step)
    return steps


def _change(path: Path, name: str, tensor: Tensor, steps: Sequence[Step]) -> None:
    view = _view(path, tensor, "r+")
    for step in steps:
        with step.path.open("rb") as stream:
            stream.seek(step.tensor.offset)
            packed = stream.read(step.tensor.size_bytes)
        _decode_into(view, packed, step.index, name)
    last = steps[-1]
    if codecs.checksum(last.index.checksum_format, view) != last.checksum:
        raise RuntimeFault(
            "delta", name, f"has another {last.index.checksum_format} than version {last.index.version} should", FIX
        )


def _decode_into(view: Any, packed: bytes, index: Index, name: str) -> None:
    import numpy

    if index.encoding == "xor":
        raw = codecs.decompress(index.compression, packed, most_bytes=view.size)
        if len(raw) != view.size:
            raise RuntimeFault("delta", name, f"is {len(raw)} bytes long, its tensor {view.size}", FIX)
        view ^= numpy.frombuffer(raw, numpy.uint8)
        return
    if index.encoding != "overwrite":
        raise RuntimeFault("delta_encoding", index.encoding, "is unknown", "Known are xor and overwrite.")
    raw = codecs.decompress(index.compression, packed, most_bytes=4 + 5 * view.size)
    count = int.from_bytes(raw[:4], "little")
    if len(raw) != 4 + 5 * count:
        raise RuntimeFault("delta", name, f"says {count} changed bytes in {len(raw)}", FIX)
    positions = numpy.frombuffer(raw, "<u4", count, 4)
    if count and int(positions.max()) >= view.size:
        raise RuntimeFault("delta", name, f"changes byte {positions.max()} of {view.size}", FIX)
    view[positions] = numpy.frombuffer(raw, numpy.uint8, count, 4 + 4 * count)


def _view(path: Path, tensor: Tensor, mode: Literal["r", "r+"]) -> Any:
    """The tensor's bytes in the file. An empty tensor cannot be mapped."""
    import numpy

    if tensor.size_bytes == 0:
        return numpy.empty(0, numpy.uint8)
    return numpy.memmap(path, numpy.uint8, mode, offset=tensor.offset, shape=(tensor.size_bytes,))


def _place(source: Path, target: Path, *, own: bool) -> None:
    """The file under another name: as a link, or as an `own` copy that may be changed."""
    if not own:
        try:
            target.hardlink_to(source)
        except OSError as error:
            if error.errno not in NOT_LINKED:
                raise
        else:
            return
    _clone(source, target)
    if not own:
        disk.sync(target)


def _clone(source: Path, target: Path) -> None:
    """A copy in the kernel, which shares blocks where the file system can."""
    with source.open("rb") as old, target.open("xb") as new:
        left = os.fstat(old.fileno()).st_size
        try:
            while left:
                copied = os.copy_file_range(old.fileno(), new.fileno(), min(left, COPY_BYTES))
                if copied == 0:
                    break
                left -= copied
        except OSError as error:
            if error.errno not in NOT_CLONED:
                raise
    if left:
        shutil.copyfile(source, target)
