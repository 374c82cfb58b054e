"""The smoke RL job of `make demo`: a trainer of two ranks and three rollout workers on the queue and buckets just deployed.

Everything that runs is the code of a real run (`moerl_runtime`): agents, lease, checkpoints, weights, ledger; only the model
is tiny and the engine local. On the way one worker gets a Spot notice, one is killed, and so is the trainer, which then
resumes from its last complete checkpoint. What is counted in the end comes from the logs of steps and agents, and the last
checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.config.plan import Plan
from infra.local.smoke_fleet import Fleet, SmokeError
from infra.local.smoke_plot import plot
from infra.local.smoke_report import Course, judge, summarize


def run(
    plan: Plan, out: Path, variables: Mapping[str, str], say: Callable[[str], None], course: Course | None = None
) -> dict[str, Any]:
    """The `smoke` section of the summary. `variables` are the environment in which boto3 talks to the embedded AWS.

    Raises SmokeError if anything is lost, the reward does not rise, the resume did not happen, or time runs out. Leaves
    logs and step log in `out`, the plot beside it, and no process.
    """
    picture(out).unlink(missing_ok=True)
    # Versions of weights that an earlier job left would pass for this one's.
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    course = course or Course()
    fleet = Fleet(plan, out, variables, say, course)
    with fleet.kept():
        fleet.start()
        fleet.steer()
        resumed = fleet.resumed_from
        steps = fleet.steps()
        series = fleet.series()
        final = fleet.last_checkpoint()
        loaded = fleet.loaded()
    found = summarize(steps, final, series, resumed, fleet.record, loaded)
    (out / "steps.json").write_text(json.dumps([asdict(step) for step in steps]), encoding="utf-8")
    plot(picture(out), steps, fleet.record)
    faults = judge(found, course)
    if faults:
        raise SmokeError("; ".join(faults))
    return found


def picture(out: Path) -> Path:
    """The plot of a job that leaves its logs in `out`."""
    return out.with_suffix(".png")
