"""The trainer's dispatcher is the plan's: no flag of the file brings back one that needs InfiniBand."""

from __future__ import annotations

import pytest

from infra.config.faults import EnvironmentFault
from k8s.flags import miles
from tests.shipped import plan_of


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("moe-flex-dispatcher-backend", "hybridep"),
        ("moe-token-dispatcher-type", "flex"),
        ("moe-enable-deepep", True),
    ],
)
def test_a_flag_cannot_choose_another_dispatcher(flag: str, value: str | bool) -> None:
    plan = plan_of("reference-p5en", {f"workload.trainer.flags.{flag}": value})
    with pytest.raises(EnvironmentFault, match=flag) as refused:
        miles.trainer_flags(plan, config_directory="/etc/moerl-trainer")
    assert "follows from the rest of the file" in str(refused.value)
