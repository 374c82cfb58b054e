"""Checkpoints through the embedded S3 with the real command line: the AWS CRT, real processes, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from infra.config.plan import Plan
from k8s.charts import run_config
from moerl_runtime import lease
from moerl_runtime.checkpoint import handover, transfer
from moerl_runtime.protocol import Attempt
from tests.shipped import plan_of

from .bed import Bed

pytestmark = pytest.mark.emulator

RUN = "trainer-0a1b2c3d"
BIG_BYTES = 3 * transfer.PART_BYTES + 12_345
WAIT_SECONDS = 120.0


KILLED = """
import os, runpy, signal, sys
from botocore.client import BaseClient
left, call = int(sys.argv.pop(1)), BaseClient._make_api_call
def counted(client, operation, arguments):
    global left
    answer = call(client, operation, arguments)
    if operation == "UploadPart":
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    return answer
BaseClient._make_api_call = counted
runpy.run_module("moerl_runtime", run_name="__main__")
"""
"""The real program, ended by the kernel once so many parts are stored."""


@dataclass(frozen=True)
class Site:
    """One environment's bucket on the embedded S3, scratch of one pod, and the variables of its containers."""

    bed: Bed
    plan: Plan
    scratch: Path
    plan_file: Path

    @property
    def directory(self) -> Path:
        return self.scratch / "checkpoints"

    @property
    def s3(self) -> Any:
        return self.bed.client("s3")

    def start(
        self, *arguments: str, hostname: str = "worker-0", killed_after_parts: int | None = None
    ) -> subprocess.Popen[str]:
        program = ["-m", "moerl_runtime"] if killed_after_parts is None else ["-c", KILLED, str(killed_after_parts)]
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *program, "checkpoint", *arguments, "--plan", str(self.plan_file)],
            env=self.bed.variables | {"MOERL_RUN": RUN, "HOSTNAME": hostname},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0, output
        return output

    def save(self, step: int, *, big_bytes: int = BIG_BYTES) -> dict[str, bytes]:
        """A save as Megatron leaves it; returns its files."""
        below = f"checkpoints/iter_{step:07d}"
        files = {
            f"{below}/.metadata": b"\x80\x04\x8c\x0c__0_0.distcp.",
            f"{below}/__0_0.distcp": bytes([step]) + os.urandom(big_bytes),
            f"{below}/common.pt": f"common {step}".encode(),
            f"hf/{step}/model.safetensors": os.urandom(50_000),
        }
        for name, body in files.items():
            path = self.scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return files

    def announce(self, attempt: Attempt, step: int) -> None:
        paths = [Path(f"checkpoints/iter_{step:07d}"), Path(f"hf/{step}")]
        handover.announce(self.directory, attempt=attempt, step=step, paths=paths, metadata={"cursor": step})

    def await_committed(self, attempt: Attempt, step: int) -> handover.Outcome:
        return handover.await_committed(
            self.directory,
            attempt=attempt,
            step=step,
            deadline_seconds=WAIT_SECONDS,
            clock=time.monotonic,
            wait=time.sleep,
        )


