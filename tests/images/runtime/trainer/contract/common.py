"""What the contract runs of both frameworks share: their arguments, their agents, and ranks that do not train."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerl_runtime import sqs, store
from moerl_runtime.protocol import Attempt
from moerl_runtime.trainer import dispatch
from moerl_runtime.trainer.dispatch import Pace, Queues
from moerl_runtime.trainer.settings import Framework, Resumed, Settings
from tests.images.runtime.trainer.fakes import REGION, Agent, Bed, Fleet

RUN = "trainer-0123abcd"
ROWS, SEED = 12, 42
TEXTS = (
    "short",
    "again and " * 900,
    "again and " * 1_100,
    "".join(f"{number * 7919 % 10007} " for number in range(4_000)),
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Input of a contract run, as the test writes it."""

    source: str
    work: str
    bucket: str
    task_url: str
    result_url: str
    dead_letter_url: str
    flags: Sequence[str]
    """Rendered, with this job's paths."""
    start: int
    steps: int
    attempt: int
    resumed: dict[str, Any] | None

    @property
    def path(self) -> Path:
        return Path(self.work)

    def settings(self, framework: Framework) -> Settings:
        return Settings(
            framework=framework,
            run=RUN,
            attempt=self.attempt,
            plan=str(self.path / "plan.json"),
            control="http://127.0.0.1:1",
            resumed=None if self.resumed is None else Resumed(**self.resumed),
        )

    def bed(self) -> Bed:
        return Bed(
            s3=store.client(REGION),
            sqs_client=sqs.client(REGION),
            bucket=self.bucket,
            queues=Queues(task=self.task_url, result=self.result_url, dead_letter=self.dead_letter_url),
        )


def read_job() -> Job:
    return Job(**json.loads(Path(sys.argv[1]).read_text()))


def hurry() -> None:
    """Polls that a test can wait for."""
    pace = Pace(sweep_seconds=0.1, poll_seconds=0.05, long_poll_seconds=1, stall_seconds=60.0)
    dispatch.Pace = lambda: pace  # type: ignore[assignment,misc]
    from moerl_runtime.trainer import data_source

    data_source.Pace = dispatch.Pace  # type: ignore[attr-defined]


class Parser(argparse.ArgumentParser):
    """The framework's own arguments; Megatron's, which it would find registered, are added where they are asked for."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)
        for name, kind in (("save", str), ("load", str), ("save-interval", int), ("seq-length", int)):
            self.add_argument(f"--{name}", type=kind, default=None)


def config_file(job: Job, framework: Framework) -> str:
    """What the entrypoint writes (`moerl_runtime.trainer.run.prepared`)."""
    path = job.path / "moerl.yaml"
    path.write_text(json.dumps(job.settings(framework).document()))
    return str(path)


def fleet(job: Job, version: Callable[[], int]) -> Fleet:
    attempt = Attempt(run=RUN, number=job.attempt)
    return Fleet([Agent(job.bed(), attempt, version=version)])


def compare(framework: Framework) -> dict[str, Any]:
    """The framework's own code beside this package's, where both do the same."""
    data = importlib.import_module(f"{framework}.utils.data")
    dataset = object.__new__(data.Dataset)
    dataset.origin_samples = dataset.samples = list(range(ROWS))
    dataset.epoch_id, dataset.seed = -1, SEED
    orders = []
    for epoch in range(3):
        dataset.shuffle(epoch)
        orders.append(list(dataset.samples))
    repetition = importlib.import_module(f"{framework}.utils.metric_utils").has_repetition
    source = importlib.import_module(f"{framework}.rollout.data_source").DataSource
    return {
        "orders": orders,
        "repeats": [bool(repetition(text)) for text in TEXTS],
        "data_source_methods": sorted(source.__abstractmethods__),
    }


def finish(result: dict[str, Any]) -> None:
    """The verdict is the last line; threads of the frameworks do not hold up the end."""
    print(json.dumps(result), flush=True)
    sys.stdout.flush()
    os._exit(0)


def watchdog(seconds: float) -> None:
    """A driver that waits for ever is a failure too."""
    timer = threading.Timer(seconds, lambda: os._exit(3))
    timer.daemon = True
    timer.start()
