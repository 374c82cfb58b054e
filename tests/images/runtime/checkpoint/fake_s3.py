"""S3 in memory, with a say over every call: it may die before or after it, answer twice, or let another actor go first.

What is kept of S3: strong consistency, conditional writes, versions of single objects by ETag, uploads in parts with
checksums of the whole, listings in order, a clock of its own.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from typing import Any

from awscrt import checksums
from botocore.exceptions import ClientError

BUCKET = "checkpoints"
REPEATED = frozenset({"put_object", "complete_multipart_upload", "delete_object", "upload_part"})


class Crash(BaseException):
    """The process is gone. No handler of the code under test may catch it."""


@dataclass
class Object:
    body: bytes
    etag: str
    crc: str
    written: float


@dataclass
class Upload:
    key: str
    number: int
    parts: dict[int, tuple[bytes, str]] = field(default_factory=dict)


def crc(body: bytes) -> str:
    return base64.b64encode(checksums.crc64nvme(body).to_bytes(8, "big")).decode()


class FakeS3:
    """The service. `client()` gives one process's view of it."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, Upload] = {}
        self.now = 1_000_000.0
        self.counter = 0

    def client(self, before: Callable[[str], None] | None = None, after: Callable[[str], None] | None = None) -> Client:
        return Client(self, before or _pass, after or _pass)


def _pass(_operation: str) -> None:
    pass


