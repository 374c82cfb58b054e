"""One file up and down: continued where it broke off, and never taken for what it is not."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime.checkpoint import transfer
from moerl_runtime.checkpoint.layout import File
from moerl_runtime.checkpoint.transfer import Damaged, Moves

from .bed import PART_BYTES, Inline
from .fake_s3 import BUCKET, Client, Crash, FakeS3, crc, refused

KEY = "steps/x/files/name"


def moves(client: Client) -> Moves:
    return Moves(s3=client, bucket=BUCKET, parts=Inline(), part_bytes=PART_BYTES)


def send(client: Client, path: Path) -> File:
    return transfer.upload(
        moves(client), KEY, path, name="name", begun=transfer.begun_uploads(client, BUCKET, "steps/x/")
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(bytes(range(250)) + b"the last part")
    return made


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=5 * PART_BYTES + 1), part_bytes=st.integers(1, 100))
def test_the_checksum_of_the_parts_is_that_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, part_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "file"
    path.write_bytes(body)
    parts = transfer.read_parts(path, len(body), part_bytes, Inline())
    assert transfer.encoded(transfer.whole(parts)) == crc(body)
    assert sum(part.size for part in parts) == len(body)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_files_of_all_sizes_come_back(tmp_path: Path, size: int) -> None:
    service = FakeS3()
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256))[:size] * (size // 256 + 1) if size < 256 else bytes(size))
    file = send(service.client(), path)
    transfer.download(moves(service.client()), KEY, file, tmp_path / "below" / "back")
    assert (tmp_path / "below" / "back").read_bytes() == path.read_bytes()
    assert [found.name for found in (tmp_path / "below").iterdir()] == ["back"]


def test_what_is_stored_is_not_sent_again(path: Path) -> None:
    service = FakeS3()
    send(service.client(), path)
    again = service.client()
    send(again, path)
    assert set(again.made) == {"list_multipart_uploads", "head_object"}


class Restricted(Client):
    """Of a role that may list only below prefixes: S3 refuses it a HEAD of what is not there."""

    refuses_all = False

    def _head_object(self, Key: str, ChecksumMode: str) -> Mapping[str, Any]:
        if self.refuses_all or Key not in self._service.objects:
            raise refused("403", 403, "HeadObject")
        return super()._head_object(Key, ChecksumMode)


def restricted(service: FakeS3) -> Restricted:
    return Restricted(service, lambda _: None, lambda _: None)


@pytest.mark.parametrize("neighbour", [None, f"{KEY}-2"])
def test_a_role_that_may_list_below_prefixes_alone_uploads_what_is_not_there(path: Path, neighbour: str | None) -> None:
    service = FakeS3()
    if neighbour is not None:
        service.client().put_object(Bucket=BUCKET, Key=neighbour, Body=b"")
    file = send(restricted(service), path)
    assert service.objects[KEY].body == path.read_bytes()
    assert transfer.is_stored(moves(restricted(service)), KEY, file)


def test_a_head_that_is_refused_in_earnest_is_a_fault(path: Path) -> None:
    service = FakeS3()
    file = send(service.client(), path)
    client = restricted(service)
    client.refuses_all = True
    with pytest.raises(ClientError, match="403"):
        transfer.is_stored(moves(client), KEY, file)


@pytest.mark.parametrize("sent", [1, 2, 3, 4])
def test_an_upload_that_broke_off_goes_on_with_the_parts_that_are_missing(path: Path, sent: int) -> None:
    service = FakeS3()
    count = 0

    def after(operation: str) -> None:
        nonlocal count
        count += operation == "upload_part"
        if count == sent:
            raise Crash

    with pytest.raises(Crash):
        send(service.client(after=after), path)
    again = service.client()
    send(again, path)
    assert again.made.count("upload_part") == 5 - sent
    assert again.made.count("create_multipart_upload") == 0
    assert service.objects[KEY].body == path.read_bytes()


def test_parts_of_what_the_file_no_longer_is_are_sent_again(path: Path) -> None:
    service = FakeS3()

    def after(operation: str) -> None:
        if operation == "upload_part":
            raise Crash

    with pytest.raises(Crash):
        send(service.client(after=after), path)
    path.write_bytes(b"x" * path.stat().st_size)
    send(service.client(), path)
    assert service.objects[KEY].body == path.read_bytes()


def test_parts_of_another_size_are_given_up(path: Path) -> None:
    service = FakeS3()
    begun = service.client()
    identifier = begun.create_multipart_upload(
        Bucket=BUCKET, Key=KEY, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
    )["UploadId"]
    begun.upload_part(
        Bucket=BUCKET, Key=KEY, UploadId=identifier, PartNumber=1, Body=b"short", ChecksumCRC64NVME=crc(b"short")
    )
    send(service.client(), path)
    assert service.objects[KEY].body == path.read_bytes()
    assert service.uploads == {}


def test_a_store_that_keeps_other_bytes_is_found_out(path: Path) -> None:
    service = FakeS3()

    def after(operation: str) -> None:
        if operation == "complete_multipart_upload":
            service.objects[KEY].crc = crc(b"other")

    with pytest.raises(Damaged, match="is not what"):
        send(service.client(after=after), path)


@pytest.mark.parametrize("stored", [b"", b"shorter", bytes(263), bytes(400)])
def test_a_download_of_other_bytes_is_found_out_and_leaves_nothing(path: Path, tmp_path: Path, stored: bytes) -> None:
    service = FakeS3()
    file = send(service.client(), path)
    service.objects[KEY].body = stored
    target = tmp_path / "below" / "back"
    with pytest.raises((Damaged, ClientError)):
        transfer.download(moves(service.client()), KEY, file, target)
    assert not target.exists()


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"short")
    with pytest.raises(Damaged, match="became shorter"):
        transfer.read_parts(path, size, PART_BYTES, Inline())


def test_no_file_has_more_parts_than_s3_allows() -> None:
    for size in (1, transfer.PART_BYTES, 10**12, 48 * 2**40):
        assert -(-size // transfer.part_size(size)) <= transfer.PARTS_MAX
    assert transfer.part_size(10**9) == transfer.PART_BYTES


def test_parts_go_in_parallel_and_every_byte_is_reported_once(path: Path) -> None:
    service, counts = FakeS3(), []
    with ThreadPoolExecutor(4) as pool:
        parallel = Moves(s3=service.client(), bucket=BUCKET, parts=pool, part_bytes=PART_BYTES, moved=counts.append)
        file = transfer.upload(parallel, KEY, path, name="name", begun={})
        assert sum(counts) == file.size
        counts.clear()
        transfer.download(parallel, KEY, file, path.with_name("back"))
    assert sum(counts) == file.size
    assert path.with_name("back").read_bytes() == path.read_bytes()
