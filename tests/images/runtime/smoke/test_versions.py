"""The smoke trainer's weights leave as those of Miles do: by its hooks, as deltas, with the export of a save as their anchor."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from moerl_runtime import lease, protocol
from moerl_runtime.smoke import base, job, model_files, task, versions
from moerl_runtime.smoke.grpo import Answer
from moerl_runtime.smoke.train import Trainer
from moerl_runtime.trainer import hooks
from moerl_runtime.trainer.settings import Resumed
from moerl_runtime.weights import delta, fetch
from moerl_runtime.weights.pointer import read_current
from moerl_runtime.weights.publish import ANCHOR_EVERY
from tests.images.runtime.trainer.fakes import Bed, Posts, arguments_of, bed, plan_document, reporter

RUN = "smoke-1"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _head(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No head to report to."""
    made = reporter(Posts())
    monkeypatch.setattr(hooks, "_reporter", lambda _: made)
    yield
    made.close()


@pytest.fixture
def aws(at_local_aws: str, request: pytest.FixtureRequest) -> Bed:
    return bed(at_local_aws, f"smoke-{request.node.name}".replace("_", "-")[:50])


def args_of(aws: Bed, tmp_path: Path, *, steps: int, attempt: int = 1, resumed: Resumed | None = None) -> Namespace:
    base.make(tmp_path / "base")
    lease.acquire(aws.s3, bucket=aws.bucket, prefix="checkpoints/", run=RUN, holder="x", resumed_from=None)
    return arguments_of(
        tmp_path,
        plan_document(aws),
        run=RUN,
        attempt=attempt,
        resumed=resumed,
        num_rollout=steps,
        save_interval=job.SAVE_INTERVAL,
        load=str(tmp_path / "scratch" / "checkpoints"),
        ranks=1,
    )


def answers(step: int) -> list[Answer]:
    """A group of two unlike answers to one prompt."""
    prompt = task.encode(task.prompt(step % task.BASE))
    return [
        Answer(
            tokens=(*prompt, (step + place) % task.BASE, task.END),
            response_length=2,
            log_probs=(-2.0, -2.0),
            advantage=advantage,
        )
        for place, advantage in ((1, 1.0), (2, -1.0))
    ]


def train(trainer: Trainer, step: int) -> dict[str, bytes]:
    """One step as `train.main` takes it. Returns the weights after it."""
    trainer.step(answers(step))
    trainer.save(step)
    trainer.publish(step)
    return model_files.raw(trainer._whole())


def bring(aws: Bed, tmp_path: Path, node: str) -> tuple[dict[str, bytes], list[str]]:
    """(weights, what was said) of a node that has the base model alone and follows the pointer."""
    pointed, said = read_current(aws.s3, aws.bucket, "weights/"), list[str]()
    assert pointed is not None
    directory = fetch.bring(
        aws.s3,
        aws.bucket,
        pointed.current,
        weights_prefix="weights/",
        models=tmp_path / node,
        base=tmp_path / "base",
        report=said.append,
    )
    return model_files.raw(dict(model_files.tensors(directory))), said


def test_a_version_is_what_it_changed(tmp_path: Path) -> None:
    states = [{"a": b"aaaa", "b": b"bbbb"}, {"a": b"aaax", "b": b"bbbb"}, {"a": b"aaax", "b": b"ybbb"}]
    for number, (before, after) in enumerate(pairwise(states), start=1):
        versions.write(versions.directory_of(tmp_path, number), number, before, after)
    first, second = (delta.read_index(versions.directory_of(tmp_path, number)) for number in (1, 2))
    assert (first.version, first.base, set(first.files)) == (1, 0, {"a"})
    assert (second.version, second.base, set(second.files)) == (2, 1, {"b"})
    named = [hooks.VERSION.fullmatch(path.name) for path in sorted(tmp_path.iterdir())]
    assert [int(match[1]) for match in named if match] == [1, 2]


@pytest.mark.usefixtures("alone")
def test_engines_get_the_trainers_weights_from_an_anchor_and_deltas(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, steps=ANCHOR_EVERY + 5)
    trainer = Trainer(args, 0)
    hooks.published(args, args.update_weight_disk_dir, ())
    for step in range(3):
        weights = train(trainer, step)
    hooks.flush(args, 30.0)
    found, said = bring(aws, tmp_path, "early")
    assert found == weights
    assert "version 3 of attempt 1 from 3 deltas on" in said[0]
    for step in range(3, ANCHOR_EVERY + 2):
        weights = train(trainer, step)
    hooks.flush(args, 30.0)
    found, said = bring(aws, tmp_path, "late")
    assert found == weights
    assert f"version {ANCHOR_EVERY + 2} of attempt 1 from 2 deltas on weights/" in said[0]
    assert f"{ANCHOR_EVERY:08d}/full/" in said[0], "the export of the save after step 9"
    assert not list(Path(args.update_weight_disk_dir).iterdir()), "what is published is removed"


@pytest.mark.usefixtures("alone")
def test_what_is_stored_is_counted_in_every_form(aws: Bed, tmp_path: Path) -> None:
    """A resumed attempt begins with an anchor; the delta of a step is bigger, since all of the model changes."""
    args_of(aws, tmp_path, steps=1)
    args = args_of(aws, tmp_path, steps=2, attempt=2, resumed=Resumed(attempt=1, step=0))
    trainer = Trainer(args, 0)
    hooks.published(args, args.update_weight_disk_dir, ())
    train(trainer, 1)  # the last one, which the hook waits for
    of = protocol.Attempt(run=RUN, number=2)
    stored = versions.stored(aws.s3, aws.bucket, "weights/", of, range(3))
    assert [(form["version"], form["kind"]) for form in stored] == [(0, "full"), (1, "delta")]
    whole = sum(path.stat().st_size for path in (tmp_path / "base").iterdir())
    assert stored[0]["size_bytes"] == whole < stored[1]["size_bytes"]
