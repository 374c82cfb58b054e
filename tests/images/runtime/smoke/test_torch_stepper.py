"""The tiny model behind the engine samples what it says it samples, and its directory keeps every bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moerl_runtime.smoke import base, model_files, task
from moerl_runtime.smoke.engine_request import Sampling
from moerl_runtime.smoke.model import ModelShape, initial_state
from moerl_runtime.smoke.stepper import Turn
from moerl_runtime.smoke.torch_stepper import TorchStepper
from moerl_runtime.weights import safetensors

SHAPE = ModelShape(vocabulary=len(task.SYMBOLS), context=task.CONTEXT, hidden=16, expert_hidden=8)
PLAIN = Sampling(
    max_new_tokens=4,
    min_new_tokens=0,
    samples=1,
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    min_p=0.0,
    stop=(),
    stop_tokens=frozenset(),
    ignore_eos=False,
    trim_stop=True,
    seed=None,
)


def turn(sampling: Sampling, text: str = "7=", answer: str = "") -> Turn:
    return Turn(rid="r", prompt=task.encode(text), answer=task.encode(answer), sampling=sampling)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model_files.write(tmp_path / "model", SHAPE, initial_state(SHAPE, seed=1))
    return tmp_path / "model"


def test_a_directory_keeps_shape_and_every_bit(directory: Path) -> None:
    assert model_files.read_shape(directory) == SHAPE
    read, written = dict(model_files.tensors(directory)), initial_state(SHAPE, seed=1)
    assert read.keys() == written.keys()
    assert all(torch.equal(read[name], written[name]) for name in written)
    assert (directory / ".complete").is_file(), "trainer.hooks asks for it"


def test_the_base_model_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    for name in ("one", "two"):
        base.make(tmp_path / name)
        base.make(tmp_path / name)
    one, two = ((tmp_path / name / model_files.TENSORS_NAME).read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_seed_gives_the_same_token_and_the_distribution_its_log_probability(directory: Path) -> None:
    stepper = TorchStepper(directory, seed=0)
    seeded = turn(replace(PLAIN, seed=5))
    first, second = stepper.step([seeded])[0], stepper.step([seeded, turn(PLAIN)])[0]
    assert first == (second[0], pytest.approx(second[1], abs=1e-6))
    tokens = [stepper.step([turn(replace(PLAIN, seed=seed))])[0] for seed in range(200)]
    assert len({token for token, _ in tokens}) > 3
    by_token = dict(tokens)
    for token, log_prob in by_token.items():
        share = sum(found == token for found, _ in tokens) / len(tokens)
        assert share == pytest.approx(math.exp(log_prob), abs=0.12)


def test_greedy_takes_the_most_probable_token(directory: Path) -> None:
    stepper = TorchStepper(directory, seed=0)
    token, log_prob = stepper.step([turn(replace(PLAIN, temperature=0.0))])[0]
    for seed in range(30):
        other, other_log_prob = stepper.step([turn(replace(PLAIN, seed=seed))])[0]
        assert other_log_prob <= log_prob + 1e-6
        assert other == token or other_log_prob < log_prob


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_narrowing_to_one_token_makes_it_certain(directory: Path, narrow: dict[str, float]) -> None:
    stepper = TorchStepper(directory, seed=0)
    greedy, _ = stepper.step([turn(replace(PLAIN, temperature=0.0))])[0]
    assert stepper.step([turn(replace(PLAIN, **narrow))])[0] == (greedy, pytest.approx(0.0, abs=1e-6))  # type: ignore[arg-type]


def test_requests_of_a_batch_do_not_see_each_other(directory: Path) -> None:
    stepper = TorchStepper(directory, seed=0)
    greedy = replace(PLAIN, temperature=0.0)
    turns = [turn(greedy), turn(greedy, "3=", "45"), turn(greedy, "0=", "1")]
    together = stepper.step(turns)
    for one, made in zip(turns, together, strict=True):
        alone = stepper.step([one])[0]
        assert made == (alone[0], pytest.approx(alone[1], abs=1e-5))


def test_new_weights_answer_differently_and_a_broken_load_leaves_a_mixture(directory: Path, tmp_path: Path) -> None:
    stepper = TorchStepper(directory, seed=0)
    before = stepper.checksum()
    model_files.write(tmp_path / "next", SHAPE, initial_state(SHAPE, seed=2))
    stepper.load(tmp_path / "next")
    after = stepper.checksum()
    assert after != before
    stepper.load(directory)
    assert stepper.checksum() == before
    whole = (tmp_path / "next" / model_files.TENSORS_NAME).read_bytes()
    broken = tmp_path / "broken"
    broken.mkdir()
    # Two files: the first is whole, the second is cut off.
    half = dict(list(initial_state(SHAPE, seed=2).items())[:3])
    data = {name: ("F32", tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in half.items()}
    safetensors.write(broken / "a.safetensors", data, {})
    (broken / "b.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="ends before"):
        stepper.load(broken)
    assert stepper.checksum() not in (before, after)


def test_a_directory_without_tensors_is_refused(directory: Path, tmp_path: Path) -> None:
    stepper = TorchStepper(directory, seed=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        stepper.load(tmp_path / "empty")


def test_tensors_can_be_asked_for_by_name(directory: Path) -> None:
    stepper = TorchStepper(directory, seed=0)
    expected = initial_state(SHAPE, seed=1)["head.weight"].flatten().tolist()
    assert stepper.weights("head.weight") == expected
    with pytest.raises(KeyError):
        stepper.weights("none")
