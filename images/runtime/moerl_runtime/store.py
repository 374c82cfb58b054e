"""S3 as this package uses it: whole small objects, and writes that only one of two racing writers can win.

`put_new` succeeds once per key (If-None-Match), `replace` only on the version that was read (If-Match). S3 answers 412 to
the loser. It answers 409 to a write that met another one under way, which may itself come to nothing: that is no defeat, and
the write is sent again until one of them is decided. boto3 retries throttles and 5xx by itself, and a retried conditional
write whose first answer was lost looks like a defeat: callers that must know compare what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from moerl_runtime.faults import RuntimeFault

LOST = frozenset({"PreconditionFailed", "412"})
UNDECIDED = frozenset({"ConditionalRequestConflict", "409"})
ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
DENIED = frozenset({"AccessDenied", "403"})
UNCHANGED = frozenset({"304", "NotModified"})
ATTEMPTS = 10
CONNECTIONS = 64
CONFLICTS_MAX = 16
"""Undecided answers in a row to one write before they count as an error. No racer takes that many round trips."""
DELETED_AT_ONCE = 1000
"""S3's own limit for one request."""

S3Client = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A small object as read. `age_seconds` is S3's own: its clock now less its clock at the write."""

    body: bytes
    etag: str
    age_seconds: float


def client(region: str, endpoint_url: str | None = None, *, connections: int = CONNECTIONS) -> S3Client:
    """An S3 client with bounded waits: a dead connection must not hold a drain.

    Without `endpoint_url` botocore takes AWS_ENDPOINT_URL_S3, else AWS_ENDPOINT_URL, else AWS itself.
    """
    return boto3.client(
        "s3",
        region_name=region,
        endpoint_url=endpoint_url,
        config=Config(
            connect_timeout=5,
            read_timeout=30,
            max_pool_connections=connections,
            retries={"mode": "adaptive", "total_max_attempts": ATTEMPTS},
        ),
    )


def get(s3: S3Client, bucket: str, key: str, *, unless_etag: str | None = None) -> Stored | None:
    """The object; None where it is absent, or where it still has `unless_etag`."""
    condition = {"IfNoneMatch": unless_etag} if unless_etag else {}
    try:
        answer = s3.get_object(Bucket=bucket, Key=key, **condition)
    except ClientError as error:
        if code(error) in UNCHANGED or absent(s3, bucket, key, error):
            return None
        if code(error) not in DENIED:
            raise
        # Refused in earnest, or written between the read and the listing.
        answer = s3.get_object(Bucket=bucket, Key=key, **condition)
    return Stored(body=answer["Body"].read(), etag=answer["ETag"], age_seconds=_age_seconds(answer))


def put(s3: S3Client, bucket: str, key: str, body: str | bytes) -> str:
    """Writes the object, whatever was there. Returns its ETag."""
    return str(s3.put_object(Bucket=bucket, Key=key, Body=_bytes(body))["ETag"])


def put_new(s3: S3Client, bucket: str, key: str, body: str | bytes) -> str | None:
    """Writes the object unless one is there. Returns its ETag, or None for the one who came second."""
    return _conditional(s3, bucket, key, body, IfNoneMatch="*")


def replace(s3: S3Client, bucket: str, key: str, body: str | bytes, *, etag: str) -> str | None:
    """Writes over the version that has `etag`. Returns the new ETag, or None where another version is there."""
    return _conditional(s3, bucket, key, body, IfMatch=etag)


def delete(s3: S3Client, bucket: str, key: str) -> None:
    s3.delete_object(Bucket=bucket, Key=key)


def delete_all(s3: S3Client, bucket: str, keys: Sequence[str]) -> None:
    """Deletes the objects, many a request. Raises RuntimeFault for one that S3 kept, after those of the requests before."""
    for start in range(0, len(keys), DELETED_AT_ONCE):
        batch = [{"Key": key} for key in keys[start : start + DELETED_AT_ONCE]]
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
        for kept in answer.get("Errors", ()):
            raise RuntimeFault(
                "object", f"s3://{bucket}/{kept['Key']}", f"was not deleted: {kept.get('Code')}", "Prune again."
            )


def keys(s3: S3Client, bucket: str, prefix: str, *, after: str = "") -> Iterator[str]:
    """Keys below a prefix, in order."""
    start = {"StartAfter": after} if after else {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, **start):
        for entry in page.get("Contents", ()):
            yield entry["Key"]


def folders(s3: S3Client, bucket: str, prefix: str) -> Iterator[str]:
    """Names directly below a prefix that end in a slash, without prefix and slash, in order."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/"):
        for entry in page.get("CommonPrefixes", ()):
            yield entry["Prefix"].removeprefix(prefix).rstrip("/")


def absent(s3: S3Client, bucket: str, key: str, error: ClientError) -> bool:
    """Whether a failed read means that no such object is there.

    S3 says so (404) only to who may list the bucket, and a permission to list below some prefixes is none when it asks: a
    read has no prefix. Such a caller gets 403 and learns from a listing of that one key.
    """
    if code(error) not in DENIED:
        return code(error) in ABSENT
    page = s3.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
    return all(entry["Key"] != key for entry in page.get("Contents", ()))


def code(error: ClientError) -> str:
    """S3's error code, or the HTTP status where it sent none (HEAD, 304)."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _conditional(s3: S3Client, bucket: str, key: str, body: str | bytes, **condition: str) -> str | None:
    conflicts = 0
    while True:
        try:
            return str(s3.put_object(Bucket=bucket, Key=key, Body=_bytes(body), **condition)["ETag"])
        except ClientError as error:
            # If-Match on a key that is gone answers 404.
            if code(error) in LOST | ABSENT:
                return None
            conflicts += 1
            if code(error) not in UNDECIDED or conflicts > CONFLICTS_MAX:
                raise


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else body


def _age_seconds(answer: Any) -> float:
    written: datetime = answer["LastModified"]
    now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    return (now - written).total_seconds()
