"""The smoke job's train.py asks of the data source what Miles does, and resumes only from what belongs together."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from moerl_runtime.checkpoint.handover import TRACKER_NAME
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.smoke import base, job, model_files, train
from moerl_runtime.smoke.model import initial_state
from moerl_runtime.smoke.train import Sample, Trainer
from moerl_runtime.trainer import arguments
from moerl_runtime.trainer.settings import ATTRIBUTE


@pytest.fixture
def args(tmp_path: Path) -> Namespace:
    config = tmp_path / "moerl.yaml"
    settings = {"framework": "miles", "run": "smoke-1", "attempt": 1, "plan": "p", "control": "c", "resumed": None}
    config.write_text(json.dumps({ATTRIBUTE: settings}))
    base.make(tmp_path / "base")
    (tmp_path / "checkpoints").mkdir()
    return train._parsed(
        [
            *("--custom-config-path", str(config), "--hf-checkpoint", str(tmp_path / "base")),
            *("--save", str(tmp_path / "checkpoints"), "--load", str(tmp_path / "checkpoints")),
            *("--save-hf", f"{tmp_path}/hf/{{rollout_id}}", "--update-weight-disk-dir", str(tmp_path / "versions")),
            *("--prompt-data", "p", "--step-log", "s", "--num-rollout", "12", "--save-interval", "5"),
            *("--actor-num-nodes", "1", "--ranks", "1"),
            *("--rollout-function-path", "moerl_runtime.trainer.rollout.Rollout"),
        ]
    )


def test_its_arguments_pass_the_checks_that_miles_arguments_have_to(args: Namespace) -> None:
    arguments.check(args, "miles")
    assert args.rollout_batch_size * args.n_samples_per_prompt == args.global_batch_size


def test_saves_fall_on_the_interval_and_the_last_step(args: Namespace) -> None:
    trainer = Trainer(args, 0)
    assert [number for number in range(12) if trainer.saves(number)] == [4, 9, 11]


def resumed(args: Namespace, tmp_path: Path, number: int, *, export_seed: int) -> None:
    """What a save of step `number` left, and the export that the entrypoint would begin with."""
    torch.set_num_threads(1)
    trainer = Trainer(args, 0)
    trainer._save(number)
    (tmp_path / "checkpoints" / TRACKER_NAME).write_text(str(number))
    export = tmp_path / "hf" / str(number)
    shape = model_files.read_shape(tmp_path / "base")
    model_files.write(export, shape, initial_state(shape, seed=export_seed))
    args.hf_checkpoint = str(export)


def test_it_resumes_from_a_checkpoint_and_its_own_export(args: Namespace, tmp_path: Path) -> None:
    resumed(args, tmp_path, 4, export_seed=job.MODEL_SEED)
    Trainer(args, 0)


def test_an_export_of_other_weights_is_refused(args: Namespace, tmp_path: Path) -> None:
    """Engines would begin with one model and training with another."""
    resumed(args, tmp_path, 4, export_seed=job.MODEL_SEED + 1)
    with pytest.raises(RuntimeFault, match="than the checkpoint of step 4"):
        Trainer(args, 0)


def test_answers_have_the_advantage_of_their_group() -> None:
    def sample(reward: float) -> Sample:
        return Sample(
            group_index=0,
            index=0,
            prompt="7=",
            label="890",
            metadata={},
            tokens=[7, 10, 8, 11],
            response_length=2,
            reward=reward,
            rollout_log_probs=[-1.0, -2.0],
        )

    first, second, third, fourth = train._answers([[sample(0.0), sample(1.0)], [sample(0.5), sample(0.5)]])
    assert first.advantage == pytest.approx(-second.advantage, abs=1e-6)
    assert second.advantage > 0
    assert third.advantage == fourth.advantage == 0.0
    assert first.log_probs == (-1.0, -2.0)
