"""The CRT's client: a transfer has ended when the file is in its place, not when the bytes have come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime import store
from moerl_runtime.checkpoint.crt import Native, native


class Manager:
    """s3transfer's manager: the future has its result first, and the file is renamed by a callback in another thread."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, threading.Event()
        self.renamed = False

    def download(self, _bucket: str, _key: str, path: str, subscribers: list[Any]) -> Manager:
        def rename() -> None:
            self.asked.wait()
            if self.error is None:
                Path(path).write_bytes(b"body")
            self.renamed = True
            for subscriber in subscribers:
                subscriber.on_done(future=self)

        threading.Thread(target=rename, daemon=True).start()
        return self

    def result(self) -> None:
        self.asked.set()
        if self.renamed and self.error is not None:
            raise self.error


def test_a_download_ends_when_the_file_is_in_its_place(tmp_path: Path) -> None:
    Native(Manager()).download("bucket", "key", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"body"


def test_a_file_that_cannot_be_renamed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"):
        Native(Manager(OSError("no space"))).download("bucket", "key", str(tmp_path / "file"))


def test_the_client_is_for_the_region_and_endpoint_of_the_other(tmp_path: Path, at_local_aws: str) -> None:
    s3 = store.client("us-west-2")
    s3.create_bucket(Bucket="crt-endpoint", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    client = native(s3)
    assert client is not None
    (tmp_path / "file").write_bytes(b"body")
    client.upload(str(tmp_path / "file"), "crt-endpoint", "key")
    stored = store.get(store.client("us-west-2", at_local_aws), "crt-endpoint", "key")
    assert stored is not None
    assert stored.body == b"body"


def test_without_credentials_there_is_none(at_local_aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    del at_local_aws
    s3 = store.client("us-west-2")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    assert native(s3) is None
