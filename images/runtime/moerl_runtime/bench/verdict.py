"""What the measurements of all ranks mean: results per case, who wins it, and which floor is broken.

Times are those of the slowest rank, since a layer waits for it; bytes are the mean over ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moerl_runtime.bench import traffic
from moerl_runtime.bench.settings import Case, Settings
from moerl_runtime.preflight.check import Check, judged

DEEPEP, PLAIN = "deepep", ("nccl-merged", "nccl-permuted")
DECODE_TOKENS, PREFILL_TOKENS = 128, 8192
US = 1e6
RING_SHARE_OF_MEDIAN = 0.7
"""Rings between nodes take the same links, so one this far behind has a node of its own kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One direction of one dispatcher."""

    seconds: float
    logical_gb_per_second: float
    wire_gb_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One dispatcher in one case."""

    case: str
    dispatcher: str
    dispatch: Leg
    combine: Leg

    @property
    def pair_seconds(self) -> float:
        return self.dispatch.seconds + self.combine.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a case has to reach; from the plan."""

    case: str
    logical_gb_per_second: float | None = None
    latency_us: float | None = None


def results(settings: Settings, ranks: Sequence[Mapping[str, Any]]) -> tuple[Result, ...]:
    """Every dispatcher of every case, in the order they ran."""
    found = []
    for case in settings.cases:
        measured = [rank["measured"][case.name] for rank in ranks]
        for name in (name for name in (DEEPEP, *PLAIN) if name in measured[0]):
            copies = {
                kind: statistics.mean(entry["copies"][name][kind] for entry in measured) for kind in ("all", "wire")
            }
            found.append(
                Result(
                    case=case.name,
                    dispatcher=name,
                    dispatch=_leg(case, [entry[name]["dispatch_seconds"] for entry in measured], copies, fp8=True),
                    combine=_leg(case, [entry[name]["combine_seconds"] for entry in measured], copies, fp8=False),
                )
            )
    return tuple(found)


def _leg(case: Case, seconds: Sequence[float], copies: Mapping[str, float], *, fp8: bool) -> Leg:
    slowest, size = max(seconds), traffic.token_bytes(case.shape.hidden, fp8=fp8)
    return Leg(
        seconds=slowest,
        logical_gb_per_second=copies["all"] * size / slowest / 1e9 if slowest > 0 else 0.0,
        wire_gb_per_second=copies["wire"] * size / slowest / 1e9 if slowest > 0 else 0.0,
    )


def winners(found: Sequence[Result]) -> dict[str, str]:
    """Fastest pair of dispatch and combine, by case: `deepep` or `nccl`. Empty where DeepEP did not run."""
    best: dict[str, str] = {}
    for case in dict.fromkeys(result.case for result in found):
        pairs = {result.dispatcher: result.pair_seconds for result in found if result.case == case}
        if DEEPEP in pairs:
            plain = min(seconds for name, seconds in pairs.items() if name != DEEPEP)
            best[case] = "deepep" if pairs[DEEPEP] <= plain else "nccl"
    return best


def correctness(settings: Settings, ranks: Sequence[Mapping[str, Any]]) -> tuple[Check, ...]:
    """One check per dispatcher and case."""
    checks = []
    for case in settings.cases:
        measured = [rank["measured"][case.name] for rank in ranks]
        for name in (name for name in (DEEPEP, *PLAIN) if name in measured[0]):
            faults = [fault for entry in measured for fault in entry[name]["faults"]]
            checks.append(
                judged(
                    f"results of {name}, {case.name}",
                    not faults,
                    found=f"{faults[0]} ({len(faults)} in all)" if faults else "equal to the plain reference",
                    needed="every token where routing sends it, and sums equal to the reference",
                    fix="Do not start a run on these nodes: wrong tokens train a wrong model.",
                    cause="wrong-results",
                )
            )
    return tuple(checks)


def floors(found: Sequence[Result], wanted: Sequence[Floor]) -> tuple[Check, ...]:
    """DeepEP's dispatch against the plan's floors."""
    checks = []
    fix = "GPU-direct is not active or a device is missing: compare with preflight and with the network checks above."
    for floor in wanted:
        for result in (item for item in found if (item.case, item.dispatcher) == (floor.case, DEEPEP)):
            if floor.logical_gb_per_second is not None:
                rate = result.dispatch.logical_gb_per_second
                checks.append(
                    judged(
                        f"dispatch bandwidth, {floor.case}",
                        rate >= floor.logical_gb_per_second,
                        found=f"{rate:.1f} GB/s logical",
                        needed=f"{floor.logical_gb_per_second:g} GB/s",
                        fix=fix,
                        cause="slow",
                    )
                )
            if floor.latency_us is not None:
                latency = result.dispatch.seconds * US
                checks.append(
                    judged(
                        f"dispatch latency, {floor.case}",
                        latency <= floor.latency_us,
                        found=f"{latency:.0f} us",
                        needed=f"at most {floor.latency_us:g} us",
                        fix=fix,
                        cause="slow",
                    )
                )
    return tuple(checks)


def one_nccl(ranks: Sequence[Mapping[str, Any]], wanted: str | None) -> tuple[Check, ...]:
    """One library in every process, of the version that the image is for. None: any version will do."""
    loaded = [rank["software"]["nccl"] for rank in ranks if "nccl" in rank["software"]]
    if not loaded:
        return ()
    paths = sorted({path for entry in loaded for path in entry["paths"]})
    versions = sorted({entry["version"] for entry in loaded})
    twice = any(len(entry["paths"]) > 1 for entry in loaded)
    return (
        judged(
            "one NCCL",
            all(len(entry["paths"]) == 1 for entry in loaded),
            found=", ".join(paths) or "none",
            needed="one libnccl.so in a process",
            fix="Remove the second one from the image, or LD_PRELOAD the one that the stack names."
            if twice
            else "torch has brought none: install it again after the last pip step (build/install-nccl.sh).",
            cause="nccl-twice" if twice else "nccl-missing",
        ),
        judged(
            "NCCL version",
            len(versions) == 1 and (wanted is None or versions[0] == wanted),
            found=", ".join(filter(None, versions)) or "none",
            needed=wanted or "the same on all ranks",
            fix="A later pip step pulled another in: force nvidia-nccl last in the image build.",
            cause="nccl-version",
        ),
    )


def collectives(settings: Settings, ranks: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], tuple[Check, ...]]:
    """(slowest rank of every case and ring, checks) of `bench nccl`."""
    measured = [rank["measured"] for rank in ranks]
    cases = [_slowest([entry["cases"][place] for entry in measured]) for place in range(len(measured[0]["cases"]))]
    rings = [_slowest([entry["rings"][place] for entry in measured]) for place in range(len(measured[0]["rings"]))]
    faults = [fault for entry in measured for fault in entry["faults"]]
    checks = [
        judged(
            "results of collectives",
            not faults,
            found=f"{faults[0]} ({len(faults)} in all)" if faults else "right on every rank",
            needed="the sums and values that ranks put in",
            fix="Do not start a run on these nodes.",
            cause="wrong-results",
        )
    ]
    inner = [ring for ring in rings if ring["distance"] % settings.ranks_per_node == 0]
    compared = inner if settings.nodes > 1 else rings
    if len(compared) > 1:
        rates = sorted(ring["bus_gb_per_second"] for ring in compared)
        middle, worst = statistics.median(rates), rates[0]
        checks.append(
            judged(
                "slowest ring of pairs",
                worst >= middle * RING_SHARE_OF_MEDIAN,
                found=f"{worst:.2f} GB/s, median {middle:.2f}",
                needed=f"{RING_SHARE_OF_MEDIAN:.0%} of the median",
                fix="One node of that ring is slow: run preflight on each, and compare their EFA devices and counters.",
                severity="warning",
            )
        )
    return {"cases": cases, "rings": rings}, tuple(checks)


def _slowest(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return dict(max(entries, key=lambda entry: float(entry["seconds"])))