@pytest.fixture(scope="module")
def site(beds: Callable[[str], Bed], tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    plan = plan_of("starter-p5en", {"checkpoints.retain_last": 2})
    bed = beds(plan.region)
    s3 = bed.client("s3")
    bucket = plan.names.checkpoint_bucket
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": plan.region})
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    plan_file = folder / "plan.json"
    plan_file.write_text(run_config.objects(plan)[0]["data"][run_config.PLAN_FILE])
    return Site(bed, plan, folder / "scratch", plan_file)


@pytest.fixture(scope="module")
def attempt(site: Site) -> Iterator[Attempt]:
    """Attempt 1, held for as long as the module runs."""
    site.directory.mkdir(parents=True)
    with lease.acquire(
        site.s3,
        bucket=site.plan.names.checkpoint_bucket,
        prefix=site.plan.storage.checkpoint_prefix,
        run=RUN,
        holder="cluster-1",
    ) as held:
        yield held.attempt


def open_uploads(site: Site) -> int:
    return len(site.s3.list_multipart_uploads(Bucket=site.plan.names.checkpoint_bucket).get("Uploads", []))


def restored(site: Site, scratch: Path, *arguments: str) -> dict[str, bytes]:
    output = site.run("restore", "--to", str(scratch / "checkpoints"), *arguments)
    assert "is in" in output
    return {
        name: path.read_bytes()
        for path in sorted(scratch.rglob("*"))
        if path.is_file()
        and not (name := path.relative_to(scratch).as_posix()).startswith("checkpoints/handover/")
        and path.name != handover.TRACKER_NAME
    }


def test_nothing_to_restore_is_no_failure(site: Site, tmp_path: Path) -> None:
    output = site.run("restore", "--to", str(tmp_path / "checkpoints"), "--json")
    assert "nothing to restore" in output
    assert json.loads(output.splitlines()[-1]) == {"run": RUN, "restored": None}


@pytest.mark.parametrize(("step", "plain"), [(10, ()), (11, ("--plain",))], ids=["crt", "boto3"])
def test_what_was_saved_is_restored_byte_for_byte(
    site: Site, attempt: Attempt, tmp_path: Path, step: int, plain: tuple[str, ...]
) -> None:
    files = site.save(step)
    site.announce(attempt, step)
    uploader = site.start("upload", "--from", str(site.directory), *plain)
    try:
        site.await_committed(attempt, step)
    finally:
        uploader.send_signal(signal.SIGTERM)
    output, _ = uploader.communicate(timeout=WAIT_SECONDS)
    assert uploader.returncode == 0, output
    for way in ((), ("--plain",)):
        assert restored(site, tmp_path / "-".join(("back", *way)), *way) == files


def test_an_uploader_that_is_killed_goes_on_where_it_was(site: Site, attempt: Attempt, tmp_path: Path) -> None:
    files = site.save(20, big_bytes=6 * transfer.PART_BYTES)
    site.announce(attempt, 20)
    killed = site.start("upload", "--from", str(site.directory), "--plain", killed_after_parts=2)
    output, _ = killed.communicate(timeout=WAIT_SECONDS)
    assert killed.returncode == -signal.SIGKILL, output
    assert open_uploads(site) == 1
    assert (site.directory / "handover/ready-000001-00000020.json").exists()
    uploader = site.start("upload", "--from", str(site.directory))
    # It is told to stop at once, and ends the save that it is at.
    assert _listens(uploader)
    uploader.send_signal(signal.SIGTERM)
    output, _ = uploader.communicate(timeout=WAIT_SECONDS)
    assert uploader.returncode == 0, output
    assert site.await_committed(attempt, 20).step == 20
    assert open_uploads(site) == 0
    assert restored(site, tmp_path / "back") == files


def test_the_list_shows_what_there_is_and_pruning_keeps_the_pinned(site: Site, attempt: Attempt) -> None:
    rows = json.loads(site.run("list", "--json"))["checkpoints"]
    # Ten went when 20 was committed: the environment keeps two.
    assert [(row["step"], row["state"], row["pinned"]) for row in rows] == [
        (11, "complete", False),
        (20, "complete", False),
    ]
    site.run("pin", "000001-00000011")
    assert json.loads(site.run("prune", "--keep", "1", "--json"))["removed"] == []
    site.run("unpin", "000001-00000011")
    told = json.loads(site.run("prune", "--keep", "1", "--dry-run", "--json"))
    assert told["removed"] == ["000001-00000011"]
    assert "000001-00000011 removed" in site.run("prune", "--keep", "1")
    assert "000001-00000020" in site.run("list")
    assert attempt.number == 1


def test_an_uploader_in_its_grace_outlives_the_restore_of_the_next_attempt(
    site: Site, attempt: Attempt, tmp_path: Path
) -> None:
    """On FSx: a job that was deleted and created again, by the command lines of the chart."""
    shared = ("--attempts", str(tmp_path))
    one, two = (replace(site, scratch=tmp_path / RUN / name) for name in ("cluster-1", "cluster-2"))
    files = one.save(30, big_bytes=6 * transfer.PART_BYTES)
    one.announce(attempt, 30)
    killed = one.start("upload", "--from", str(one.directory), *shared, "--plain", killed_after_parts=2)
    output, _ = killed.communicate(timeout=WAIT_SECONDS)
    assert killed.returncode == -signal.SIGKILL, output
    assert "000001-00000020 of" in two.run("restore", "--to", str(two.directory), *shared)
    assert (one.directory / "handover/ready-000001-00000030.json").exists()
    uploader = one.start("upload", "--from", str(one.directory), *shared)
    assert _listens(uploader)
    uploader.send_signal(signal.SIGTERM)
    output, _ = uploader.communicate(timeout=WAIT_SECONDS)
    assert uploader.returncode == 0, output
    assert one.await_committed(attempt, 30).step == 30
    assert (two.directory / "iter_0000020/__0_0.distcp").exists()
    three = replace(site, scratch=tmp_path / RUN / "cluster-3")
    assert restored(three, three.scratch, *shared) == files
    # It never had the lease, and the run has begun another one since.
    assert not two.scratch.exists()


def _listens(process: subprocess.Popen[str]) -> bool:
    """Waits until the process has said that it is at work, from where on signals are its own."""
    assert process.stdout is not None
    return "uploading saves" in process.stdout.readline()
