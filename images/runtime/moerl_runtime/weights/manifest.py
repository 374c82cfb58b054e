"""What a stored set of files consists of: names, sizes and a SHA-256 per chunk. Written after the files, so that a set is
there as a whole or not at all.

A version of the policy has up to two forms. `VERSION/manifest.json` is how it was published, whole or as a delta to the
version before. `VERSION/full/manifest.json` is an anchor: the whole of a version that was published as a delta, so that a
new node does not replay every delta of the attempt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from moerl_runtime import protocol
from moerl_runtime.faults import InputFault

CHUNK_BYTES = 32 * 2**20
READ_BYTES = 2**20
MODEL_MARKER = "complete.json"
"""Beside the files of a base model: its listing, written last by the prepare job."""
ANCHOR_FOLDER = "full/"

Kind = Literal["full", "delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    name: str
    """Relative path with slashes."""
    size_bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    """SHA-256 of each chunk, in hexadecimal; the last chunk is the rest. An empty file has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One form of one version."""

    run: str
    attempt: int
    version: int
    kind: Kind
    base: int | None
    """Version of the same attempt that a delta applies to."""
    anchor: str | None
    """Of a delta: key of the manifest of the newest whole version before it. None: the base model on the node's disk,
    which is version 0 then."""
    files: tuple[File, ...]

    @property
    def of(self) -> protocol.Attempt:
        return protocol.Attempt(run=self.run, number=self.attempt)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Listing of a base model: the body of its MODEL_MARKER."""

    name: str
    """Its directory."""
    origin: str
    """Where it came from: hub name and revision, or the directory that it was made of."""
    files: tuple[File, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def version_key(weights_prefix: str, attempt: protocol.Attempt, version: int) -> str:
    """Key of the manifest of a version as it was published."""
    return protocol.version_prefix(weights_prefix, attempt, version) + protocol.MANIFEST_NAME


def anchor_key(weights_prefix: str, attempt: protocol.Attempt, version: int) -> str:
    """Key of the manifest of a version's whole form beside its delta."""
    return protocol.version_prefix(weights_prefix, attempt, version) + ANCHOR_FOLDER + protocol.MANIFEST_NAME


def folder_of(key: str) -> str:
    """Prefix of the files that a manifest lists, with its slash."""
    return key.rsplit("/", 1)[0] + "/"


def version_of(key: str) -> int:
    """The version that a manifest's key names."""
    return int(folder_of(key).removesuffix(ANCHOR_FOLDER).rstrip("/").rsplit("/", 1)[1])


def encode(document: Manifest | Model) -> str:
    return protocol.encode(document)


def decode_manifest(text: bytes) -> Manifest:
    """Raises InputFault for anything that is not a whole manifest."""
    document = protocol.decode(Manifest, text)
    if document.kind not in ("full", "delta") or (document.kind == "delta") != (document.base is not None):
        raise InputFault("manifest.kind", document.kind, f"does not go with base {document.base}", "Publish it anew.")
    return replace(document, files=_files(document.files))


def decode_model(text: bytes) -> Model:
    """Raises InputFault for anything that is not a whole listing."""
    document = protocol.decode(Model, text)
    return replace(document, files=_files(document.files))


def list_files(directory: Path, names: Iterable[str], *, workers: int = 4) -> tuple[File, ...]:
    """Sizes and digests of the named files, in the order of their names."""
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="digest") as pool:
        return tuple(pool.map(lambda name: describe(directory, name), sorted(names)))


def describe(directory: Path, name: str) -> File:
    path = directory / name
    chunks: list[str] = []
    size = 0
    with path.open("rb") as stream:
        while True:
            length, digest = _digest(stream, CHUNK_BYTES)
            if length == 0:
                break
            size += length
            chunks.append(digest)
    return File(name=name, size_bytes=size, chunk_bytes=CHUNK_BYTES, chunks=tuple(chunks))


def difference(file: File, directory: Path) -> str | None:
    """Why the file on disk is not the listed one; None where it is, byte for byte."""
    path = directory / file.name
    if not path.is_file():
        return f"{file.name} is missing"
    size = path.stat().st_size
    if size != file.size_bytes:
        return f"{file.name} has {size} bytes instead of {file.size_bytes}"
    with path.open("rb") as stream:
        for number, listed in enumerate(file.chunks):
            if _digest(stream, file.chunk_bytes)[1] != listed:
                return f"{file.name} differs in chunk {number} of {file.chunk_bytes} bytes"
    return None


def _digest(stream: Any, most: int) -> tuple[int, str]:
    hasher, left = hashlib.sha256(), most
    while left:
        block = stream.read(min(READ_BYTES, left))
        if not block:
            break
        hasher.update(block)
        left -= len(block)
    return most - left, hasher.hexdigest()


def _files(written: Sequence[Any]) -> tuple[File, ...]:
    try:
        files = tuple(File(**{**entry, "chunks": tuple(entry["chunks"])}) for entry in written)
        names = [_safe(file.name) for file in files]
        whole = all(len(file.chunks) == -(-file.size_bytes // file.chunk_bytes) for file in files)
    except (TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise InputFault("manifest.files", "", f"is no list of files: {error}", "Publish it anew.") from error
    if not whole or len(set(names)) != len(names):
        raise InputFault("manifest.files", "", "misses chunks or names a file twice", "Publish it anew.")
    return files


def _safe(name: str) -> str:
    """The name, where it stays below the directory that it is put into."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not re.fullmatch(r"[\w.@+=/-]+", name, re.ASCII):
        raise InputFault("manifest.files", name, "is no relative path of plain characters", "Publish it anew.")
    return name