class Client:
    """boto3's client, as far as this package uses it. `before` and `after` are told the operation of every call."""

    def __init__(self, service: FakeS3, before: Callable[[str], None], after: Callable[[str], None]) -> None:
        self._service, self._before, self._after = service, before, after
        self.repeat_at: int | None = None
        """The answer of that call is lost: boto3 repeats it, and what the repetition is told is the answer."""
        self.arguments: Mapping[str, Any] = {}
        """Of the call that is being made."""
        self.calls = 0
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        operation = getattr(self, f"_{name}")

        def call(**arguments: Any) -> Any:
            self.arguments = arguments
            self._before(name)
            number = self.calls
            self.calls += 1
            self.made.append(name)
            assert arguments.pop("Bucket") == BUCKET
            try:
                answer = operation(**arguments)
                if number == self.repeat_at and name in REPEATED:
                    answer = operation(**arguments)
            finally:
                self._after(name)
            return answer

        return call

    def get_paginator(self, operation: str) -> Paginator:
        return Paginator(getattr(self, operation))

    def delete_objects(self, Bucket: str, Delete: Mapping[str, Any], **_options: Any) -> Mapping[str, Any]:
        """Object by object, in no order that a caller might count on; the process may die in the middle."""
        for entry in reversed(Delete["Objects"]):
            self.delete_object(Bucket=Bucket, Key=entry["Key"])
        return {}

    def _put_object(
        self, Key: str, Body: bytes, ChecksumCRC64NVME: str | None = None, **condition: str
    ) -> Mapping[str, Any]:
        self._check(Key, condition)
        if ChecksumCRC64NVME is not None and crc(Body) != ChecksumCRC64NVME:
            raise refused("BadDigest", 400, "PutObject")
        return {"ETag": self._store(Key, Body)}

    def _get_object(self, Key: str, Range: str = "", IfNoneMatch: str = "") -> Mapping[str, Any]:
        found = self._found(Key, "GetObject")
        if IfNoneMatch and IfNoneMatch == found.etag:
            raise refused("304", 304, "GetObject")
        body = found.body
        if Range:
            first, _, last = Range.removeprefix("bytes=").partition("-")
            body = body[int(first) : int(last) + 1]
        date = format_datetime(datetime.fromtimestamp(int(self._service.now), UTC), usegmt=True)
        return {
            "Body": Body(body),
            "ETag": found.etag,
            "LastModified": datetime.fromtimestamp(int(found.written), UTC),
            "ResponseMetadata": {"HTTPHeaders": {"date": date}},
        }

    def _head_object(self, Key: str, ChecksumMode: str) -> Mapping[str, Any]:
        assert ChecksumMode == "ENABLED"
        try:
            found = self._found(Key, "HeadObject")
        except ClientError as error:
            raise refused("404", 404, "HeadObject") from error
        return {"ContentLength": len(found.body), "ChecksumCRC64NVME": found.crc, "ETag": found.etag}

    def _delete_object(self, Key: str) -> Mapping[str, Any]:
        self._service.objects.pop(Key, None)
        return {}

    def _list_objects_v2(
        self, Prefix: str, Delimiter: str = "", StartAfter: str = "", MaxKeys: int | None = None
    ) -> Mapping[str, Any]:
        keys = sorted(key for key in self._service.objects if key.startswith(Prefix) and key > StartAfter)[:MaxKeys]
        if not Delimiter:
            return {"Contents": [{"Key": key} for key in keys]}
        folders = {Prefix + rest.partition("/")[0] + "/" for key in keys if "/" in (rest := key.removeprefix(Prefix))}
        return {"CommonPrefixes": [{"Prefix": folder} for folder in sorted(folders)]}

    def _create_multipart_upload(self, Key: str, ChecksumAlgorithm: str, ChecksumType: str) -> Mapping[str, Any]:
        assert (ChecksumAlgorithm, ChecksumType) == ("CRC64NVME", "FULL_OBJECT")
        self._service.counter += 1
        identifier = f"upload-{self._service.counter}"
        self._service.uploads[identifier] = Upload(Key, self._service.counter)
        return {"UploadId": identifier}

    def _upload_part(
        self, Key: str, UploadId: str, PartNumber: int, Body: bytes, ChecksumCRC64NVME: str
    ) -> Mapping[str, Any]:
        upload = self._upload(UploadId, Key, "UploadPart")
        if crc(Body) != ChecksumCRC64NVME:
            raise refused("BadDigest", 400, "UploadPart")
        etag = f'"{md5(Body).hexdigest()}"'  # noqa: S324 - as S3 does
        upload.parts[PartNumber] = (Body, etag)
        return {"ETag": etag}

    def _list_parts(self, Key: str, UploadId: str) -> Mapping[str, Any]:
        upload = self._upload(UploadId, Key, "ListParts")
        return {
            "Parts": [
                {"PartNumber": number, "Size": len(body), "ETag": etag, "ChecksumCRC64NVME": crc(body)}
                for number, (body, etag) in sorted(upload.parts.items())
            ]
        }

    def _list_multipart_uploads(self, Prefix: str) -> Mapping[str, Any]:
        return {
            "Uploads": [
                {"Key": upload.key, "UploadId": identifier, "Initiated": upload.number}
                for identifier, upload in sorted(self._service.uploads.items())
                if upload.key.startswith(Prefix)
            ]
        }

    def _complete_multipart_upload(
        self,
        Key: str,
        UploadId: str,
        MultipartUpload: Mapping[str, Any],
        ChecksumCRC64NVME: str,
        ChecksumType: str,
        MpuObjectSize: int,
    ) -> Mapping[str, Any]:
        assert ChecksumType == "FULL_OBJECT"
        upload = self._upload(UploadId, Key, "CompleteMultipartUpload")
        bodies = []
        for part in MultipartUpload["Parts"]:
            body, etag = upload.parts.get(part["PartNumber"], (b"", ""))
            if etag != part["ETag"]:
                raise refused("InvalidPart", 400, "CompleteMultipartUpload")
            bodies.append(body)
        whole = b"".join(bodies)
        if crc(whole) != ChecksumCRC64NVME or len(whole) != MpuObjectSize:
            raise refused("BadDigest", 400, "CompleteMultipartUpload")
        del self._service.uploads[UploadId]
        return {"ETag": self._store(Key, whole)}

    def _abort_multipart_upload(self, Key: str, UploadId: str) -> Mapping[str, Any]:
        self._upload(UploadId, Key, "AbortMultipartUpload")
        del self._service.uploads[UploadId]
        return {}

    def _store(self, key: str, body: bytes) -> str:
        etag = f'"{md5(body).hexdigest()}"'  # noqa: S324 - as S3 does
        self._service.objects[key] = Object(bytes(body), etag, crc(body), self._service.now)
        return etag

    def _found(self, key: str, operation: str) -> Object:
        if key not in self._service.objects:
            raise refused("NoSuchKey", 404, operation)
        return self._service.objects[key]

    def _check(self, key: str, condition: Mapping[str, str]) -> None:
        there = self._service.objects.get(key)
        if condition.get("IfNoneMatch") == "*" and there is not None:
            raise refused("PreconditionFailed", 412, "PutObject")
        if "IfMatch" in condition:
            if there is None:
                raise refused("NoSuchKey", 404, "PutObject")
            if there.etag != condition["IfMatch"]:
                raise refused("PreconditionFailed", 412, "PutObject")

    def _upload(self, identifier: str, key: str, operation: str) -> Upload:
        upload = self._service.uploads.get(identifier)
        if upload is None or upload.key != key:
            raise refused("NoSuchUpload", 404, operation)
        return upload


class Body(io.BytesIO):
    """botocore's StreamingBody."""

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        while block := self.read(size):
            yield block


class Paginator:
    """One page, got when it is asked for."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def paginate(self, **arguments: Any) -> Iterator[Any]:
        yield self._call(**arguments)


def refused(code: str, status: int, operation: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "refused"}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation
    )
