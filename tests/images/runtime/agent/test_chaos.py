"""Random lives of a fleet lose nothing. `chaos` as a program runs more of them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.images.runtime.agent.chaos import Chaos, Plan, run, summary


def test_thousands_of_tasks_outlive_kills_notices_and_failing_services(proved: Callable[[str], None]) -> None:
    total = run(8, Plan(seed=1, groups=250, poisons=2))
    proved(summary(total))
    assert total["issued"] == 2_000
    assert total["lost"] == total["silent"] == total["foreign"] == total["untrue"] == 0
    for kind in ("kill", "agent crash", "notice", "stop", "engine crash", "weights", "refused weights", "returned"):
        assert total[kind] > 10, f"{kind} did not happen often enough to mean anything"
    assert total["buried"] == total["poisons"] == 16
    assert total["failed calls"] > 500
    assert total["delivered again"] > 100


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    groups=st.integers(1, 40),
    agents=st.integers(1, 5),
    events=st.integers(0, 80),
    poisons=st.integers(0, 3),
    duplicates=st.floats(0, 0.3),
    throttled=st.floats(0, 0.2),
)
def test_no_mix_of_faults_loses_a_task(
    seed: int, groups: int, agents: int, events: int, poisons: int, duplicates: float, throttled: float
) -> None:
    plan = Plan(
        seed=seed,
        groups=groups,
        agents=agents,
        events=events,
        poisons=poisons,
        duplicates=duplicates,
        throttled=throttled,
    )
    total = Chaos(plan).run()
    assert (total["lost"], total["silent"], total["foreign"], total["untrue"]) == (0, 0, 0, 0)
