"""A pair of ranks that does not reach each other fails the bench: an all-reduce chooses its own way and shows nothing."""

from __future__ import annotations

from typing import Any

import pytest

from moerl_runtime.bench import collectives, verdict
from moerl_runtime.bench.settings import Links, Settings
from moerl_runtime.preflight.check import causes, exit_code

torch = pytest.importorskip("torch")

SETTINGS = Settings(
    kind="nccl",
    backend="gloo",
    pool="trainer",
    host="127.0.0.1",
    port=1,
    nodes=2,
    node=0,
    ranks_per_node=2,
    links=Links(gpus=8, efa_devices=16, efa_gbps=200, nvlink_gb_per_second=450),
    transport="gda",
    largest_bytes=1024,
)
RANK = 1


def measured(monkeypatch: pytest.MonkeyPatch, *, lost_from: int | None) -> dict[str, Any]:
    """Rank 1 of four, whose peers all send the right values, but for one from whom nothing comes."""
    dist = torch.distributed

    def reduced(values: Any) -> None:
        values.fill_(1 + 2 + 3 + 4)

    def from_all(result: Any, _: Any) -> None:
        for source, part in enumerate(result.chunk(4)):
            part.fill_(source + 1)

    def pairs(operations: list[Any]) -> list[Any]:
        _, receive = operations
        if receive.peer != lost_from:
            receive.tensor.fill_(receive.peer + 1)
        return []

    class Operation:
        def __init__(self, op: Any, tensor: Any, peer: int) -> None:
            self.op, self.tensor, self.peer = op, tensor, peer

    monkeypatch.setattr(dist, "all_reduce", reduced)
    monkeypatch.setattr(dist, "all_to_all_single", from_all)
    monkeypatch.setattr(dist, "broadcast", lambda values, src: values.fill_(src + 1))
    monkeypatch.setattr(dist, "batch_isend_irecv", pairs)
    monkeypatch.setattr(dist, "P2POp", Operation)
    found = collectives.measure(
        SETTINGS, rank=RANK, device=torch.device("cpu"), timer=lambda steps: [1e-3 for _ in steps]
    )
    return {"rank": RANK, "measured": found}


def test_every_other_rank_is_met_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, lost_from=None)
    assert found["measured"]["faults"] == []
    assert [ring["distance"] for ring in found["measured"]["rings"]] == [1, 2, 3]
    assert exit_code(verdict.collectives(SETTINGS, [found])[1]) == 0


@pytest.mark.parametrize("lost_from", [0, 2, 3])
def test_one_direction_of_one_pair_that_is_lost_fails_the_bench(
    lost_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(monkeypatch, lost_from=lost_from)
    (fault,) = found["measured"]["faults"]
    assert f"from rank {lost_from} to rank {RANK}" in fault
    _, checks = verdict.collectives(SETTINGS, [found])
    assert causes(checks) == ["wrong-results"]
