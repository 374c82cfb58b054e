"""Runs on scratch in miniature: saves as Megatron leaves them, an uploader over the fake S3, and what must hold of both."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moerl_runtime import lease
from moerl_runtime.checkpoint import handover, layout, resolve, restore, transfer, upload
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.protocol import Attempt, decode

from .fake_s3 import BUCKET, Client, FakeS3

PREFIX, RUN = "checkpoints/", "trainer-1"
PART_BYTES = 64
PLACE: dict[str, str] = {"bucket": BUCKET, "prefix": PREFIX, "run": RUN}


class Inline(Executor):
    """Runs what it is given at once, so that calls come in the same order every time."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments, **named))
        return future


class Clock:
    """A monotonic clock that moves only when somebody waits."""

    def __init__(self, service: FakeS3 | None = None) -> None:
        self.seconds = 0.0
        self._service = service

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        if self._service is not None:
            self._service.now += seconds


def content(attempt: int, step: int, *, nodes: int = 1, node: int = 0) -> dict[str, bytes]:
    """Files of one save below scratch: small ones, one in several parts, an empty one, and the pickle that names shards."""
    below = f"checkpoints/iter_{step:07d}"
    mark = f"{attempt}-{step}-".encode()
    shards = {f"{below}/__{rank}_0.distcp": mark + bytes([rank]) * (3 * PART_BYTES - 5) for rank in range(2 * nodes)}
    mine = {name: body for position, (name, body) in enumerate(shards.items()) if position // 2 == node}
    if node == 0:
        names = b"".join(b"\x8c" + name.rpartition("/")[2].encode() for name in shards)
        mine |= {
            f"{below}/.metadata": b"\x80\x04" + mark + names + b".",
            f"{below}/common.pt": mark + b"common",
            f"hf/{step}/model.safetensors": mark + b"h" * (2 * PART_BYTES),
            f"hf/{step}/.complete": b"",
            f"checkpoints/rollout/global_dataset_state_dict_{step}.pt": mark + b"cursor",
        }
    return mine


def items(step: int) -> list[Path]:
    return [
        Path(f"checkpoints/iter_{step:07d}"),
        Path(f"hf/{step}"),
        Path(f"checkpoints/rollout/global_dataset_state_dict_{step}.pt"),
    ]


def save(scratch: Path, files: dict[str, bytes]) -> None:
    for name, body in files.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def announce(scratch: Path, attempt: int, step: int, *, nodes: int = 1) -> None:
    handover.announce(
        scratch / "checkpoints",
        attempt=Attempt(run=RUN, number=attempt),
        step=step,
        paths=items(step),
        nodes=nodes,
        metadata={"cursor": step},
    )


def uploader(
    s3: Client, scratch: Path, *, clock: Clock | None = None, node: str = "node-0", retain_last: int = 2, **changes: Any
) -> upload.Uploader:
    clock = clock or Clock()
    return upload.Uploader(
        **{
            "s3": s3,
            **PLACE,
            "node": node,
            "directory": scratch / "checkpoints",
            "several_nodes": False,
            "barrier_seconds": 600.0,
            "retain_last": retain_last,
            "files": Inline(),
            "moves": moving(s3),
            "clock": clock,
            "wait": clock.wait,
            "report": lambda _line: None,
            **changes,
        }
    )


def moving(s3: Client) -> transfer.Moving:
    @contextmanager
    def moves(_label: str, _total: int) -> Iterator[transfer.Moves]:
        yield transfer.Moves(s3=s3, bucket=BUCKET, parts=Inline(), part_bytes=PART_BYTES)

    return moves


def acquire(s3: Client, *, holder: str = "trainer", clock: Clock | None = None, **options: Any) -> lease.Lease:
    clock = clock or Clock()
    return lease.acquire(s3, **PLACE, holder=holder, clock=clock, wait=clock.wait, **options)


def bring(s3: Client, scratch: Path) -> Checkpoint | None:
    return restore.restore(
        s3,
        BUCKET,
        PREFIX,
        RUN,
        scratch / "checkpoints",
        files=Inline(),
        moves=moving(s3),
        free_bytes=lambda _path: 2**40,
    )


def newest(service: FakeS3) -> Checkpoint | None:
    return resolve.resolve(service.client(), BUCKET, PREFIX, RUN)


def held(scratch: Path) -> dict[str, bytes]:
    """Files below scratch, without the hand-over's own and the tracker."""
    return {
        name: path.read_bytes()
        for path in sorted(scratch.rglob("*"))
        if path.is_file()
        and not (name := path.relative_to(scratch).as_posix()).startswith("checkpoints/handover/")
        and path.name != handover.TRACKER_NAME
    }


def tracker(scratch: Path) -> str | None:
    path = scratch / "checkpoints" / handover.TRACKER_NAME
    return path.read_text() if path.exists() else None


def assert_whole(service: FakeS3, scratch: Path) -> tuple[int, int] | None:
    """Restores what resolves, into an empty scratch, and compares every byte. Returns (attempt, step)."""
    found = bring(service.client(), scratch)
    if found is None:
        assert held(scratch) == {}
        return None
    assert held(scratch) == content(found.attempt, found.step)
    assert tracker(scratch) == str(found.step)
    assert found.metadata == {"cursor": found.step}
    return found.attempt, found.step


def assert_sound(service: FakeS3) -> None:
    """Every checkpoint that a resume may come to names files that are there, byte for byte."""
    for position in resolve.line(service.client(), BUCKET, PREFIX, RUN):
        below = layout.step_prefix(PREFIX, Attempt(run=RUN, number=position.attempt), position.step)
        for file in layout.files_of(decode(layout.Complete, service.objects[layout.complete_key(below)].body)):
            stored = service.objects[layout.file_key(below, file.name)]
            assert (len(stored.body), stored.crc) == (file.size, file.crc64nvme)
