"""What people read: the ceiling before anything runs, then a table, then checks and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moerl_runtime.bench import traffic
from moerl_runtime.bench.settings import Settings
from moerl_runtime.bench.verdict import US, Result
from moerl_runtime.preflight.check import Check, failed

MIB = 2**20
WORST_RINGS = 8
"""Shown in the table; the document has all."""


def ceiling_lines(settings: Settings) -> list[str]:
    limit = traffic.ceiling(settings.links, settings.nodes)
    domain = traffic.domains(settings.nodes, settings.ranks_per_node)
    lines = [
        f"bench {settings.kind}: pool {settings.pool}, {settings.nodes} nodes x {settings.ranks_per_node} ranks, "
        f"backend {settings.backend}, transport {settings.transport}",
        f"ceiling  {limit.gb_per_second:g} GB/s a GPU and direction on the wire ({limit.link}); nothing can be faster",
    ]
    for case in settings.cases:
        shape = case.shape
        times = [
            traffic.least_seconds(shape, case.tokens, domain, limit, fp8=fp8) * US if limit.gb_per_second else 0.0
            for fp8 in (True, False)
        ]
        lines.append(
            f"         {case.name}: {case.tokens} tokens of {shape.hidden}, top {shape.top_k} of {shape.experts}: at least "
            f"{times[0]:.0f} us to dispatch (FP8), {times[1]:.0f} us to combine (BF16), latency left out"
        )
    return lines


def expert_lines(found: Sequence[Result], winners: Mapping[str, str]) -> list[str]:
    lines = [
        f"{'case':20} {'dispatcher':14} {'dispatch':>10} {'logical':>9} {'wire':>7} {'combine':>10} {'logical':>9} {'wire':>7}",
        f"{'':20} {'':14} {'us':>10} {'GB/s':>9} {'GB/s':>7} {'us':>10} {'GB/s':>9} {'GB/s':>7}",
    ]
    for result in found:
        one, two = result.dispatch, result.combine
        lines.append(
            f"{result.case:20} {result.dispatcher:14} {one.seconds * US:10.1f} {one.logical_gb_per_second:9.1f} "
            f"{one.wire_gb_per_second:7.1f} {two.seconds * US:10.1f} {two.logical_gb_per_second:9.1f} "
            f"{two.wire_gb_per_second:7.1f}"
        )
    for case, winner in winners.items():
        pairs = {result.dispatcher: result.pair_seconds for result in found if result.case == case}
        own = pairs["deepep"]
        plain = min(seconds for name, seconds in pairs.items() if name != "deepep")
        who = "DeepEP wins" if winner == "deepep" else "NCCL wins"
        lines.append(f"{case}: {who}, {own * US:.1f} us against {plain * US:.1f} us for dispatch and combine")
    return lines


def collective_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [f"{'collective':16} {'MiB':>10} {'us':>12} {'bus GB/s':>9}"]
    for case in found["cases"]:
        lines.append(_collective(case["collective"], case))
    rings = sorted(found["rings"], key=lambda ring: float(ring["bus_gb_per_second"]))
    for ring in rings[:WORST_RINGS]:
        lines.append(_collective(f"ring +{ring['distance']}", ring))
    if len(rings) > WORST_RINGS:
        lines.append(f"and {len(rings) - WORST_RINGS} faster rings; all of them are in the document")
    return lines


def _collective(name: str, case: Mapping[str, Any]) -> str:
    return f"{name:16} {case['bytes'] / MIB:10.2f} {case['seconds'] * US:12.1f} {case['bus_gb_per_second']:9.2f}"


def verdict_lines(checks: Sequence[Check]) -> list[str]:
    wrong = failed(checks)
    last = f"FAILED: {', '.join(check.name for check in wrong)}" if wrong else "passed"
    return [*(check.line() for check in checks), last]
