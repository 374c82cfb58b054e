"""The frameworks' own sources, on CPU, around this package's half (level 2 of the contract tests).

They run where the sources are at hand: MOERL_MILES_SOURCE and MOERL_SLIME_SOURCE name checkouts of the pinned releases.
What they prove is the order of calls, the arguments and the data; no rank trains, and Ray is stood in for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k8s.flags import miles, slime
from moerl_runtime import lease
from moerl_runtime.checkpoint import handover
from moerl_runtime.trainer import flags as command_line
from moerl_runtime.trainer.data_source import DataSource
from moerl_runtime.trainer.prompts import Prompts, Row, renderer
from moerl_runtime.trainer.samples import repeats
from moerl_runtime.weights.pointer import read_current
from tests.images.runtime.trainer.contract import common
from tests.images.runtime.trainer.fakes import Bed, Tokenizer, plan_document
from tests.shipped import plan_of

ROOT = Path(__file__).parents[4]
SOURCES = {name: os.environ.get(f"MOERL_{name.upper()}_SOURCE", "") for name in ("miles", "slime")}
BATCH, SAMPLES = 4, 2

needs_miles = pytest.mark.skipif(not SOURCES["miles"], reason="MOERL_MILES_SOURCE names no checkout of Miles v0.1.0")
needs_slime = pytest.mark.skipif(not SOURCES["slime"], reason="MOERL_SLIME_SOURCE names no checkout of slime v0.2.4")


def rendered(framework: str, tmp_path: Path, steps: int, interval: int) -> command_line.Flags:
    """The flags of a shipped environment with this test's paths and sizes."""
    if framework == "miles":
        found = miles.trainer_flags(plan_of("starter-p5en"), config_directory=str(tmp_path))
        (tmp_path / miles.SGLANG_CONFIG_FILE).write_text(miles.SGLANG_CONFIG)
    else:
        found = slime.trainer_flags(plan_of("starter-p5en", {"software": "baseline", "checkpoints.scratch": "fsx"}))
    scratch = tmp_path / "scratch"
    for name, value in {
        "save": str(scratch / "checkpoints"),
        "load": str(scratch / "checkpoints"),
        "save-hf": f"{scratch}/hf/{{rollout_id}}",
        "save-interval": str(interval),
        "hf-checkpoint": str(tmp_path / "base"),
        "ref-load": str(tmp_path / "reference"),
        "prompt-data": str(tmp_path / "prompts.jsonl"),
        "num-rollout": str(steps),
        "n-samples-per-prompt": str(SAMPLES),
        "rollout-batch-size": str(BATCH),
    }.items():
        found = command_line.replaced(found, name, value)
    if framework == "miles":
        found = command_line.replaced(found, "update-weight-disk-dir", str(scratch / "weights"))
        found = command_line.replaced(found, "save-trigger-sentinel", str(scratch / "save-now"))
    return found


