"""S3: of two racing writers one wins and knows it, absent is no error, and age is S3's own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from botocore.exceptions import ClientError

from moerl_runtime import sqs, store
from moerl_runtime.faults import RuntimeFault

BUCKET = "moerl-test"


@pytest.fixture
def s3(local_aws: str) -> Iterator[store.S3Client]:
    client = store.client("us-west-2", local_aws)
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield client
    for key in store.keys(client, BUCKET, ""):
        store.delete(client, BUCKET, key)
    client.delete_bucket(Bucket=BUCKET)


def test_what_is_absent_is_none(s3: store.S3Client) -> None:
    assert store.get(s3, BUCKET, "nothing") is None


class Limited:
    """S3 for a role that may list below one prefix only: a read of a missing object is refused, not absent."""

    def __init__(self, *, there: bool, allowed: bool = True, comes: bool = False) -> None:
        self.there, self.allowed, self.comes = there, allowed, comes

    def get_object(self, **_: object) -> dict[str, object]:
        if self.there and self.allowed:
            now = datetime(2026, 11, 29, tzinfo=UTC)
            return {
                "Body": io.BytesIO(b"x"),
                "ETag": "1",
                "LastModified": now,
                "ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(now, usegmt=True)}},
            }
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")

    def list_objects_v2(self, Prefix: str, **_: object) -> dict[str, object]:
        self.there |= self.comes
        return {"Contents": [{"Key": Prefix if self.there else f"{Prefix}-other"}]}


def test_a_role_that_may_list_below_a_prefix_alone_still_tells_absent_from_refused() -> None:
    assert store.get(Limited(there=False), BUCKET, "weights/current.json") is None
    with pytest.raises(ClientError, match="AccessDenied"):
        store.get(Limited(there=True, allowed=False), BUCKET, "weights/current.json")
    found = store.get(Limited(there=False, comes=True), BUCKET, "weights/current.json")
    assert found is not None
    assert found.body == b"x"


def test_what_is_written_is_read_with_its_etag(s3: store.S3Client) -> None:
    etag = store.put(s3, BUCKET, "a", "text")
    found = store.get(s3, BUCKET, "a")
    assert found is not None
    assert (found.body, found.etag) == (b"text", etag)
    assert -1 <= found.age_seconds < 60
    assert store.get(s3, BUCKET, "a", unless_etag=etag) is None


def test_a_new_key_is_won_once(s3: store.S3Client) -> None:
    assert store.put_new(s3, BUCKET, "once", b"first")
    assert store.put_new(s3, BUCKET, "once", b"second") is None
    found = store.get(s3, BUCKET, "once")
    assert found is not None
    assert found.body == b"first"


def test_a_version_is_replaced_once(s3: store.S3Client) -> None:
    etag = store.put(s3, BUCKET, "pointer", b"1")
    assert store.replace(s3, BUCKET, "pointer", b"2", etag=etag)
    assert store.replace(s3, BUCKET, "pointer", b"3", etag=etag) is None
    found = store.get(s3, BUCKET, "pointer")
    assert found is not None
    assert found.body == b"2"


@pytest.mark.parametrize("code", ["PreconditionFailed", "412"])
def test_a_loser_is_told_so(code: str) -> None:
    assert store.put_new(_Refusing(code), BUCKET, "key", b"") is None
    assert store.replace(_Refusing(code), BUCKET, "key", b"", etag="x") is None


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "409"])
def test_a_write_that_met_another_is_sent_again_until_one_is_decided(code: str) -> None:
    """The other one may have failed: taken for a defeat, a sample would be announced that nobody stored."""
    assert store.put_new(_Refusing(code, times=3), BUCKET, "key", b"") == "stored"
    assert store.replace(_Refusing(code, times=3), BUCKET, "key", b"", etag="x") == "stored"
    assert store.put_new(_Refusing(code, times=3, then="PreconditionFailed"), BUCKET, "key", b"") is None
    with pytest.raises(ClientError, match=code):
        store.put_new(_Refusing(code), BUCKET, "key", b"")


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown", "NoSuchBucket", "500"])
def test_any_other_refusal_is_raised(code: str) -> None:
    with pytest.raises(ClientError, match=code):
        store.put_new(_Refusing(code), BUCKET, "key", b"")
    with pytest.raises(ClientError, match=code):
        store.get(_Refusing(code), BUCKET, "key")


def test_keys_and_folders_come_in_order(s3: store.S3Client) -> None:
    for key in ("p/b/2", "p/a/1", "p/c", "q/x"):
        store.put(s3, BUCKET, key, b"")
    assert list(store.keys(s3, BUCKET, "p/")) == ["p/a/1", "p/b/2", "p/c"]
    assert list(store.keys(s3, BUCKET, "p/", after="p/a/1")) == ["p/b/2", "p/c"]
    assert list(store.folders(s3, BUCKET, "p/")) == ["a", "b"]
    store.delete(s3, BUCKET, "p/c")
    store.delete(s3, BUCKET, "p/c")
    assert list(store.keys(s3, BUCKET, "p/c")) == []


class _Refusing:
    """Refuses everything; where `times` is given, so many writes, and answers the next one with `then`."""

    def __init__(self, code: str, *, times: int | None = None, then: str = "") -> None:
        self._code, self._times, self._then = code, times, then

    def put_object(self, **_arguments: object) -> dict[str, str]:
        code = self._code
        if self._times is not None:
            self._times -= 1
            code = self._code if self._times >= 0 else self._then
        if not code:
            return {"ETag": "stored"}
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")

    def get_object(self, **_arguments: object) -> None:
        raise ClientError({"Error": {"Code": self._code, "Message": "no"}}, "GetObject")

    def list_objects_v2(self, **_arguments: object) -> None:
        raise ClientError({"Error": {"Code": self._code, "Message": "no"}}, "ListObjectsV2")


def test_all_are_deleted_however_many_and_one_that_stays_is_named(
    s3: store.S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "DELETED_AT_ONCE", 2)
    names = [f"many/{number}" for number in range(5)]
    for name in (*names, "other"):
        store.put(s3, BUCKET, name, b"x")
    store.delete_all(s3, BUCKET, names)
    assert list(store.keys(s3, BUCKET, "")) == ["other"]

    class Keeps:
        def delete_objects(self, **_: object) -> dict[str, object]:
            return {"Errors": [{"Key": "many/1", "Code": "AccessDenied"}]}

    with pytest.raises(RuntimeFault, match="many/1': was not deleted: AccessDenied"):
        store.delete_all(Keeps(), BUCKET, names)


def test_another_s3_is_named_by_the_variables_of_aws_and_asked_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name such as bucket.s3.local would be no host's."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://aws.local:1")
    assert url_of(store.client("us-west-2")).startswith("http://aws.local:1/bucket/key?")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.local:2")
    assert url_of(store.client("us-west-2")).startswith("http://s3.local:2/bucket/key?")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://sqs.local:3")
    assert sqs.client("us-west-2").meta.endpoint_url == "http://sqs.local:3"


def url_of(s3: store.S3Client) -> str:
    url: str = s3.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "key"})
    return url
