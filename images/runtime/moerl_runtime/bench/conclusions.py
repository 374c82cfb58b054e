"""From what ranks brought to a table, a document and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from moerl_runtime.bench import nccl_log, planned, report, traffic, verdict
from moerl_runtime.bench.launch import Outcome
from moerl_runtime.bench.settings import Settings
from moerl_runtime.plan import Node
from moerl_runtime.preflight.check import FAILED, Check, causes, document, exit_code


def conclusions(
    settings: Settings, plan: Node, outcome: Outcome
) -> tuple[list[str], dict[str, Any], tuple[Check, ...]]:
    """(table, document, checks) of what ranks brought."""
    if not outcome.ranks:
        check = Check(
            name="ranks",
            status="failed",
            found=outcome.failure,
            needed="every rank to finish",
            fix="NCCL's own log (--logs DIR) says more.",
            cause="ranks",
        )
        return [], _document(settings, (check,)), (check,)
    evidence = [nccl_log.Evidence(**_tuples(rank["evidence"])) for rank in outcome.ranks]
    checks: tuple[Check, ...] = ()
    if settings.backend != "gloo":
        wanted = None if plan["image"]["nccl"].value is None else plan["image"]["nccl"].text
        checks = verdict.one_nccl(outcome.ranks, wanted)
        checks += nccl_log.judge(
            evidence,
            nodes=settings.nodes,
            transport=settings.transport,
            device_side=settings.backend == "deep_ep",
            efa_devices=settings.links.efa_devices,
        )
    extra: dict[str, Any] = {
        "software": outcome.ranks[0]["software"],
        "evidence": [{"rank": rank["rank"], **rank["evidence"]} for rank in outcome.ranks],
    }
    if settings.kind == "nccl":
        found, judged = verdict.collectives(settings, outcome.ranks)
        return report.collective_lines(found), _document(settings, checks + judged) | extra | found, checks + judged
    results = verdict.results(settings, outcome.ranks)
    winners = verdict.winners(results)
    checks += verdict.correctness(settings, outcome.ranks)
    checks += verdict.floors(results, planned.floors_of(plan, settings))
    extra |= {"cases": [asdict(result) for result in results], "winners": winners}
    return report.expert_lines(results, winners), _document(settings, checks) | extra, checks


def _document(settings: Settings, checks: tuple[Check, ...]) -> dict[str, Any]:
    return {
        "bench": settings.kind,
        "settings": asdict(settings),
        "ceiling": asdict(traffic.ceiling(settings.links, settings.nodes)),
        "checks": document(checks),
        "causes": causes(checks),
        "verdict": "failed" if exit_code(checks) == FAILED else "passed",
    }


def _tuples(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where a dataclass has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in evidence.items()}
