"""Transfers: what broke off is a fault that callers know, whoever of boto3, the CRT and S3 says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from awscrt.exceptions import AwsCrtError
from boto3.exceptions import RetriesExceededError

from moerl_runtime import store
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import transfer
from moerl_runtime.weights.manifest import list_files
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, FakeS3

from .bed import S3

CLOSED = AwsCrtError(1051, "AWS_IO_SOCKET_CLOSED", "socket is closed")


def test_an_upload_that_s3_refuses_is_a_fault(tmp_path: Path, local_aws: str) -> None:
    (tmp_path / "a").write_bytes(b"body")
    files = list_files(tmp_path, ["a"])
    with pytest.raises(RuntimeFault, match=r"weights/a': broke off: .*NoSuchBucket"):
        transfer.upload(store.client("us-west-2", local_aws), "no-such-bucket", "weights/", tmp_path, files)


@pytest.mark.parametrize("error", [RetriesExceededError(TimeoutError()), CLOSED], ids=["boto3", "crt"])
def test_a_download_that_breaks_off_is_a_fault_and_goes_on_later(tmp_path: Path, error: Exception) -> None:
    (tmp_path / "a").write_bytes(b"body")
    files = list_files(tmp_path, ["a"])
    service = FakeS3()
    transfer.upload(S3(service), BUCKET, "weights/", tmp_path, files)

    def breaks(operation: str) -> None:
        if operation == "download_file in the middle":
            raise error

    with pytest.raises(RuntimeFault, match="weights/a': broke off"):
        transfer.download(S3(service, breaks), BUCKET, "weights/", tmp_path / "node", files)
    assert not (tmp_path / "node" / "a").exists()
    assert transfer.download(S3(service), BUCKET, "weights/", tmp_path / "node", files) == 4
    assert (tmp_path / "node" / "a").read_bytes() == b"body"


def test_the_largest_go_first_and_every_tenth_is_told(tmp_path: Path) -> None:
    for number, size in enumerate((1, 6, 3)):
        (tmp_path / str(number)).write_bytes(b"x" * size)
    service, told, order = FakeS3(), [], []
    s3 = S3(service)
    put = s3.upload_file
    s3.upload_file = lambda *given, **named: (order.append(given[0][-1]), put(*given, **named))  # type: ignore[method-assign]
    files = list_files(tmp_path, ["0", "1", "2"])
    transfer.upload(s3, BUCKET, "weights/", tmp_path, files, workers=1, report=told.append)
    assert order == ["1", "2", "0"]
    assert [line.split(":")[1].split()[0] for line in told] == ["60", "90", "100"]
