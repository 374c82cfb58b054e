"""What measurements mean: the slowest rank counts, NCCL may win, and a broken floor fails."""

from __future__ import annotations

from typing import Any

import pytest

from moerl_runtime.bench import report, verdict
from moerl_runtime.bench.settings import Case, Links, Settings, Shape
from moerl_runtime.bench.verdict import Floor
from moerl_runtime.preflight.check import causes, exit_code

SHAPE = Shape(hidden=7168, experts=256, top_k=8)
CASES = (
    Case(name="published-8192", shape=SHAPE, tokens=8192),
    Case(name="published-128", shape=SHAPE, tokens=128),
)
FLOORS = (Floor(case="published-8192", logical_gb_per_second=70), Floor(case="published-128", latency_us=250))


def settings(**fields: Any) -> Settings:
    values: dict[str, Any] = {
        "kind": "deepep",
        "backend": "deep_ep",
        "pool": "rollout",
        "host": "127.0.0.1",
        "port": 1,
        "nodes": 2,
        "node": 0,
        "ranks_per_node": 1,
        "links": Links(gpus=8, efa_devices=16, efa_gbps=200, nvlink_gb_per_second=450),
        "transport": "gda",
        "cases": CASES,
    }
    return Settings(**(values | fields))


def rank(deepep: float, plain: float, faults: list[str] | None = None, *, scale: float = 1.0) -> dict[str, Any]:
    """One rank's measurements, in seconds of a dispatch at 8192 tokens; decode takes a tenth."""

    def entry(seconds: float) -> dict[str, Any]:
        return {"dispatch_seconds": seconds * scale, "combine_seconds": 2 * seconds * scale, "faults": faults or []}

    def copies(tokens: int) -> dict[str, dict[str, int]]:
        return {name: {"all": 2 * tokens, "wire": tokens} for name in ("deepep", "nccl-merged", "nccl-permuted")}

    return {
        "measured": {
            case.name: {
                "copies": copies(case.tokens),
                "deepep": entry(deepep if case.tokens == 8192 else deepep / 10),
                "nccl-merged": entry(plain if case.tokens == 8192 else plain / 10),
                "nccl-permuted": entry(2 * plain),
            }
            for case in CASES
        }
    }


def test_the_slowest_rank_is_the_time_of_the_layer() -> None:
    (first, *_) = verdict.results(settings(), [rank(1e-3, 1), rank(4e-3, 1)])
    assert first.dispatch.seconds == 4e-3
    assert first.pair_seconds == pytest.approx(12e-3)


def test_wire_bandwidth_counts_what_leaves_the_node_and_logical_what_does_not_as_well() -> None:
    (first, *_) = verdict.results(settings(), [rank(1e-3, 1)])
    size = 7168 + 7168 // 128 * 4
    assert first.dispatch.logical_gb_per_second == pytest.approx(2 * 8192 * size / 1e-3 / 1e9)
    assert first.dispatch.wire_gb_per_second == pytest.approx(8192 * size / 1e-3 / 1e9)
    assert first.combine.wire_gb_per_second == pytest.approx(8192 * 2 * 7168 / 2e-3 / 1e9)


@pytest.mark.parametrize(("deepep", "plain", "winner"), [(1e-3, 2e-3, "deepep"), (3e-3, 2e-3, "nccl")])
def test_nccl_can_win_and_is_said_to(deepep: float, plain: float, winner: str) -> None:
    found = verdict.results(settings(), [rank(deepep, plain)])
    won = verdict.winners(found)
    assert won == {"published-8192": winner, "published-128": winner}
    lines = "\n".join(report.expert_lines(found, won))
    assert ("NCCL wins" in lines) == (winner == "nccl")
    assert ("DeepEP wins" in lines) == (winner == "deepep")


def test_nobody_wins_where_deepep_did_not_run() -> None:
    measured = rank(1, 1)
    for case in measured["measured"].values():
        del case["deepep"]
    assert verdict.winners(verdict.results(settings(), [measured])) == {}


def test_a_floor_is_broken_by_one_slow_rank() -> None:
    good, slow = rank(1.5e-3, 1), rank(1.5e-3, 1, scale=2.0)
    assert exit_code(verdict.floors(verdict.results(settings(), [good, good]), FLOORS)) == 0
    checks = verdict.floors(verdict.results(settings(), [good, slow]), FLOORS)
    assert [check.name for check in checks if check.status == "failed"] == [
        "dispatch bandwidth, published-8192",
        "dispatch latency, published-128",
    ]


def test_one_wrong_token_on_one_rank_fails() -> None:
    checks = verdict.correctness(settings(), [rank(1, 1), rank(1, 1, faults=["rank 1 got 3 tokens changed"])])
    assert exit_code(checks) == 1
    assert "rank 1 got 3 tokens changed" in checks[0].found


@pytest.mark.parametrize(
    ("paths", "version", "wrong"),
    [
        (["/a/libnccl.so.2"], "2.31.2", []),
        (["/a/libnccl.so.2"], "2.29.7", ["nccl-version"]),
        (["/a/libnccl.so.2", "/b/libnccl.so.2"], "2.31.2", ["nccl-twice"]),
        ([], "", ["nccl-missing", "nccl-version"]),
    ],
)
def test_another_nccl_and_a_second_one_are_told_apart(paths: list[str], version: str, wrong: list[str]) -> None:
    ranks = [{"software": {"nccl": {"paths": paths, "version": version}}}] * 2
    assert causes(verdict.one_nccl(ranks, "2.31.2")) == wrong


def test_a_slow_ring_between_nodes_is_found_and_those_inside_a_node_are_not_compared() -> None:
    def measured(slow: float) -> dict[str, Any]:
        return {
            "measured": {
                "cases": [],
                "faults": [],
                "rings": [
                    {
                        "distance": d,
                        "collective": "send-receive",
                        "bytes": 1,
                        "seconds": 1.0 / r,
                        "bus_gb_per_second": r,
                    }
                    for d, r in ((1, 1.0), (2, 40.0), (3, 1.0), (4, slow), (5, 1.0), (6, 40.0), (7, 1.0))
                ],
            }
        }

    nccl = settings(kind="nccl", nodes=4, ranks_per_node=2, cases=())
    _, fine = verdict.collectives(nccl, [measured(40.0)])
    assert {check.status for check in fine} == {"ok"}
    _, slow = verdict.collectives(nccl, [measured(20.0)])
    assert [(check.name, check.status) for check in slow if check.status != "ok"] == [
        ("slowest ring of pairs", "warning")
    ]


def test_the_ceiling_is_printed_with_the_least_times() -> None:
    lines = report.ceiling_lines(settings())
    assert "50 GB/s" in lines[1]
    assert "EFA" in lines[1]
    assert "published-128" in lines[-1]
