"""`bench deepep` on one rank: every case, every dispatcher, checked and then timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moerl_runtime.bench import correctness, traffic
from moerl_runtime.bench.dispatch import Dispatcher, PlainDispatcher
from moerl_runtime.bench.settings import Case, Settings
from moerl_runtime.bench.timing import Step
from moerl_runtime.bench.workload import Rows, expert_outputs, routing, rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Timer = Callable[[Sequence[Step]], list[float]]


def measure(settings: Settings, *, rank: int, device: torch.device, group: Any, timer: Timer) -> dict[str, Any]:
    """Results of this rank, by case and dispatcher. All ranks run the same cases in the same order."""
    return {
        case.name: _case(settings, case, rank=rank, device=device, group=group, timer=timer) for case in settings.cases
    }


def _case(
    settings: Settings, case: Case, *, rank: int, device: torch.device, group: Any, timer: Timer
) -> dict[str, Any]:
    import torch

    shape = case.shape
    experts, weights = routing(shape, case.tokens, rank, settings.seed, device)
    numbers = torch.arange(case.tokens, device=device) + rank * case.tokens
    sent = rows(numbers, shape.hidden, fp8=True)
    results: dict[str, Any] = {"copies": _copies(settings, case, experts, rank)}
    for build in _dispatchers(settings, case, experts, weights, rank=rank, group=group):
        dispatcher = build()
        try:
            found = correctness.faults(dispatcher, shape, sent, experts, weights, rank=rank, ranks=settings.ranks)
            dispatch_seconds, combine_seconds = _time(dispatcher, settings, case, sent, rank=rank, timer=timer)
        finally:
            dispatcher.close()
        results[dispatcher.name] = {
            "dispatch_seconds": dispatch_seconds,
            "combine_seconds": combine_seconds,
            "faults": found,
        }
    return results


def _dispatchers(
    settings: Settings, case: Case, experts: Tensor, weights: Tensor, *, rank: int, group: Any
) -> list[Callable[[], Dispatcher]]:
    def plain(permuted: bool) -> Callable[[], Dispatcher]:
        return lambda: PlainDispatcher(case.shape, experts, weights, rank=rank, ranks=settings.ranks, permuted=permuted)

    def deep_ep() -> Dispatcher:
        from moerl_runtime.bench.deepep import DeepEpDispatcher

        return DeepEpDispatcher(
            group,
            case.shape,
            experts,
            weights,
            hybrid=settings.nodes > 1,
            num_sms=settings.num_sms,
            num_contexts=settings.num_contexts,
        )

    own: list[Callable[[], Dispatcher]] = [deep_ep] if settings.backend == "deep_ep" else []
    return [*own, plain(False), plain(True)]


def _time(
    dispatcher: Dispatcher, settings: Settings, case: Case, sent: Rows, *, rank: int, timer: Timer
) -> tuple[float, float]:
    dispatched = dispatcher.dispatch(sent)
    received = dispatcher.received(dispatched)
    first = rank * (case.shape.experts // settings.ranks)
    outputs = dispatcher.placed(
        expert_outputs(received.rows.decoded(), received.experts, received.weights, first_expert=first), dispatched
    )
    dispatch_seconds, combine_seconds = timer(
        [lambda _: dispatcher.dispatch(sent), lambda latest: dispatcher.combine(outputs, latest)]
    )
    return dispatch_seconds, combine_seconds


def _copies(settings: Settings, case: Case, experts: Tensor, rank: int) -> dict[str, dict[str, int]]:
    """Copies that this rank's tokens make, as routing drew them, by the way they are sent: `all`, and `wire` for those
    that leave the domain."""
    domain = traffic.domains(settings.nodes, settings.ranks_per_node)
    per_rank, own = case.shape.experts // settings.ranks, rank // domain.ranks

    def merged(ranks_together: int) -> dict[str, int]:
        target = experts // (per_rank * ranks_together)
        hits = [int((target == place).any(dim=1).sum()) for place in range(settings.ranks // ranks_together)]
        outside = [count for place, count in enumerate(hits) if place * ranks_together // domain.ranks != own]
        return {"all": sum(hits), "wire": sum(outside)}

    return {
        "deepep": merged(domain.ranks),
        "nccl-merged": merged(1),
        "nccl-permuted": {
            "all": int(experts.numel()),
            "wire": int((experts // (per_rank * domain.ranks) != own).sum()),
        },
    }
