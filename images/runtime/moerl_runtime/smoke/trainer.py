"""`smoke trainer`: one attempt of a tiny run, by the same entrypoint, lease and uploader as a real one.

In the order of a RayJob's pods: restore, uploader beside it, lease, train.py (`smoke.train`), last commit. At the end of the
run the pointer of the weights is taken away, by which the smoke job's rollout workers know that they may go.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moerl_runtime import cli, plan, protocol, serve, store
from moerl_runtime.smoke import job
from moerl_runtime.trainer import run as attempt
from moerl_runtime.trainer.control import Control
from moerl_runtime.weights.pointer import read_current

UPLOADER_SECONDS = 60.0
"""For the uploader to bring what it has begun to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One start of the smoke trainer. `holder` is the same for two starts only where the first one is surely dead."""

    plan: plan.Node
    run: str
    holder: str
    scratch: Path
    listen: str
    steps: int
    step_log: Path
    region: str
    variables: Mapping[str, str]

    @property
    def plan_path(self) -> Path:
        return self.scratch / "plan.json"

    @property
    def checkpoints(self) -> Path:
        return self.scratch / "checkpoints"


def run(
    given: Job,
    *,
    clock: Callable[[], float],
    unix_clock: Callable[[], float],
    woken: threading.Event,
    stopped: threading.Event,
) -> int:
    """0 when the last step is committed; raises RuntimeFault otherwise. `stopped` ends the run, `woken` a wait before it."""
    given.checkpoints.mkdir(parents=True, exist_ok=True)
    job.write_plan(given.plan, None, given.plan_path)
    prompts, base = given.scratch / "prompts.jsonl", given.scratch / "base"
    prompts.write_text(job.prompt_lines(), encoding="utf-8")
    common = ["--plan", str(given.plan_path), "--run", given.run]
    restored = cli.main(
        ["checkpoint", "restore", "--to", str(given.checkpoints), "--plain", *common], variables=given.variables
    )
    if restored != 0:
        return restored
    control = Control(clock=clock, unix_clock=unix_clock, scrape=lambda: b"")
    s3 = store.client(given.region)

    def wait(seconds: float) -> bool:
        woken.wait(seconds)
        woken.clear()
        return stopped.is_set()

    with serve.serving(given.listen, control.handle) as url, _uploading(given, common):
        order = attempt.Order(
            run=given.run,
            holder=given.holder,
            flags=_flags(given, prompts, base),
            plan=plan.load(given.plan_path),
            plan_path=given.plan_path,
            work=given.scratch,
            control_url=url,
        )
        around = attempt.Around(
            s3=s3,
            parameter=lambda _: None,
            start=lambda flags: _start(given, flags, woken),
            wait=wait,
            clock=clock,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
        attempt.run(order, around, control)
        (given.scratch / "metrics.txt").write_text(control.exposition(), encoding="utf-8")
    _take_pointer_away(given, s3)
    return 0


def _flags(given: Job, prompts: Path, base: Path) -> tuple[str, ...]:
    return (
        *("--actor-num-nodes", "1", "--ranks", str(job.RANKS)),
        *("--rollout-function-path", "moerl_runtime.trainer.rollout.Rollout"),
        *("--num-rollout", str(given.steps), "--save-interval", str(job.SAVE_INTERVAL)),
        *("--save", str(given.checkpoints), "--load", str(given.checkpoints)),
        *("--save-hf", f"{given.scratch}/hf/{{rollout_id}}", "--hf-checkpoint", str(base)),
        *("--prompt-data", str(prompts), "--update-weight-disk-dir", str(given.scratch / "versions")),
        *("--step-log", str(given.step_log)),
    )


def _start(given: Job, flags: Sequence[str], woken: threading.Event) -> attempt.Process:
    # What it leaves where it is killed lies in the run's own directory.
    process = subprocess.Popen(  # noqa: S603 - argument list
        [sys.executable, "-m", "moerl_runtime.smoke.train", *flags],
        env={**given.variables, "TMPDIR": str(given.scratch)},
    )

    def follow() -> None:
        process.wait()
        woken.set()

    threading.Thread(target=follow, daemon=True, name="train.py").start()
    return process


@contextmanager
def _uploading(given: Job, common: Sequence[str]) -> Iterator[None]:
    """The sidecar, which may finish the save that it is at."""
    command = [sys.executable, "-m", "moerl_runtime", "checkpoint", "upload", "--from", str(given.checkpoints)]
    process = subprocess.Popen([*command, "--node", given.holder, "--plain", *common])  # noqa: S603 - argument list
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=UPLOADER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _take_pointer_away(given: Job, s3: store.S3Client) -> None:
    bucket, prefix = given.plan["names"]["weights_bucket"].text, given.plan["storage"]["weights_prefix"].text
    found = read_current(s3, bucket, prefix)
    if found is not None and found.current.run == given.run:
        store.delete(s3, bucket, prefix + protocol.CURRENT_NAME)
