"""One file up or down, in parts, verified by the CRC-64/NVME of the whole.

An upload reads the file's checksum first. What S3 has already is skipped, an upload that was broken off goes on with the
parts that are missing, and everything is compared with what S3 says it stored: ETags of uploads in parts say nothing about
content. Fresh uploads and downloads go through the AWS CRT where there is one, the rest through boto3 and threads; both make
parts of the same size, so boto3 continues what the CRT began.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from awscrt import checksums
from awscrt.exceptions import AwsCrtError
from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import disk, store
from moerl_runtime.checkpoint.crt import ALGORITHM, PART_BYTES, Native
from moerl_runtime.checkpoint.layout import File
from moerl_runtime.store import S3Client

PARTS_MAX = 10_000
"""S3's own limit for one object."""
READ_BYTES = 8 * 2**20
"""Of one read for a checksum."""
FILES_AT_ONCE, PARTS_AT_ONCE = 8, 16


class Damaged(RuntimeError):
    """Bytes that are not those that were read or stored first."""


TRANSIENT = (BotoCoreError, ClientError, AwsCrtError, OSError, Damaged)
"""What another try may cure: S3 that throttles or is out of reach, a save that goes on after it was announced."""


def nobody(_count: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """How files are moved. Without `native` by boto3 alone; `moved` hears of bytes."""

    s3: S3Client
    bucket: str
    parts: Executor
    native: Native | None = None
    part_bytes: int = PART_BYTES
    moved: Callable[[int], None] = nobody


Moving = Callable[[str, int], AbstractContextManager[Moves]]
"""How files are moved, given a label and the bytes to come; its end is the end of the transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A range of a file, with its checksum."""

    number: int
    start: int
    size: int
    crc: int


def upload(moves: Moves, key: str, path: Path, *, name: str, begun: Mapping[str, str]) -> File:
    """Brings a file to S3 and proves that it is there. `begun` are broken-off uploads (`begun_uploads`), by key.

    Raises Damaged where the file changes meanwhile, or S3 stored something else.
    """
    before = path.stat()
    parts = read_parts(path, before.st_size, part_size(before.st_size, moves.part_bytes), moves.parts)
    file = File(name=name, size=before.st_size, crc64nvme=encoded(whole(parts)))
    if is_stored(moves, key, file):
        moves.moved(file.size)
    else:
        _send(moves, key, path, file, parts, begun.get(key))
        if not is_stored(moves, key, file):
            raise Damaged(f"s3://{moves.bucket}/{key} is not what {path} was when it was read")
    after = path.stat()
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise Damaged(f"{path} was written to while it was uploaded")
    return file


def download(moves: Moves, key: str, file: File, path: Path) -> None:
    """Brings a file from S3, through a name beside its own. Raises Damaged if it is not the one that was committed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    if moves.native is not None and file.size > 0:
        moves.native.download(moves.bucket, key, str(beside))
        moves.moved(file.size)
    else:
        _fetch(moves, key, file, beside)
    if not is_at(beside, file, moves):
        beside.unlink()
        raise Damaged(f"s3://{moves.bucket}/{key} is not the file that was committed as {file.name}")
    disk.sync(beside)
    beside.replace(path)


def is_stored(moves: Moves, key: str, file: File) -> bool:
    """Whether S3 has exactly this file under the key: its size, and its own checksum over the whole."""
    try:
        head = moves.s3.head_object(Bucket=moves.bucket, Key=key, ChecksumMode="ENABLED")
    except ClientError as error:
        # Who may list only below some prefixes is refused where nothing is, and learns from a listing of the key.
        if store.absent(moves.s3, moves.bucket, key, error):
            return False
        raise
    return bool(head["ContentLength"] == file.size and head.get("ChecksumCRC64NVME") == file.crc64nvme)


def is_at(path: Path, file: File, moves: Moves) -> bool:
    """Whether the path holds exactly this file."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
        return False
    size = part_size(file.size, moves.part_bytes)
    return encoded(whole(read_parts(path, file.size, size, moves.parts))) == file.crc64nvme


def begun_uploads(s3: S3Client, bucket: str, prefix: str) -> dict[str, str]:
    """Uploads in parts below a prefix that were neither completed nor given up: key to upload id, the newest of each."""
    found: dict[str, str] = {}
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for entry in sorted(page.get("Uploads", ()), key=lambda entry: entry["Initiated"]):
            found[entry["Key"]] = entry["UploadId"]
    return found


def part_size(size: int, smallest: int = PART_BYTES) -> int:
    return max(smallest, -(-size // PARTS_MAX))


def read_parts(path: Path, size: int, part_bytes: int, pool: Executor) -> list[Part]:
    """The file's parts with their checksums; one empty part for an empty file."""
    starts = range(0, size, part_bytes) if size else (0,)
    ranges = [(start, min(part_bytes, size - start)) for start in starts]
    with path.open("rb") as file:
        sums = pool.map(lambda range_: _checksum(file.fileno(), *range_), ranges)
        return [
            Part(number=number, start=start, size=length, crc=crc)
            for number, ((start, length), crc) in enumerate(zip(ranges, sums, strict=True), start=1)
        ]


def whole(parts: Iterable[Part]) -> int:
    """Checksum of the file, from those of its parts."""
    total = 0
    for part in parts:
        total = int(checksums.combine_crc64nvme(total, part.crc, part.size))
    return total


def encoded(crc: int) -> str:
    """As S3 writes it."""
    return base64.b64encode(crc.to_bytes(8, "big")).decode()


def pools() -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
    """(files, parts): a file's thread waits for its parts, so they must not share one pool."""
    return (
        ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="file"),
        ThreadPoolExecutor(PARTS_AT_ONCE, thread_name_prefix="part"),
    )


def _checksum(descriptor: int, start: int, length: int) -> int:
    crc, at, end = 0, start, start + length
    while at < end:
        block = os.pread(descriptor, min(READ_BYTES, end - at), at)
        if not block:
            raise Damaged("a file became shorter while it was read")
        crc, at = int(checksums.crc64nvme(block, crc)), at + len(block)
    return crc


def _send(moves: Moves, key: str, path: Path, file: File, parts: list[Part], begun: str | None) -> None:
    if len(parts) == 1:
        moves.s3.put_object(Bucket=moves.bucket, Key=key, Body=path.read_bytes(), ChecksumCRC64NVME=file.crc64nvme)
        moves.moved(file.size)
    elif begun is None and moves.native is not None:
        moves.native.upload(str(path), moves.bucket, key)
        moves.moved(file.size)
    else:
        _send_parts(moves, key, path, file, parts, begun)


def _send_parts(moves: Moves, key: str, path: Path, file: File, parts: list[Part], begun: str | None) -> None:
    """Sends what is missing of an upload in parts, and completes it."""
    s3, bucket = moves.s3, moves.bucket
    stored: dict[int, tuple[int, str, str]] = {}
    if begun is not None:
        stored = _stored_parts(moves, key, begun)
        sizes = {part.number: part.size for part in parts}
        if any(sizes.get(number) != size for number, (size, _, _) in stored.items()):
            # Other parts than ours, of an older release or of a file that was longer.
            s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun)
            begun, stored = None, {}
    upload_id = begun or str(
        s3.create_multipart_upload(Bucket=bucket, Key=key, ChecksumAlgorithm=ALGORITHM, ChecksumType="FULL_OBJECT")[
            "UploadId"
        ]
    )

    with path.open("rb") as opened:

        def send(part: Part) -> dict[str, Any]:
            crc = encoded(part.crc)
            size, stored_crc, etag = stored.get(part.number, (0, "", ""))
            if (size, stored_crc) != (part.size, crc):
                body = os.pread(opened.fileno(), part.size, part.start)
                # S3 refuses bytes of another checksum, so a part that was damaged since it was read does not get in.
                etag = s3.upload_part(
                    Bucket=bucket,
                    Key=key,
                    UploadId=upload_id,
                    PartNumber=part.number,
                    Body=body,
                    ChecksumCRC64NVME=crc,
                )["ETag"]
            moves.moved(part.size)
            return {"PartNumber": part.number, "ETag": etag, "ChecksumCRC64NVME": crc}

        sent = list(moves.parts.map(send, parts))
    try:
        s3.complete_multipart_upload(
            Bucket=bucket,
            Key=key,
            UploadId=upload_id,
            MultipartUpload={"Parts": sent},
            ChecksumCRC64NVME=file.crc64nvme,
            ChecksumType="FULL_OBJECT",
            MpuObjectSize=file.size,
        )
    except ClientError as error:
        # Repeated after an answer that was lost: the upload is complete and therefore gone. The caller looks.
        if store.code(error) != "NoSuchUpload":
            raise


def _stored_parts(moves: Moves, key: str, upload_id: str) -> dict[int, tuple[int, str, str]]:
    """Number to (size, checksum, ETag) of the parts that S3 has."""
    pages = moves.s3.get_paginator("list_parts").paginate(Bucket=moves.bucket, Key=key, UploadId=upload_id)
    return {
        entry["PartNumber"]: (entry["Size"], entry.get("ChecksumCRC64NVME", ""), entry["ETag"])
        for page in pages
        for entry in page.get("Parts", ())
    }


def _fetch(moves: Moves, key: str, file: File, path: Path) -> None:
    size = part_size(file.size, moves.part_bytes)
    with path.open("wb") as opened:
        opened.truncate(file.size)

        def fetch(start: int) -> None:
            end = min(start + size, file.size)
            answer = moves.s3.get_object(Bucket=moves.bucket, Key=key, Range=f"bytes={start}-{end - 1}")
            at = start
            for block in answer["Body"].iter_chunks(READ_BYTES):
                at += os.pwrite(opened.fileno(), block, at)
                moves.moved(len(block))
            if at != end:
                raise Damaged(f"s3://{moves.bucket}/{key} is shorter than what was committed as {file.name}")

        list(moves.parts.map(fetch, range(0, file.size, size)))
