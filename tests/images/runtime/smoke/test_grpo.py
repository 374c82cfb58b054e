"""GRPO's parts by numbers that can be worked out by hand, and a step that does what it should."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.smoke import grpo, task
from moerl_runtime.smoke.dispatch import Alone
from moerl_runtime.smoke.model import ModelShape, TinyMoe, initial_state

SHAPE = ModelShape(vocabulary=len(task.SYMBOLS), context=task.CONTEXT, hidden=16, expert_hidden=8)
CPU = torch.device("cpu")
PLAIN = grpo.GrpoSettings(balance_weight=0.0)


def model() -> TinyMoe:
    made = TinyMoe(SHAPE, Alone())
    made.load_state_dict(initial_state(SHAPE, seed=3))
    return made


def answers(*advantages: float) -> list[grpo.Answer]:
    """Of different lengths: the shorter ones are padded."""
    texts = ("1=234.", "7=8.", "5=67.")
    return [
        grpo.Answer(
            tokens=task.encode(text),
            response_length=len(text) - 2,
            log_probs=(-1.0,) * (len(text) - 2),
            advantage=advantage,
        )
        for text, advantage in zip(texts, advantages, strict=False)
    ]


@given(st.lists(st.floats(0, 1, allow_nan=False), min_size=2, max_size=8))
def test_advantages_of_a_group_have_mean_zero_and_deviation_one(rewards: list[float]) -> None:
    found = grpo.advantages([rewards])[0]
    assert sum(found) == pytest.approx(0, abs=1e-3)
    if max(rewards) - min(rewards) > 1e-2:
        assert math.sqrt(sum(value**2 for value in found) / len(found)) == pytest.approx(1, abs=1e-2)
        assert found.index(max(found)) == rewards.index(max(rewards))


def test_a_group_that_agrees_teaches_nothing() -> None:
    assert grpo.advantages([[0.5, 0.5, 0.5], [0.0, 1.0]]) == [[0.0, 0.0, 0.0], pytest.approx([-1.0, 1.0], abs=1e-4)]


def test_padding_changes_nothing() -> None:
    made = model()
    together, _, _ = grpo.target_log_probs(made, grpo.batch_of(answers(0, 0, 0), CPU))
    for row, answer in enumerate(answers(0, 0, 0)):
        single, _, _ = grpo.target_log_probs(made, grpo.batch_of([answer], CPU))
        assert torch.allclose(together[row, : single.shape[1]], single[0], atol=1e-6)


def test_the_batch_marks_exactly_the_response() -> None:
    batch = grpo.batch_of(answers(1.0, 2.0), CPU)
    assert batch.responding.tolist() == [[0, 1, 1, 1, 1], [0, 1, 1, 0, 0]]
    assert batch.sampled.tolist() == [[0, -1, -1, -1, -1], [0, -1, -1, 0, 0]]
    assert batch.real.sum(dim=1).tolist() == [6, 4]


def test_at_the_old_weights_the_loss_is_the_mean_advantage() -> None:
    made, batch = model(), grpo.batch_of(answers(1.0, -0.5), CPU)
    before, _, _ = grpo.target_log_probs(made, batch)
    on_policy = replace(batch, sampled=before.detach() * batch.responding)
    loss = grpo.loss(made, on_policy, before.detach(), PLAIN, tokens=6.0)
    assert float(loss.detach()) == pytest.approx(-(4 * 1.0 + 2 * -0.5) / 6, abs=1e-5)


def test_samples_that_old_weights_would_hardly_make_count_at_most_twice() -> None:
    made, batch = model(), grpo.batch_of(answers(1.0), CPU)
    before, _, _ = grpo.target_log_probs(made, batch)
    far = replace(batch, sampled=before.detach() - 5.0)
    loss = grpo.loss(made, far, before.detach(), PLAIN, tokens=4.0)
    assert float(loss.detach()) == pytest.approx(-PLAIN.importance_max, abs=1e-5)


@pytest.mark.parametrize(
    ("advantage", "moved", "has_gradient"), [(1.0, 1.0, False), (1.0, -1.0, True), (-1.0, -1.0, False)]
)
def test_a_ratio_beyond_the_clip_has_no_gradient(advantage: float, moved: float, has_gradient: bool) -> None:
    made, batch = model(), grpo.batch_of(answers(advantage), CPU)
    now, _, _ = grpo.target_log_probs(made, batch)
    grpo.loss(made, batch, now.detach() - moved, PLAIN, tokens=4.0).backward()  # type: ignore[no-untyped-call]
    assert made.head.weight.grad is not None
    assert bool(made.head.weight.grad.abs().sum() > 0) is has_gradient


def test_a_step_makes_the_better_answer_more_likely() -> None:
    made, batch = model(), grpo.batch_of(answers(1.0, -1.0), CPU)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    before, _, _ = grpo.target_log_probs(made, batch)
    grpo.loss(made, batch, before.detach(), PLAIN, tokens=6.0).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    after, _, _ = grpo.target_log_probs(made, batch)
    change = ((after - before) * batch.responding).sum(dim=1)
    assert change[0] > 0 > change[1]


def test_every_expert_gets_work_and_choices_are_weighted() -> None:
    made = model()
    seen: set[int] = set()

    class Watching(Alone):
        def dispatch(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> grpo.Tensor:  # type: ignore[override]
            seen.update(experts.flatten().tolist())
            assert torch.allclose(weights.sum(dim=1), torch.ones(len(weights)))
            assert experts.shape[1] == SHAPE.top_k
            return super().dispatch(x, experts, weights)  # type: ignore[return-value]

    for block in made.blocks:
        block.experts.dispatcher = Watching()
    grpo.target_log_probs(made, grpo.batch_of(answers(0, 0, 0), CPU))
    assert seen == set(range(SHAPE.experts))


def test_experts_that_do_not_divide_are_refused() -> None:
    class Three(Alone):
        ranks = 3

    with pytest.raises(ValueError, match="4 experts cannot be split over 3 ranks"):
        TinyMoe(SHAPE, Three())
