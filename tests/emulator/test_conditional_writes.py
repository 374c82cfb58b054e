"""Conditional writes and checksums of the embedded S3, on which the run lease and the commit of checkpoints rest."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from awscrt import checksums
from botocore.exceptions import ClientError

from moerl_runtime import store

from .bed import Bed

pytestmark = pytest.mark.emulator

BUCKET = "conditional-writes"
WRITERS = 24
PART_BYTES = 5 * 2**20


@pytest.fixture(scope="module")
def s3(beds: Callable[[str], Bed]) -> Any:
    bed = beds("us-west-2")
    made = bed.client("s3")
    made.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    made.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return made


def race(write: Callable[[int], str | None]) -> list[int]:
    """Numbers of the writers that won."""
    with ThreadPoolExecutor(WRITERS) as pool:
        return [number for number, won in enumerate(pool.map(write, range(WRITERS))) if won is not None]


def test_one_of_many_that_write_a_new_object_at_once_wins_and_its_body_stands(s3: Any) -> None:
    won = race(lambda number: store.put_new(s3, BUCKET, "new", f"writer {number}"))
    assert len(won) == 1
    stored = store.get(s3, BUCKET, "new")
    assert stored is not None
    assert stored.body == f"writer {won[0]}".encode()


def test_one_of_many_that_replace_the_version_they_read_wins(s3: Any) -> None:
    etag = store.put(s3, BUCKET, "replaced", "read by all")
    won = race(lambda number: store.replace(s3, BUCKET, "replaced", f"writer {number}", etag=etag))
    assert len(won) == 1
    stored = store.get(s3, BUCKET, "replaced")
    assert stored is not None
    assert stored.body == f"writer {won[0]}".encode()


def test_a_replacement_of_an_object_that_is_gone_loses(s3: Any) -> None:
    etag = store.put(s3, BUCKET, "gone", "body")
    store.delete(s3, BUCKET, "gone")
    assert store.replace(s3, BUCKET, "gone", "another", etag=etag) is None
    assert store.get(s3, BUCKET, "gone") is None


def test_a_deleted_object_may_be_new_again(s3: Any) -> None:
    assert store.put_new(s3, BUCKET, "again", "first") is not None
    store.delete(s3, BUCKET, "again")
    assert store.put_new(s3, BUCKET, "again", "second") is not None


def test_one_of_many_completions_of_uploads_in_parts_wins(s3: Any) -> None:
    started = [Upload(s3, "parts", f"writer {number}".encode()) for number in range(WRITERS)]
    won = race(lambda number: started[number].complete(IfNoneMatch="*"))
    assert len(won) == 1
    stored = store.get(s3, BUCKET, "parts")
    assert stored is not None
    assert stored.body == f"writer {won[0]}".encode()


def test_a_completion_replaces_only_the_version_that_it_names(s3: Any) -> None:
    etag = store.put(s3, BUCKET, "parts-replaced", "before")
    first, second = (Upload(s3, "parts-replaced", body) for body in (b"first", b"second"))
    assert first.complete(IfMatch=etag) is not None
    assert second.complete(IfMatch=etag) is None
    stored = store.get(s3, BUCKET, "parts-replaced")
    assert stored is not None
    assert stored.body == b"first"


def test_the_losers_are_told_412(s3: Any) -> None:
    store.put(s3, BUCKET, "told", "there")
    with pytest.raises(ClientError) as refused:
        s3.put_object(Bucket=BUCKET, Key="told", Body=b"", IfNoneMatch="*")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412


def test_an_object_in_parts_has_the_checksum_of_the_whole(s3: Any) -> None:
    body = secrets.token_bytes(PART_BYTES + 1000)
    Upload(s3, "whole", body).complete()
    head = s3.head_object(Bucket=BUCKET, Key="whole", ChecksumMode="ENABLED")
    assert head["ChecksumCRC64NVME"] == crc(body)
    assert head["ChecksumType"] == "FULL_OBJECT"


def test_a_completion_with_another_checksum_or_size_is_refused_and_stores_nothing(s3: Any) -> None:
    body = b"what was sent"
    upload = Upload(s3, "refused", body)
    with pytest.raises(ClientError, match="BadDigest"):
        upload.complete(ChecksumCRC64NVME=crc(b"something else"))
    with pytest.raises(ClientError, match="InvalidRequest"):
        upload.complete(MpuObjectSize=len(body) + 1)
    assert store.get(s3, BUCKET, "refused") is None
    assert upload.complete(ChecksumCRC64NVME=crc(body), MpuObjectSize=len(body)) is not None


def test_a_part_with_another_checksum_is_refused(s3: Any) -> None:
    upload = s3.create_multipart_upload(Bucket=BUCKET, Key="part", ChecksumAlgorithm="CRC64NVME")["UploadId"]
    with pytest.raises(ClientError, match="BadDigest"):
        s3.upload_part(
            Bucket=BUCKET,
            Key="part",
            UploadId=upload,
            PartNumber=1,
            Body=b"damaged on the way",
            ChecksumCRC64NVME=crc(b"as it was read"),
        )


class Upload:
    """An upload in parts, all of them sent."""

    def __init__(self, s3: Any, key: str, body: bytes) -> None:
        self.s3, self.key = s3, key
        self.identifier = s3.create_multipart_upload(
            Bucket=BUCKET, Key=key, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
        )["UploadId"]
        self.parts = [
            self._send(number, body[start : start + PART_BYTES])
            for number, start in enumerate(range(0, len(body), PART_BYTES), start=1)
        ]

    def _send(self, number: int, part: bytes) -> dict[str, Any]:
        answer = self.s3.upload_part(
            Bucket=BUCKET,
            Key=self.key,
            UploadId=self.identifier,
            PartNumber=number,
            Body=part,
            ChecksumCRC64NVME=crc(part),
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC64NVME": answer["ChecksumCRC64NVME"]}

    def complete(self, **condition: Any) -> str | None:
        """Its ETag; None where the condition did not hold."""
        try:
            return str(
                self.s3.complete_multipart_upload(
                    Bucket=BUCKET,
                    Key=self.key,
                    UploadId=self.identifier,
                    MultipartUpload={"Parts": self.parts},
                    **condition,
                )["ETag"]
            )
        except ClientError as error:
            if store.code(error) in store.LOST:
                return None
            raise


def crc(body: bytes) -> str:
    return base64.b64encode(checksums.crc64nvme(body).to_bytes(8, "big")).decode()
