"""`python -m benchmarks.checkpoint --tools VENV`: one checkpoint up to an S3 and down again, against other clients.

All clients move the same files, one after the other, against the same server on this machine. What is compared is the
client: on one machine with the server, bytes per second say nothing about S3. So the result is a ratio of wall seconds to
`aws s3 cp`, beside the CPU seconds of each client, which decide how much one pod can move.

What this package's own clients do beyond the others is in their time: a checksum over every file before it is sent, a HEAD of
every object, manifests and the commit marker; after a download a checksum over every file and a flush to disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REGION, BUCKET, PREFIX, RUN = "us-west-2", "checkpoint-benchmark", "checkpoints/", "bench"
MIB = 2**20
SIZES = "64x16,2x1024"
"""COUNTxMIB, comma by comma: many shards, and two that are large."""
ROUNDS = 2
CLIENTS = ("aws s3 cp", "s3torchconnector", "moerl, boto3", "moerl, CRT")
REFERENCE = CLIENTS[0]
THREADS = 8
"""Files at once for s3torchconnector, as many as this package has."""
BLOCK_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one client's transfer; CPU seconds are the client's own."""

    wall: float
    cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tools", type=Path, required=True, help="virtual environment with awscli and s3torchconnector"
    )
    parser.add_argument("--endpoint-url", help="S3 server on this machine (default: the embedded AWS, started here)")
    parser.add_argument("--sizes", default=SIZES, help=f"files as COUNTxMIB,... (default {SIZES})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"the best of so many counts (default {ROUNDS})")
    parser.add_argument("--folder", type=Path, help="where files are made (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the JSON line alone")
    parser.add_argument("--child", nargs=3, metavar=("CLIENT", "WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(*options.child, endpoint_url=options.endpoint_url)
        return 0
    shown = sys.stderr if options.json else sys.stdout
    with _server(options.endpoint_url) as (endpoint_url, server):
        document = measure(options, endpoint_url) | {"server": server}
    total = document["bytes"]
    print(f"{document['files']} files, {total / 2**30:.2f} GiB, server: {server}", file=shown)
    print(f"{os.cpu_count()} cores, load {document['load_before']:.1f} before", file=shown)
    print(
        f"{'client':<18} {'way':<5} {'wall s':>7} {'cpu s':>7} {'MiB/s':>7} {'wall ratio':>11} {'cpu ratio':>10}",
        file=shown,
    )
    for client, ways in document["seconds"].items():
        for way, seconds in ways.items():
            reference = document["seconds"][REFERENCE][way]
            print(
                f"{client:<18} {way:<5} {seconds['wall']:>7.2f} {seconds['cpu']:>7.2f} "
                f"{total / MIB / seconds['wall']:>7.0f} {seconds['wall'] / reference['wall']:>11.2f} "
                f"{seconds['cpu'] / reference['cpu']:>10.2f}",
                file=shown,
            )
    print(json.dumps(document), flush=True)
    return 0


def measure(options: argparse.Namespace, endpoint_url: str) -> dict[str, Any]:
    """The document that the last line prints. Raises RuntimeError where a client brought other bytes back."""
    load = os.getloadavg()[0]
    base = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=options.folder))
    try:
        origin = base / "origin"
        sizes = _sizes(options.sizes)
        _make(origin / "checkpoints" / "iter_0000001", sizes)
        _bucket(endpoint_url)
        best: dict[str, dict[str, Measured]] = {client: {} for client in CLIENTS}
        for _ in range(options.rounds):
            for client in CLIENTS:
                back = base / "back"
                for way in ("up", "down"):
                    command, variables = _command(client, way, origin, back, endpoint_url, options.tools)
                    measured = _timed(command, variables)
                    known = best[client].get(way)
                    if known is None or measured.wall < known.wall:
                        best[client][way] = measured
                _compare(origin, back, len(sizes))
                shutil.rmtree(back)
                _empty(endpoint_url)
    finally:
        shutil.rmtree(base)
    return {
        "files": len(sizes),
        "bytes": sum(sizes),
        "rounds": options.rounds,
        "load_before": load,
        "seconds": {client: {way: asdict(seconds) for way, seconds in ways.items()} for client, ways in best.items()},
        "versions": _versions(options.tools),
    }


@contextmanager
def _server(endpoint_url: str | None) -> Iterator[tuple[str, str]]:
    """(URL, name) of the S3 server."""
    if endpoint_url is not None:
        yield endpoint_url, endpoint_url
        return
    from infra.local import server

    folder = Path(tempfile.mkdtemp(prefix="embedded-"))
    running = server.start(folder, python=ROOT / ".venv-emulator" / "bin" / "python", project_root=ROOT)
    try:
        yield running.url, "the embedded AWS"
    finally:
        server.stop(folder)
        shutil.rmtree(folder)


def _variables() -> dict[str, str]:
    """Credentials of a local server, unless the caller has set them."""
    keys = {name: os.environ.get(name, "testing") for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    return dict(os.environ) | keys | {"AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}


def _command(
    client: str, way: str, origin: Path, back: Path, endpoint_url: str, tools: Path
) -> tuple[Sequence[str], Mapping[str, str]]:
    variables = _variables() | {"AWS_ENDPOINT_URL": endpoint_url}
    if client == "aws s3 cp":
        remote = f"s3://{BUCKET}/aws/"
        ends = (str(origin), remote) if way == "up" else (remote, str(back))
        aws = str(tools / "bin" / "aws")
        return (aws, "--endpoint-url", endpoint_url, "s3", "cp", "--recursive", "--only-show-errors", *ends), variables
    if client == "s3torchconnector":
        [packages] = tools.glob("lib/python*/site-packages")
        variables |= {"PYTHONPATH": f"{ROOT}:{packages}"}
    folder = str(origin if way == "up" else back)
    child = ("--tools", str(tools), "--endpoint-url", endpoint_url, "--child", client, way, folder)
    return (sys.executable, "-m", "benchmarks.checkpoint", *child), variables


def _timed(command: Sequence[str], variables: Mapping[str, str]) -> Measured:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, env=dict(variables), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(wall=wall, cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _child(client: str, way: str, folder: str, *, endpoint_url: str) -> None:
    """One transfer, in a process of its own."""
    if client == "s3torchconnector":
        _torch_connector(way, Path(folder), endpoint_url)
    else:
        _own(way, Path(folder), native=client.endswith("CRT"))


def _own(way: str, folder: Path, *, native: bool) -> None:
    from moerl_runtime import lease, store
    from moerl_runtime.checkpoint import crt, handover, restore, transfer, upload

    s3 = store.client(REGION)
    files, parts = transfer.pools()
    client = crt.native(s3) if native else None

    @contextmanager
    def moves(_label: str, _total: int) -> Iterator[transfer.Moves]:
        yield transfer.Moves(s3=s3, bucket=BUCKET, parts=parts, native=client)

    directory = folder / "checkpoints"
    with files, parts:
        if way == "down":
            restore.restore(s3, BUCKET, PREFIX, RUN, directory, files=files, moves=moves, free_bytes=restore.free_bytes)
            return
        with lease.acquire(s3, bucket=BUCKET, prefix=PREFIX, run=RUN, holder="bench") as held:
            handover.announce(directory, attempt=held.attempt, step=1, paths=[directory / "iter_0000001"])
            upload.work(
                upload.Uploader(
                    s3=s3,
                    bucket=BUCKET,
                    prefix=PREFIX,
                    run=RUN,
                    node="bench",
                    directory=directory,
                    several_nodes=False,
                    barrier_seconds=60.0,
                    retain_last=1,
                    files=files,
                    moves=moves,
                    clock=time.monotonic,
                    wait=time.sleep,
                    report=lambda line: print(line, file=sys.stderr),
                )
            )
            if handover.committed(directory, held.attempt) is None:
                raise RuntimeError("the upload was not committed")
    shutil.rmtree(directory / handover.FOLDER)


def _torch_connector(way: str, folder: Path, endpoint_url: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    client = S3Client(REGION, endpoint=endpoint_url, s3client_config=S3ClientConfig(force_path_style=True))

    def put(path: Path) -> None:
        writer = client.put_object(BUCKET, f"torch/{path.relative_to(folder).as_posix()}")
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                writer.write(block)
        writer.close()

    def get(key: str) -> None:
        path = folder / key.removeprefix("torch/")
        path.parent.mkdir(parents=True, exist_ok=True)
        reader = client.get_object(BUCKET, key)
        with path.open("wb") as file:
            while block := reader.read(BLOCK_BYTES):
                file.write(block)

    with ThreadPoolExecutor(THREADS) as pool:
        if way == "up":
            list(pool.map(put, sorted(path for path in folder.rglob("*") if path.is_file())))
        else:
            found = [entry.key for page in client.list_objects(BUCKET, "torch/") for entry in page.object_info]
            list(pool.map(get, found))


def _sizes(written: str) -> list[int]:
    pairs = [pair.split("x") for pair in written.split(",")]
    return [int(mib) * MIB for count, mib in pairs for _ in range(int(count))]


def _make(folder: Path, sizes: Sequence[int]) -> None:
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        with (folder / f"shard-{number:04d}").open("wb") as file:
            for _ in range(0, size, MIB):
                file.write(os.urandom(MIB))


def _s3(endpoint_url: str) -> Any:
    import boto3

    keys = _variables()
    return boto3.client(
        "s3",
        region_name=REGION,
        endpoint_url=endpoint_url,
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
    )


def _bucket(endpoint_url: str) -> None:
    s3 = _s3(endpoint_url)
    if BUCKET not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    _empty(endpoint_url)


def _empty(endpoint_url: str) -> None:
    s3 = _s3(endpoint_url)
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for entry in page.get("Contents", ()):
            s3.delete_object(Bucket=BUCKET, Key=entry["Key"])


def _compare(origin: Path, back: Path, count: int) -> None:
    """Every byte of every file, outside the measured time."""
    found = 0
    for path in sorted(origin.rglob("shard-*")):
        other = back / path.relative_to(origin)
        with path.open("rb") as first, other.open("rb") as second:
            while block := first.read(BLOCK_BYTES):
                if second.read(BLOCK_BYTES) != block:
                    raise RuntimeError(f"{other} is not {path}")
        found += 1
    if found != count:
        raise RuntimeError(f"{found} of {count} files came back")


def _versions(tools: Path) -> dict[str, str]:
    listed = subprocess.run(  # noqa: S603 - the caller's own interpreter
        [
            str(tools / "bin" / "python"),
            "-c",
            "from importlib.metadata import version as v; print(v('awscli'), v('s3torchconnector'))",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    own = {name: version(name) for name in ("boto3", "awscrt", "s3transfer")}
    return {"python": platform.python_version(), "awscli": listed[0], "s3torchconnector": listed[1], **own}


if __name__ == "__main__":
    sys.exit(main())
