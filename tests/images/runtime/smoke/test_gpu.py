"""Training over ranks equals training in one process, and the comparison notices a dispatcher that loses something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from moerl_runtime.cli import main
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.smoke import dispatch, gpu

SMALL = gpu.Comparison(
    dispatcher="alone", ranks=1, supervised_steps=6, grpo_steps=6, prompts=8, samples=4, hidden=32, expert_hidden=16
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Threads for rows as small as these only wait for each other."""
    torch.set_num_threads(1)


def alone(comparison: gpu.Comparison = SMALL) -> dict[str, Any]:
    return gpu._train(comparison, rank=0, device=torch.device("cpu"))


def test_two_ranks_over_gloo_train_as_one_process_does() -> None:
    """Losses and gradient norms of every step, so forward and gradients of all parameters."""
    found, reference = gpu.run(replace(SMALL, dispatcher="gloo", ranks=2)), alone()
    assert all(difference < 1e-5 for difference in gpu.differences(found, reference).values())
    for half in ("supervised", "grpo"):
        assert found["gradient_norms"][half] == pytest.approx(reference["gradient_norms"][half], rel=1e-3)
        assert len(set(found[half])) == 6, "the weights moved"


def test_rounding_to_bf16_on_the_way_stays_within_deep_eps_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.to(torch.bfloat16).to(x.dtype)

        @staticmethod
        def backward(_: Any, *gradients: Tensor) -> Tensor:
            return gradients[0].to(torch.bfloat16).to(gradients[0].dtype)

    class Rounding(dispatch.Alone):
        def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> dispatch.Arrived:
            return super().dispatch(Rounded.apply(x), experts, weights)

        def combine(self, made: Tensor, arrived: dispatch.Arrived) -> Tensor:
            return super().combine(Rounded.apply(made), arrived)

    reference = alone()
    monkeypatch.setattr(dispatch, "Alone", Rounding)
    rounded = alone()
    worst = gpu.differences(rounded, reference)
    assert all(0 < difference < gpu.BF16_TOLERANCE for difference in worst.values())


@pytest.mark.parametrize("what", ["a row in eight", "a row's gradient in two"])
def test_a_dispatcher_that_loses_something_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    class Losing(dispatch.Alone):
        def combine(self, made: Tensor, arrived: dispatch.Arrived) -> Tensor:
            kept = torch.ones(made.shape[0], 1)
            if what == "a row in eight":
                kept[::8] = 0.0
                return super().combine(made * kept, arrived)
            kept[::2] = 0.0
            return super().combine(made * kept + made.detach() * (1 - kept), arrived)

    reference = alone()
    monkeypatch.setattr(dispatch, "Alone", Losing)
    worst = gpu.differences(alone(), reference)
    assert max(worst.values()) > gpu.BF16_TOLERANCE


def test_runs_on_other_data_are_not_compared() -> None:
    reference = alone()
    with pytest.raises(RuntimeFault, match="other data"):
        gpu.differences({**reference, "data": {**reference["data"], "seed": 1}}, reference)


def test_bf16_is_allowed_more_than_float32() -> None:
    assert gpu.tolerance({"dispatcher": "deep_ep"}, {"dispatcher": "gloo"}) == gpu.BF16_TOLERANCE
    assert gpu.tolerance({"dispatcher": "nccl"}, {"dispatcher": "gloo"}) == gpu.FLOAT32_TOLERANCE


def test_a_reference_that_cannot_be_read_is_wrong_input(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["smoke", "gpu", "--dispatcher", "gloo", "--out", str(tmp_path / "a"), "--against", str(tmp_path / "b")]
    assert main(arguments) == 2
    assert "--against" in capsys.readouterr().err
