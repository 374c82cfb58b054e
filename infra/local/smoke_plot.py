"""The picture of the smoke RL job: reward and throughput over time, with the interruptions marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.local.smoke_report import SMOOTH_STEPS, Record, Step

RATE_SECONDS = 3.0
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b79a20", "#72b7b2", "#e45756")


def plot(path: Path, steps: Sequence[Step], record: Record) -> None:
    """Reward of every step and samples per second of every worker over time, with what happened on the way."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.5), dpi=120, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    kept, again = [step for step in steps if step.kept], [step for step in steps if not step.kept]
    upper.scatter([s.at_seconds for s in kept], [s.reward for s in kept], s=14, color="#9db7d9", label="step")
    if again:
        upper.scatter(
            [s.at_seconds for s in again],
            [s.reward for s in again],
            s=22,
            facecolors="none",
            edgecolors="#b0413e",
            label="after the last checkpoint, done again",
        )
    for attempt in sorted({step.attempt for step in kept}):
        own = [step for step in kept if step.attempt == attempt]
        smooth = [
            sum(step.reward for step in own[max(0, end - SMOOTH_STEPS + 1) : end + 1]) / min(end + 1, SMOOTH_STEPS)
            for end in range(len(own))
        ]
        upper.plot(
            [s.at_seconds for s in own],
            smooth,
            color="#1f4e8c",
            label=f"mean of {SMOOTH_STEPS} steps" if own[0].attempt == kept[0].attempt else None,
        )
    upper.set_ylabel("reward (share of right places)")
    upper.set_ylim(0, 1)
    upper.legend(loc="lower right", frameon=False)
    upper.set_title(
        "Smoke RL job on the embedded AWS: tiny MoE, 2 trainer ranks, 3 rollout workers at a time", loc="left"
    )
    rates = throughput(record.samples)
    names = sorted({name for _, made in rates for name in made})
    times = [seconds for seconds, _ in rates]
    lower.stackplot(
        times,
        [[made.get(name, 0.0) for _, made in rates] for name in names],
        labels=names,
        colors=COLORS[: len(names)],
        step="post",
    )
    lower.set_ylabel("samples stored per second")
    lower.set_xlabel("seconds since the start")
    lower.set_xlim(left=0.0)
    lower.set_ylim(0, 1.25 * lower.get_ylim()[1])
    lower.legend(loc="upper left", frameon=False, ncols=len(names), fontsize="small")
    for seconds, what in record.events:
        for axes in (upper, lower):
            axes.axvline(seconds, color="#777777", linewidth=0.8, linestyle="--")
        upper.annotate(
            what,
            (seconds, 0.99),
            xytext=(2, 0),
            textcoords="offset points",
            rotation=90,
            fontsize=8,
            va="top",
            color="#444444",
        )
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def throughput(samples: Sequence[tuple[float, Mapping[str, float]]]) -> list[tuple[float, dict[str, float]]]:
    """Samples per second of each worker, over about RATE_SECONDS before each time."""
    rates = []
    for end, (seconds, made) in enumerate(samples):
        start = max((at for at in range(end) if samples[at][0] <= seconds - RATE_SECONDS), default=None)
        if start is None:
            continue
        before, earlier = samples[start]
        rates.append((seconds, {name: (made[name] - earlier.get(name, 0.0)) / (seconds - before) for name in made}))
    return rates
