"""A short smoke RL job on the queue and buckets of a real deploy: a notice, a kill, a killed trainer, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.config.plan import Plan
from infra.local import smoke
from infra.local.smoke_report import Course, lines
from tests.shipped import plan_of

from .bed import Bed, synthesize

pytestmark = pytest.mark.emulator

SHORT = Course(steps=16, notice=2, worker=5, trainer=11, reward_gain_min=-1.0)
"""Too short to learn much; `make demo` runs the whole course."""


def test_no_task_is_lost_and_a_killed_trainer_resumes(
    beds: Callable[[str], Bed], tmp_path: Path, proved: Callable[[str], None]
) -> None:
    plan: Plan = plan_of("reference-p5en")
    bed = beds(plan.region)
    assembly = synthesize(plan, tmp_path / "cdk.out")
    bed.bootstrap(plan, assembly)
    bed.deploy(assembly)
    said: list[str] = []
    found = smoke.run(plan, tmp_path / "smoke", bed.variables, said.append, SHORT)
    assert found["tasks_lost"] == 0
    assert found["resumed_from_step"] in (4, 9, 14)
    weights = found["weights"]
    assert weights["anchors"] >= 2, "the tenth version of the first attempt, and what the second one began with"
    assert weights["joined_late"]
    at_end = weights["joined_at_end"]
    assert at_end["whole"] == "anchor"
    assert at_end["whole_version"] + at_end["deltas"] == at_end["version"] == 15 - found["resumed_from_step"]
    assert (tmp_path / "smoke.png").is_file()
    for line in lines(found):
        proved(f"runtime: {line.strip()}")
