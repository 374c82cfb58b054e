"""Training over ranks equals training in one process, and the comparison notices a dispatcher that loses something."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
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
FULL = gpu.Comparison(dispatcher="alone", ranks=1, supervised_steps=gpu.FIRST_STEPS, grpo_steps=1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Threads for rows as small as these only wait for each other."""
    torch.set_num_threads(1)


def alone(comparison: gpu.Comparison = SMALL) -> dict[str, Any]:
    return gpu._train(comparison, rank=0, device=torch.device("cpu"))


@cache
def alone_at_full_size() -> dict[str, Any]:
    return alone(FULL)


def test_two_ranks_over_gloo_train_as_one_process_does() -> None:
    """Losses and gradient norms of every step, so forward and gradients of all parameters."""
    found, reference = gpu.run(replace(SMALL, dispatcher="gloo", ranks=2)), alone()
    assert all(difference < 1e-5 for difference in gpu.differences(found, reference).values())
    for half in ("supervised", "grpo"):
        assert found["gradient_norms"][half] == pytest.approx(reference["gradient_norms"][half], rel=1e-3)
        assert len(set(found[half])) == 6, "the weights moved"


class Rounded(torch.autograd.Function):
    """To BF16 and back, the gradient on its way too."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).to(x.dtype)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].to(torch.bfloat16).to(gradients[0].dtype)


class TwoRanks(dispatch.Alone):
    """What DeepEP does between two ranks, in one process: a row in BF16 to each rank that it needs, partial sums back in BF16,
    their sum rounded again; gradients the same way. Weights and theirs stay float32."""

    experts = SMALL.experts

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> dispatch.Arrived:
        ranks = experts // (self.experts // 2)
        to, sent = torch.stack([(ranks == rank).any(dim=1) for rank in range(2)]).nonzero(as_tuple=True)
        here = ranks[sent] == to.unsqueeze(1)
        return dispatch.Arrived(
            rows=Rounded.apply(Rounded.apply(x)[sent]),
            experts=torch.where(here, experts[sent], -1),
            weights=weights[sent],
            origin=(to, sent, x.shape[0]),
        )

    def combine(self, made: Tensor, arrived: dispatch.Arrived) -> Tensor:
        _, sent, tokens = arrived.origin
        back = Rounded.apply(made)
        return Rounded.apply(back.new_zeros(tokens, back.shape[1]).index_add(0, sent, back))


class WithoutRouter(TwoRanks):
    """The gradient of one rank's weights is lost."""

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> dispatch.Arrived:
        arrived = super().dispatch(x, experts, weights)
        to, _, _ = arrived.origin
        kept = torch.where((to == 1).unsqueeze(1), arrived.weights.detach(), arrived.weights)
        return replace(arrived, weights=kept)


class WithoutRowGradients(TwoRanks):
    """Of one row in 64."""

    def dispatch(self, x: Tensor, experts: Tensor, weights: Tensor) -> dispatch.Arrived:
        arrived = super().dispatch(x, experts, weights)
        return replace(arrived, rows=torch.where(every(64, arrived.rows), arrived.rows.detach(), arrived.rows))


class WithoutOutputGradients(TwoRanks):
    """Of one row in 8."""

    def combine(self, made: Tensor, arrived: dispatch.Arrived) -> Tensor:
        return super().combine(torch.where(every(8, made), made.detach(), made), arrived)


class WithoutRows(TwoRanks):
    """One in 64 does not come back."""

    def combine(self, made: Tensor, arrived: dispatch.Arrived) -> Tensor:
        return super().combine(torch.where(every(64, made), torch.zeros_like(made), made), arrived)


def every(count: int, rows: Tensor) -> Tensor:
    return (torch.arange(len(rows)) % count == 0).unsqueeze(1)


def over(dispatcher: type, monkeypatch: pytest.MonkeyPatch, comparison: gpu.Comparison) -> dict[str, Any]:
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "Alone", dispatcher)
        return {**alone(comparison), "dispatcher": "deep_ep"}


def beyond(found: dict[str, Any], reference: dict[str, Any]) -> set[str]:
    allowed = gpu.tolerances(found, reference)
    return {name for name, difference in gpu.differences(found, reference).items() if difference > allowed[name]}


def test_deep_eps_rounding_is_allowed_with_room_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the size that runs on GPUs, where the first steps are compared most strictly."""
    found, reference = over(TwoRanks, monkeypatch, FULL), alone_at_full_size()
    worst = gpu.differences(found, reference)
    assert all(0 < difference < gpu.BF16_TOLERANCES[name] / 2 for name, difference in worst.items()), worst
    assert worst["gradients"] < 4e-3


@pytest.mark.parametrize("what", [WithoutRouter, WithoutRowGradients, WithoutOutputGradients, WithoutRows])
def test_a_dispatcher_that_loses_something_is_noticed(monkeypatch: pytest.MonkeyPatch, what: type) -> None:
    """Losses over 20 steps would not tell: rounding grows to what a small fault makes."""
    assert "gradients" in beyond(over(what, monkeypatch, FULL), alone_at_full_size())


def test_a_fault_of_one_tensor_is_measured_against_that_tensor() -> None:
    reference = alone()
    for half in gpu.HALVES:
        for name, gradient in reference["first_gradients"][half].items():
            wrong = [number * 1.02 for number in gradient]
            gradients = reference["first_gradients"]
            found = {**reference, "first_gradients": {**gradients, half: {**gradients[half], name: wrong}}}
            assert gpu.differences(found, reference)["gradients"] == pytest.approx(0.02)


def test_a_sketch_keeps_the_length_of_a_difference() -> None:
    chance = torch.Generator().manual_seed(0)
    for shape in ((8, 256, 256), (11, 256), (256,)):
        one = torch.randn(shape, generator=chance)
        other = one + 0.01 * torch.randn(shape, generator=chance)
        apart = float((one - other).norm() / one.norm())
        assert gpu._apart(gpu.sketch(other), gpu.sketch(one)) == pytest.approx(apart, rel=0.25)
        assert gpu.sketch(one) == gpu.sketch(one.clone())


def test_runs_on_other_data_are_not_compared() -> None:
    reference = alone()
    with pytest.raises(RuntimeFault, match="other data"):
        gpu.differences({**reference, "data": {**reference["data"], "seed": 1}}, reference)
    # Of an older release, or a tensor that got no gradient at all.
    for gradients in ({}, {**reference["first_gradients"], "grpo": {}}):
        with pytest.raises(RuntimeFault, match="other tensors"):
            gpu.differences({**reference, "first_gradients": gradients}, reference)


def test_bf16_is_allowed_more_than_float32() -> None:
    assert gpu.tolerances({"dispatcher": "deep_ep"}, {"dispatcher": "gloo"}) == gpu.BF16_TOLERANCES
    float32 = gpu.tolerances({"dispatcher": "nccl"}, {"dispatcher": "gloo"})
    assert float32.keys() == gpu.BF16_TOLERANCES.keys()
    assert set(float32.values()) == {gpu.FLOAT32_TOLERANCE}


def test_a_reference_that_cannot_be_read_is_wrong_input(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["smoke", "gpu", "--dispatcher", "gloo", "--out", str(tmp_path / "a"), "--against", str(tmp_path / "b")]
    assert main(arguments) == 2
    assert "--against" in capsys.readouterr().err
