"""The local engine's /metrics, under SGLang's names, kinds and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BOUNDS_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


@dataclass(slots=True)
class Histogram:
    """Counts below each bound, as Prometheus wants them."""

    below: list[int] = field(default_factory=lambda: [0] * len(BOUNDS_SECONDS))
    count: int = 0
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        for position, bound in enumerate(BOUNDS_SECONDS):
            self.below[position] += seconds <= bound


def exposition(
    *,
    model_name: str,
    loads: Mapping[str, Any],
    counts: Mapping[str, int],
    durations: Mapping[str, Histogram],
    load_seconds: float,
) -> str:
    """Text form. `model_name` is the name at start: labels do not follow the served name."""
    request = {"model_name": model_name, "engine_type": "unified"}
    scheduler = request | {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    gauges: tuple[tuple[str, float, Mapping[str, str]], ...] = (
        ("num_running_reqs", loads["num_running_reqs"], scheduler),
        ("num_queue_reqs", loads["num_waiting_reqs"], scheduler),
        ("num_used_tokens", loads["num_used_tokens"], scheduler),
        ("token_usage", loads["token_usage"], scheduler),
        ("gen_throughput", loads["gen_throughput"], scheduler),
        ("cache_hit_rate", loads["cache_hit_rate"], scheduler),
        ("utilization", loads["utilization"], scheduler),
        ("max_total_num_tokens", loads["max_total_num_tokens"], scheduler),
        ("num_retracted_reqs", counts["retracted"], scheduler),
        # SGLang never sets it either.
        ("num_paused_reqs", 0, scheduler),
        ("weight_load_duration_seconds", load_seconds, scheduler | {"source": "disk"}),
    )
    whole = {"is_streaming": "false"}
    counters: tuple[tuple[str, float, Mapping[str, str]], ...] = (
        ("prompt_tokens_total", counts["prompt"], request | whole),
        ("generation_tokens_total", counts["generated"], request | whole),
        ("num_requests_total", counts["requests"], request | whole),
        # Of calls, not of requests.
        ("num_aborted_requests_total", counts["aborts"], request),
    )
    lines: list[str] = []
    for kind, rows in (("gauge", gauges), ("counter", counters)):
        for name, value, labels in rows:
            lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name}{_labels(labels)} {float(value)!r}"]
    for name, key in (
        ("time_to_first_token_seconds", "first"),
        ("e2e_request_latency_seconds", "whole"),
        ("inter_token_latency_seconds", "between"),
        ("queue_time_seconds", "queued"),
    ):
        lines += _histogram(f"sglang:{name}", durations[key], request)
    return "\n".join(lines) + "\n"


def _histogram(name: str, found: Histogram, labels: Mapping[str, str]) -> list[str]:
    buckets = [
        f"{name}_bucket{_labels({**labels, 'le': repr(bound)})} {count}"
        for bound, count in zip(BOUNDS_SECONDS, found.below, strict=True)
    ]
    return [
        f"# TYPE {name} histogram",
        *buckets,
        f"{name}_bucket{_labels({**labels, 'le': '+Inf'})} {found.count}",
        f"{name}_sum{_labels(labels)} {found.total!r}",
        f"{name}_count{_labels(labels)} {found.count}",
    ]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
