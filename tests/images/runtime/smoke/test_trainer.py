"""What a smoke run leaves: nothing of it outside its own directory, and no pointer but another run's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerl_runtime import plan, protocol, store
from moerl_runtime.protocol import Current
from moerl_runtime.smoke import trainer
from moerl_runtime.smoke.trainer import Job
from moerl_runtime.weights.pointer import read_current

BUCKET, REGION = "smoke-trainer", "us-east-1"


@pytest.fixture
def s3(at_local_aws: str) -> Iterator[store.S3Client]:
    made = store.client(REGION, at_local_aws)
    made.create_bucket(Bucket=BUCKET)
    yield made
    for key in store.keys(made, BUCKET, ""):
        store.delete(made, BUCKET, key)
    made.delete_bucket(Bucket=BUCKET)


def job(scratch: Path, variables: dict[str, str] | None = None) -> Job:
    document = {"names": {"weights_bucket": BUCKET}, "storage": {"weights_prefix": "weights/"}}
    return Job(
        plan=plan.Node(document, ""),
        run="smoke-1",
        holder="me",
        scratch=scratch,
        listen="127.0.0.1:0",
        steps=1,
        step_log=scratch / "steps.jsonl",
        region=REGION,
        variables=variables or {},
    )


def test_temporary_files_of_train_py_lie_in_the_runs_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be killed, and then removes none of them."""
    shown = tmp_path / "shown"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho $KEPT $TMPDIR $2 > {shown}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    woken = threading.Event()
    process = trainer._start(job(tmp_path, {"KEPT": "yes", "TMPDIR": "/elsewhere"}), ("--flag",), woken)
    assert woken.wait(10)
    assert process.poll() == 0
    assert shown.read_text().split() == ["yes", str(tmp_path), "moerl_runtime.smoke.train"]


@pytest.mark.parametrize(("run", "stays"), [("smoke-1", False), ("policy", True)])
def test_at_its_end_the_pointer_goes_unless_it_is_another_runs(
    run: str, stays: bool, s3: store.S3Client, tmp_path: Path
) -> None:
    pointed = Current(run=run, attempt=1, version=0, manifest=None)
    store.put(s3, BUCKET, f"weights/{protocol.CURRENT_NAME}", protocol.encode(pointed))
    trainer._take_pointer_away(job(tmp_path), s3)
    assert (read_current(s3, BUCKET, "weights/") is not None) == stays
