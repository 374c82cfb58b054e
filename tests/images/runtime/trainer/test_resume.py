"""A killed run goes on from its last committed checkpoint: lease, data source, hand-over, uploader, restore and entrypoint
together. Only the framework and the agents are played."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.checkpoint import handover, upload
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.protocol import Attempt
from moerl_runtime.trainer import flags
from moerl_runtime.trainer.control import Control
from moerl_runtime.trainer.data_source import DataSource, Parts, fetcher
from moerl_runtime.trainer.dispatch import Pace
from moerl_runtime.trainer.prompts import renderer
from moerl_runtime.trainer.run import Around, Order, run
from moerl_runtime.workers.buffer_client import BufferClient
from tests.images.runtime.checkpoint import bed as checkpoints
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, FakeS3
from tests.images.runtime.trainer.fakes import (
    Agent,
    Bed,
    Clock,
    Fleet,
    FrameworkSample,
    Posts,
    Tokenizer,
    arguments_of,
    plan_document,
    plan_node,
    reporter,
)

RUN, STEPS = checkpoints.RUN, 6
PACE = Pace(sweep_seconds=0.05, poll_seconds=0.02, long_poll_seconds=1)


class World:
    """Buckets, scratch and queues, which outlive every attempt."""

    def __init__(self, aws: Bed, tmp_path: Path) -> None:
        self.aws, self.root = aws, tmp_path
        self.scratch = tmp_path / "scratch"
        self.service = FakeS3()
        self.document = plan_document(aws, checkpoint_bucket=BUCKET)
        self.trained: dict[int, list[str]] = {}
        self.lines: list[str] = []
        (tmp_path / "base").mkdir()

    def attempt(self, number: int, *, killed_before: int = STEPS) -> None:
        """From the init container's restore to the end of train.py."""
        checkpoints.bring(self.service.client(), self.scratch)
        work = self.root / f"work-{number}"
        work.mkdir()
        arguments = arguments_of(self.root, self.document, run=RUN, prompts=100, num_rollout=STEPS)
        command = ["--actor-num-nodes", "1", "--num-rollout", str(STEPS), "--hf-checkpoint", str(self.root / "base")]
        command += ["--rollout-function-path", arguments.rollout_function_path, "--save", arguments.save]
        command += ["--save-hf", arguments.save_hf]
        clock = Clock()

        def wait(seconds: float) -> bool:
            clock.now += seconds
            self.service.now += seconds
            return False

        order = Order(
            run=RUN,
            holder=f"cluster-{number}",
            flags=tuple(command),
            plan=plan_node(self.document),
            plan_path=self.root / "plan.json",
            work=work,
            control_url="http://127.0.0.1:1",
        )
        control = Control(clock=clock, unix_clock=lambda: 0.0, scrape=lambda: b"")
        around = Around(
            s3=self.service.client(),
            parameter=lambda _: None,
            start=lambda given: Train(self, given, arguments, control, killed_before),
            wait=wait,
            clock=clock,
            report=self.lines.append,
        )
        run(order, around, control)


class Train:
    """train.py: one step a look, a save every second one; `killed_before` a step, it is gone."""

    def __init__(
        self, world: World, given: Sequence[str], arguments: Namespace, control: Control, killed_before: int
    ) -> None:
        self.world, self.control, self.killed_before = world, control, killed_before
        written = json.loads(Path(flags.needed(given, "custom-config-path")).read_text())
        self.args = Namespace(**vars(arguments) | written | {"hf_checkpoint": flags.needed(given, "hf-checkpoint")})
        self.attempt = int(written["moerl"]["attempt"])
        self.source = source(world, self.args)
        # Megatron's own pointer says where it goes on; the framework hands that to the data source.
        tracker = Path(self.args.save) / handover.TRACKER_NAME
        self.step = int(tracker.read_text()) + 1 if tracker.is_file() else 0
        self.source.load(self.step - 1)
        self.fleet = Fleet([Agent(world.aws, Attempt(run=RUN, number=self.attempt))])
        self.fleet.__enter__()

    def poll(self) -> int | None:
        if self.step == self.killed_before or self.step == STEPS:
            self.fleet.__exit__()
            self.source.close()
            return 0 if self.step == STEPS else -9
        groups, _ = self.source.batch(self.step, 0)
        self.world.trained[self.step] = [group[0].prompt for group in groups]
        self.control._begin("train", self.step)
        if self.step % 2 == 1:
            self._save()
        self.step += 1
        return None

    def _save(self) -> None:
        files = checkpoints.content(self.attempt, self.step)
        checkpoints.save(self.world.scratch, files)
        (Path(self.args.save) / handover.TRACKER_NAME).write_text(str(self.step))
        self.source.save(self.step)
        assert upload.work(checkpoints.uploader(self.world.service.client(), self.world.scratch))

    def terminate(self) -> None:
        raise AssertionError("nobody asked")

    kill: Callable[[], None] = terminate


def source(world: World, args: Namespace) -> DataSource:
    aws = world.aws
    parts = Parts(
        s3=aws.s3,
        sqs_client=aws.sqs_client,
        render=renderer(Tokenizer(), chat_template=True),
        reporter=reporter(Posts()),
        sample_class=FrameworkSample,
        fetch=fetcher(aws.s3, aws.bucket, BufferClient(())),
        pace=PACE,
    )
    return DataSource(args, parts)


def prompts(trained: dict[int, list[Any]]) -> list[Any]:
    return [prompt for step in sorted(trained) for prompt in trained[step]]


def test_a_killed_run_goes_on_from_its_last_committed_checkpoint(aws: Bed, tmp_path: Path) -> None:
    world = World(aws, tmp_path)
    with pytest.raises(RuntimeFault, match=r"train\.py = -9"):
        world.attempt(1, killed_before=5)  # steps 0 to 4, of which 1 and 3 are committed
    lost = world.trained.pop(4)
    world.attempt(2)
    assert world.trained[4] == lost, "the groups that the lost step had taken come first"
    assert len(prompts(world.trained)) == len(set(prompts(world.trained))) == 4 * STEPS
    assert any("begins after step 3 of attempt 1" in line for line in world.lines)
    assert any("is committed; the run is at its end" in line for line in world.lines)


def test_a_run_that_is_killed_before_its_first_save_begins_anew(aws: Bed, tmp_path: Path) -> None:
    world = World(aws, tmp_path)
    with pytest.raises(RuntimeFault, match=r"train\.py = -9"):
        world.attempt(1, killed_before=1)
    world.attempt(2)
    assert [line for line in world.lines if "begins" in line] == [
        f"trainer: attempt {number} of {RUN} begins anew" for number in (1, 2)
    ]
    assert len(set(prompts(world.trained))) == 4 * STEPS


def test_many_deaths_lose_and_repeat_nothing(aws: Bed, tmp_path: Path) -> None:
    world = World(aws, tmp_path)
    for number, step in enumerate((3, 3, 5, 4), start=1):
        with pytest.raises(RuntimeFault, match=r"train\.py = -9"):
            world.attempt(number, killed_before=step)
    world.attempt(5)
    assert len(prompts(world.trained)) == len(set(prompts(world.trained))) == 4 * STEPS
