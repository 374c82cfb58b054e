"""The AWS CRT's S3 client: parts in parallel in native threads, where Python's lock does not hold them up."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from botocore.session import Session
from s3transfer import crt
from s3transfer.subscribers import BaseSubscriber

from moerl_runtime.store import S3Client

PART_BYTES = 32 * 2**20
"""Of uploads; the same as boto3's here, so that one continues what the other began."""
ALGORITHM = "CRC64NVME"


@dataclass(frozen=True, slots=True)
class Native:
    """Whole files through an s3transfer CRTTransferManager."""

    manager: Any

    def upload(self, path: str, bucket: str, key: str) -> None:
        done = _Done()
        extra = {"ChecksumAlgorithm": ALGORITHM}
        _finish(self.manager.upload(path, bucket, key, extra_args=extra, subscribers=[done]), done)

    def download(self, bucket: str, key: str, path: str) -> None:
        done = _Done()
        _finish(self.manager.download(bucket, key, path, subscribers=[done]), done)


class _Done(BaseSubscriber):  # type: ignore[misc]  # s3transfer has no types
    """Set when all is done: s3transfer renames a downloaded file only after its future has the result."""

    def __init__(self) -> None:
        self.event = Event()

    def on_done(self, future: Any, **_details: Any) -> None:  # noqa: ARG002 - s3transfer names it
        self.event.set()


def native(s3: S3Client) -> Native | None:
    """The client for the process's own credentials, region and endpoint of `s3`, which found the latter in the environment too.
    None where there are no credentials."""
    session = Session()
    credentials = session.get_credentials()
    if credentials is None:
        return None
    region = s3.meta.region_name
    client = crt.create_s3_crt_client(
        region,
        crt_credentials_provider=crt.BotocoreCRTCredentialsWrapper(credentials).to_crt_credentials_provider(),
        part_size=PART_BYTES,
        use_ssl=urlsplit(s3.meta.endpoint_url).scheme == "https",
    )
    serializer = crt.BotocoreCRTRequestSerializer(session, {"region_name": region})
    return Native(crt.CRTTransferManager(client, serializer))


def _finish(future: Any, done: _Done) -> None:
    future.result()
    done.event.wait()
    # What went wrong after the transfer itself, as in the renaming, shows only now.
    future.result()