def run(
    framework: str,
    aws: Bed,
    tmp_path: Path,
    *,
    steps: int = 4,
    interval: int = 2,
    start: int = 0,
    attempt: int = 1,
    resumed: dict[str, Any] | None = None,
    export: int | None = None,
) -> dict[str, Any]:
    """Runs the framework's loop. `export` is the step whose export takes the place of the base model."""
    for name in ("base", "reference", "scratch/checkpoints"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "plan.json").write_text(json.dumps(plan_document(aws)))
    rows = ({"prompt": f"question {number}", "label": str(number)} for number in range(50))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = rendered(framework, tmp_path, steps, interval)
    if export is not None:
        flags = command_line.replaced(flags, "hf-checkpoint", str(tmp_path / "scratch" / "hf" / str(export)))
    job = {
        "source": SOURCES[framework],
        "work": str(tmp_path),
        "bucket": aws.bucket,
        "task_url": aws.queues.task,
        "result_url": aws.queues.result,
        "dead_letter_url": aws.queues.dead_letter,
        "flags": flags,
        "start": start,
        "steps": steps,
        "attempt": attempt,
        "resumed": resumed,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(  # noqa: S603 - this interpreter and a path of this test
        [sys.executable, "-m", f"tests.images.runtime.trainer.contract.{framework}_run", str(tmp_path / "job.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def indices(step: int) -> list[int]:
    return list(range(step * BATCH * SAMPLES, (step + 1) * BATCH * SAMPLES))


def events(found: dict[str, Any], *names: str) -> list[list[Any]]:
    return [event for event in found["events"] if event[0] in names]


def resumed_from(tmp_path: Path, step: int) -> dict[str, Any]:
    """What the entrypoint makes of the checkpoint that the save of that step handed over."""
    (ready,) = (entry for entry in handover.waiting(tmp_path / "scratch" / "checkpoints") if entry.step == step)
    return {"attempt": ready.attempt, "step": ready.step, "metadata": dict(ready.metadata)}


@needs_miles
def test_miles_own_loop_trains_on_groups_from_the_queue(aws: Bed, tmp_path: Path) -> None:
    found = run("miles", aws, tmp_path)
    assert found["servers"] == 0
    assert found["layout"] == [16, 16], "GPUs of the ranks alone"
    assert found["sample"] == "miles.utils.types.Sample"
    assert events(found, "train") == [["train", step, indices(step)] for step in range(4)]
    assert events(found, "begin", "update", "enqueue", "anchor", "save", "flush") == [
        ["begin", str(tmp_path / "base"), False],
        ["update", None, 0],
        ["enqueue", "weight_v000001", 1, "delta", 0],
        ["update", 0, 1],
        ["anchor", "1", 2],
        ["save", 1, False],
        ["enqueue", "weight_v000002", 2, "delta", 1],
        ["update", 1, 2],
        ["enqueue", "weight_v000003", 3, "delta", 2],
        ["update", 2, 3],
        ["anchor", "3", 4],
        ["save", 3, True],
        ["enqueue", "weight_v000004", 4, "delta", 3],
        ["flush"],
        ["update", 3, 4],
    ]
    for batch in found["batches"]:
        assert {"rollout_log_probs", "weight_versions", "loss_masks", "truncated"} <= set(batch["keys"])
        pairs = zip(batch["rewards"][::2], batch["rewards"][1::2], strict=True)
        assert all(first < 0 < second and abs(first + second) < 1e-6 for first, second in pairs), "normalized by group"
    assert max(event[1] for event in events(found, "logged")) <= 2
    assert [phase for phase, _ in found["phases"]].count("wait") == 4
    assert [entry.step for entry in handover.waiting(tmp_path / "scratch" / "checkpoints")] == [1, 3]


@needs_miles
def test_miles_goes_on_after_the_committed_step_with_the_groups_that_were_out(aws: Bed, tmp_path: Path) -> None:
    run("miles", aws, tmp_path)
    resumed = resumed_from(tmp_path, 1)
    again = run("miles", aws, tmp_path, start=2, attempt=2, resumed=resumed)
    assert events(again, "train") == [["train", step, indices(step)] for step in (2, 3)]
    assert events(again, "begin") == [["begin", str(tmp_path / "base"), True]]
    assert [event[2] for event in events(again, "enqueue")] == [1, 2], "versions begin at 0 in every attempt"
    assert [event[1:] for event in events(again, "anchor")] == [["3", 2]]
    assert {version for batch in again["batches"] for version in batch["versions"]} <= {"0", "1"}


@needs_slime
def test_slimes_own_loop_trains_publishes_and_goes_on(aws: Bed, tmp_path: Path) -> None:
    begin_attempt(aws)
    found = run("slime", aws, tmp_path)
    assert found["sample"] == "slime.utils.types.Sample"
    assert events(found, "train") == [["train", step, indices(step)] for step in range(4)]
    assert [event[1] for event in events(found, "save")] == [1, 3]
    for batch in found["batches"]:
        pairs = zip(batch["rewards"][::2], batch["rewards"][1::2], strict=True)
        assert all(first < 0 < second and abs(first + second) < 1e-6 for first, second in pairs), "normalized by group"
    current = read_current(aws.s3, aws.bucket, "weights/")
    assert current is not None
    assert (current.current.attempt, current.current.version) == (1, 2), "once per save"

    begin_attempt(aws)
    resumed = resumed_from(tmp_path, 1)
    again = run("slime", aws, tmp_path, start=2, attempt=2, resumed=resumed, export=1)
    assert events(again, "train") == [["train", step, indices(step)] for step in (2, 3)]
    current = read_current(aws.s3, aws.bucket, "weights/")
    assert current is not None
    assert (current.current.attempt, current.current.version) == (2, 1)


@pytest.mark.parametrize(
    "framework", [pytest.param("miles", marks=needs_miles), pytest.param("slime", marks=needs_slime)]
)
def test_what_both_do_comes_out_the_same(framework: str, aws: Bed, tmp_path: Path) -> None:
    begin_attempt(aws)
    found = run(framework, aws, tmp_path, steps=1, interval=1)
    rows = [Row(prompt=str(number), label=None) for number in range(common.ROWS)]
    prompts = Prompts(
        rows,
        fingerprint="f",
        render=renderer(Tokenizer(), chat_template=False),
        samples=1,
        sampling={},
        seed=common.SEED,
    )
    ours = [
        [int(str(prompts.row(epoch * common.ROWS + offset).prompt)) for offset in range(common.ROWS)]
        for epoch in range(3)
    ]
    assert found["orders"] == ours
    assert found["repeats"] == [repeats(text) for text in common.TEXTS]
    assert all(hasattr(DataSource, name) for name in found["data_source_methods"])


def begin_attempt(aws: Bed) -> None:
    lease.acquire(aws.s3, bucket=aws.bucket, prefix="checkpoints/", run=common.RUN, holder="cluster", resumed_from=None)
