"""Bytes and ceilings, held against published numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.bench import traffic
from moerl_runtime.bench.settings import Domain, Links, Shape

P5EN = Links(gpus=8, efa_devices=16, efa_gbps=200, nvlink_gb_per_second=450)
PUBLISHED = Shape(hidden=7168, experts=256, top_k=8)


@pytest.mark.parametrize(
    ("nodes", "tokens", "microseconds", "gb_per_second"),
    [(2, 8192, 1503, 81.2), (4, 8192, 3955, 56.0)],
    ids=["p5en EP16", "p5en EP32"],
)
def test_logical_bytes_over_a_published_time_give_the_published_bandwidth(
    nodes: int, tokens: int, microseconds: float, gb_per_second: float
) -> None:
    size = tokens * traffic.expected_copies(nodes, 8) * traffic.token_bytes(7168, fp8=True)
    assert size / microseconds / 1e3 == pytest.approx(gb_per_second, rel=0.03)


@pytest.mark.parametrize(("count", "copies"), [(2, 1.0), (4, 2.7)])
def test_copies_on_the_wire_are_those_of_the_formula(count: int, copies: float) -> None:
    assert traffic.expected_copies(count, 8) * traffic.wire_share(count) == pytest.approx(copies, abs=0.05)


def test_the_ceiling_is_the_link_that_has_to_be_crossed() -> None:
    assert traffic.ceiling(P5EN, 1) == traffic.Ceiling(link="NVLink", gb_per_second=450)
    assert traffic.ceiling(P5EN, 2) == traffic.Ceiling(link="EFA", gb_per_second=50)
    assert traffic.domains(2, 8) == Domain(count=2, ranks=8)
    assert traffic.domains(1, 8) == Domain(count=8, ranks=1)


def test_no_published_time_is_below_the_ceiling() -> None:
    limit = traffic.ceiling(P5EN, 2)
    least = traffic.least_seconds(PUBLISHED, 8192, traffic.domains(2, 8), limit, fp8=True)
    assert 1000e-6 < least < 1503e-6


@given(st.integers(2, 64), st.integers(1, 16))
def test_a_token_reaches_no_more_domains_than_there_are_and_no_more_than_its_experts(count: int, top_k: int) -> None:
    copies = traffic.expected_copies(count, top_k)
    assert 1.0 - 1e-9 <= copies <= min(count, top_k) + 1e-9
    assert 0 < traffic.wire_share(count) < 1


def test_bus_bandwidth_is_as_nccl_defines_it() -> None:
    assert traffic.bus_factor("all-reduce", 4) == 1.5
    assert traffic.bus_factor("all-to-all", 4) == 0.75
    assert traffic.bus_factor("broadcast", 4) == traffic.bus_factor("send-receive", 4) == 1.0
