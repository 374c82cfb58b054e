"""The check of a dispatcher finds what a dispatcher can do wrong. One rank, real torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from moerl_runtime.bench import correctness
from moerl_runtime.bench.dispatch import PlainDispatcher, Received
from moerl_runtime.bench.settings import Shape
from moerl_runtime.bench.workload import Rows, routing, rows

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

SHAPE, TOKENS = Shape(hidden=256, experts=16, top_k=4), 24
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


class Broken(PlainDispatcher):
    """Does one thing wrong."""

    wrong = ""

    def received(self, dispatched: Rows) -> Received:
        found = super().received(dispatched)
        if self.wrong == "token lost":
            return replace(
                found,
                rows=Rows(values=found.rows.values[1:], scales=found.rows.scales[1:]),
                numbers=found.numbers[1:],
                experts=found.experts[1:],
                weights=found.weights[1:],
            )
        if self.wrong == "token twice":
            return replace(found, numbers=torch.cat([found.numbers[:1], found.numbers[:1], found.numbers[2:]]))
        if self.wrong == "wrong expert":
            return replace(found, experts=(found.experts + 1) % SHAPE.experts)
        return found

    def placed(self, outputs: Any, dispatched: Rows) -> Any:
        if self.wrong == "token lost":
            return torch.cat([outputs[:1], outputs])
        return super().placed(outputs, dispatched)

    def dispatch(self, sent: Rows) -> Rows:
        found = super().dispatch(sent)
        if self.wrong == "one byte":
            found.values.view(torch.uint8)[5, 7] ^= 1
        if self.wrong == "one scale":
            found.scales[5, 1] *= 1.5
        return found

    def combine(self, outputs: Any, dispatched: Rows) -> Any:
        combined = super().combine(outputs, dispatched)
        if self.wrong == "sum too small":
            combined[3] *= 0.5
        if self.wrong == "not a number":
            combined[3, 3] = float("nan")
        return combined


def faults(wrong: str, *, permuted: bool = False) -> list[str]:
    experts, weights = routing(SHAPE, TOKENS, 0, 1, CPU)
    sent = rows(torch.arange(TOKENS), SHAPE.hidden, fp8=True)
    dispatcher = Broken(SHAPE, experts, weights, rank=0, ranks=1, permuted=permuted)
    dispatcher.wrong = wrong
    return correctness.faults(dispatcher, SHAPE, sent, experts, weights, rank=0, ranks=1)


@pytest.mark.parametrize("permuted", [False, True])
def test_a_right_one_is_right(permuted: bool) -> None:
    assert faults("", permuted=permuted) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("token lost", "copies"),
        ("token twice", "copies"),
        ("wrong expert", "copies"),
        ("one byte", "changed, the first of them 5"),
        ("one scale", "changed, the first of them 5"),
        ("sum too small", "differ from the reference"),
        ("not a number", "nan"),
    ],
)
def test_everything_that_can_go_wrong_is_found(wrong: str, said: str) -> None:
    found = faults(wrong)
    assert found
    assert said in found[0]


def test_tokens_are_a_function_of_their_number_and_different_from_each_other() -> None:
    one, again = (rows(torch.tensor([7, 8, 70_000]), 256, fp8=False).values for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one[0], one[1])
    assert (one[0] == one[2]).float().mean() < 0.05
    assert one.abs().max() <= 1
    assert torch.equal(rows(torch.tensor([8]), 256, fp8=False).values[0], one[1])


def test_fp8_tokens_decode_to_nearly_what_they_were() -> None:
    numbers = torch.arange(16)
    plain, packed = rows(numbers, 256, fp8=False), rows(numbers, 256, fp8=True)
    assert packed.values.dtype == torch.float8_e4m3fn
    assert packed.scales is not None
    assert packed.scales.shape == (16, 2)
    assert correctness.relative_error(packed.decoded(), plain.decoded()) < 0.04


def test_routing_picks_different_experts_and_weights_that_sum_to_one() -> None:
    experts, weights = routing(SHAPE, TOKENS, 3, 1, CPU)
    assert all(len(set(row)) == SHAPE.top_k for row in experts.tolist())
    assert torch.allclose(weights.sum(dim=1), torch.ones(TOKENS))
    other, _ = routing(SHAPE, TOKENS, 4, 1, CPU)
    assert not torch.equal(experts, other)
