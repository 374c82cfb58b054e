"""`smoke rollout`: one rollout pod in one process group, the local engine with the tiny model and the real agent.

The agent drains and ends on a Spot notice, on SIGTERM, and when the smoke run is over: its trainer takes the pointer of the
weights away then. The engine is ended after it, as a sidecar is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from moerl_runtime import plan, store
from moerl_runtime.smoke import job
from moerl_runtime.weights.pointer import read_current

LOOK_SECONDS = 1.0
ENGINE_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one worker is started with."""

    plan: plan.Node
    pool: str
    models: Path
    listen: str
    engine_listen: str
    metrics_port: int
    imds: str | None
    region: str
    step_seconds: float
    seed: int


def run(worker: Worker, *, wait: Callable[[float], bool]) -> int:
    """The agent's exit code. `wait` lets seconds pass and says whether the worker was asked to stop."""
    worker.models.mkdir(parents=True, exist_ok=True)
    plan_path = job.write_plan(worker.plan, worker.pool, worker.models / "plan.json")
    base = worker.models / job.SERVING
    engine = subprocess.Popen(_engine_command(worker, base))  # noqa: S603 - argument list
    try:
        agent = subprocess.Popen(_agent_command(worker, plan_path))  # noqa: S603 - argument list
        try:
            return _follow(worker, agent, wait)
        finally:
            if agent.poll() is None:
                agent.kill()
    finally:
        engine.terminate()
        try:
            engine.wait(timeout=ENGINE_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            engine.kill()


def _follow(worker: Worker, agent: subprocess.Popen[bytes], wait: Callable[[float], bool]) -> int:
    s3 = store.client(worker.region)
    bucket, prefix = worker.plan["names"]["weights_bucket"].text, worker.plan["storage"]["weights_prefix"].text
    seen, told = False, False
    while agent.poll() is None:
        if wait(LOOK_SECONDS) and not told:
            told = True
            agent.terminate()
        try:
            pointer = read_current(s3, bucket, prefix)
        except (BotoCoreError, ClientError):
            # The agent has its own view of S3; this one only waits for the end.
            continue
        # Only a smoke run's end counts: the pointer of a real run is none of its business.
        over = seen and pointer is None
        seen = seen or (pointer is not None and pointer.current.run.startswith(job.RUN_PREFIX))
        if over and not told:
            told = True
            agent.terminate()
    return int(agent.returncode)


def _engine_command(worker: Worker, base: Path) -> Sequence[str]:
    return (
        *(sys.executable, "-m", "moerl_runtime", "smoke", "engine", "--listen", worker.engine_listen),
        *("--model", "torch", "--weights", str(base), "--seed", str(worker.seed)),
        *("--running-requests-max", str(job.REQUESTS_MAX), "--step-seconds", str(worker.step_seconds)),
        *("--sigterm-tick-seconds", "0.5"),
    )


def _agent_command(worker: Worker, plan_path: Path) -> Sequence[str]:
    return (
        *(sys.executable, "-m", "moerl_runtime", "agent", "lead", "--pool", worker.pool, "--plan", str(plan_path)),
        *("--listen", worker.listen, "--engine", f"http://{worker.engine_listen}", "--models", str(worker.models)),
        *("--metrics-port", str(worker.metrics_port), "--poll-seconds", "2"),
        *(() if worker.imds is None else ("--imds", worker.imds)),
    )
