"""Many large files between a directory and a prefix: parts in parallel, checked at both ends.

boto3 takes the AWS CRT where it is installed and the machine is one that it is tuned for, else threads of its own; both
read ranges and send parts in parallel and try a broken part again. What they leave to us: that every byte is the listed one,
and one kind of error for what broke off, since theirs are neither botocore's nor of the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from awscrt.exceptions import AwsCrtError
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from moerl_runtime import disk, store
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights.manifest import CHUNK_BYTES, File, difference

PARTS_PER_FILE = 8
FILES_AT_ONCE = 4
PARTIAL = ".part"
TRANSFER = TransferConfig(
    multipart_threshold=CHUNK_BYTES, multipart_chunksize=CHUNK_BYTES, max_concurrency=PARTS_PER_FILE
)

Result = TypeVar("Result")
Report = Callable[[str], object]
TENTHS = 10


def _silent(_line: str) -> None:
    pass


class Missing(RuntimeFault):
    """An object that a manifest lists is not in the bucket: it was pruned, or has expired."""


def upload(
    s3: store.S3Client,
    bucket: str,
    prefix: str,
    directory: Path,
    files: Sequence[File],
    *,
    workers: int = FILES_AT_ONCE,
    report: Report = _silent,
) -> None:
    """Stores the listed files below the prefix. S3 checks each part's checksum; sizes are compared afterwards.

    Raises RuntimeFault where a file does not get there whole.
    """

    def one(file: File) -> None:
        key = prefix + file.name
        with _broken_off("upload", key):
            s3.upload_file(str(directory / file.name), bucket, key, Config=TRANSFER)
        stored = s3.head_object(Bucket=bucket, Key=key)["ContentLength"]
        if stored != file.size_bytes:
            raise RuntimeFault(
                "upload",
                key,
                f"has {stored} bytes instead of {file.size_bytes}",
                "Leave the file alone while it goes out.",
            )

    _all(one, files, workers, prefix, report)


def download(
    s3: store.S3Client,
    bucket: str,
    prefix: str,
    directory: Path,
    files: Sequence[File],
    *,
    workers: int = FILES_AT_ONCE,
    report: Report = _silent,
) -> int:
    """Brings the listed files to the directory and returns how many bytes that took. A file has its name only once it is
    complete, so one that is there and has its size is left alone: an interrupted call goes on where it was.

    Raises Missing, and RuntimeFault for a file that does not come, or is not the listed one.
    """

    def one(file: File) -> int:
        path = directory / file.name
        if path.is_file() and path.stat().st_size == file.size_bytes:
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + PARTIAL)
        try:
            with _broken_off("download", prefix + file.name):
                s3.download_file(bucket, prefix + file.name, str(partial), Config=TRANSFER)
        except ClientError as error:
            if store.absent(s3, bucket, prefix + file.name, error):
                raise Missing(
                    "weights", prefix + file.name, f"is not in bucket {bucket}", "Read the pointer anew."
                ) from error
            raise
        wrong = difference(replace(file, name=file.name + PARTIAL), directory)
        if wrong:
            partial.unlink()
            raise RuntimeFault(
                "download", prefix + file.name, wrong, "Publish it anew: what is stored is not the listing."
            )
        disk.sync(partial)
        partial.replace(path)
        return file.size_bytes

    return sum(_all(one, files, workers, prefix, report))


@contextmanager
def _broken_off(what: str, key: str) -> Iterator[None]:
    try:
        yield
    except (Boto3Error, AwsCrtError) as error:
        raise RuntimeFault(
            what, key, f"broke off: {error}", "Try again once S3 answers; it was tried before."
        ) from error


def _all(
    work: Callable[[File], Result], files: Sequence[File], workers: int, name: str, report: Report
) -> list[Result]:
    """The largest first, so that the last ones out are small. The first failure ends it. A line for every tenth."""
    pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="transfer")
    ordered = sorted(files, key=lambda file: -file.size_bytes)
    total, done, told = sum(file.size_bytes for file in files), 0, 0
    results = []
    try:
        for file, future in [(file, pool.submit(work, file)) for file in ordered]:
            results.append(future.result())
            done += file.size_bytes
            if total and done * TENTHS // total > told:
                told = done * TENTHS // total
                report(f"{name}: {told * 100 // TENTHS} % of {total / 2**30:.2f} GiB")
    finally:
        pool.shutdown(cancel_futures=True)
    return results
