"""The trainer's window fills the fleet, unless the file says a smaller batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.config.batch_plan import (
    BATCH_FLAG,
    GROUPS_A_STEP_MIN,
    STALENESS_FLAG,
    STEPS_FLAG,
    batch_plan,
    count,
    engines_busy,
    queue_length,
)
from infra.config.engine_plan import SAMPLES_PER_TASK
from infra.config.geometry import RolloutGeometry
from tests.shipped import SHIPPED, plan_of

ONE_NODE = RolloutGeometry(
    gpus_per_engine=8,
    nodes_per_engine=1,
    engines_per_node=1,
    expert_parallel=8,
    moe_tensor_parallel=1,
    expert_group_nodes=1,
    engines_max=4,
    gpu_memory_gib=10.0,
)
FLEETS = st.lists(
    st.builds(
        lambda nodes, engines: replace(ONE_NODE, nodes_per_engine=nodes, engines_max=engines),
        st.sampled_from([1, 2, 4, 8]),
        st.integers(1, 64),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_environment_keeps_all_its_engines_busy(name: str) -> None:
    workload = plan_of(name).workload
    assert [rollout.engines_busy for rollout in workload.rollouts] == [
        rollout.geometry.engines_max for rollout in workload.rollouts
    ]
    taken = sum(rollout.geometry.engines_max * rollout.engine.tasks_max for rollout in workload.rollouts)
    assert workload.batch.fleet_groups == taken <= workload.batch.window_groups


@given(
    fleet=FLEETS,
    ranks=st.integers(1, 96),
    steps=st.integers(1, 6),
    staleness=st.integers(1, 5),
)
def test_the_default_batch_fills_any_fleet_and_divides_over_ranks_and_steps(
    fleet: list[RolloutGeometry], ranks: int, steps: int, staleness: int
) -> None:
    batch = batch_plan({STEPS_FLAG: steps, STALENESS_FLAG: staleness}, data_parallel=ranks, fleet=fleet)
    assert batch.groups >= GROUPS_A_STEP_MIN
    assert batch.groups % steps == 0
    assert batch.groups // steps * SAMPLES_PER_TASK % ranks == 0
    assert batch.window_groups == batch.groups * staleness >= batch.fleet_groups
    assert [engines_busy(batch.window_groups, one, fleet) for one in fleet] == [one.engines_max for one in fleet]
    # And it is no larger than that takes: one unit less would not fill the fleet, or not be upstream's.
    less = batch.groups - ranks * steps
    assert less < GROUPS_A_STEP_MIN or less * staleness < batch.fleet_groups


@given(fleet=FLEETS, groups=st.integers(1, 100_000))
def test_engines_of_all_pools_take_what_is_out_and_never_more_than_there_are(
    fleet: list[RolloutGeometry], groups: int
) -> None:
    for one in fleet:
        busy = engines_busy(groups, one, fleet)
        assert 1 <= busy <= one.engines_max
        assert busy == one.engines_max or busy * queue_length(one, fleet) >= groups


def test_a_single_pool_starts_an_engine_for_what_an_engine_takes() -> None:
    for name in SHIPPED:
        (rollout,) = plan_of(name).workload.rollouts
        assert rollout.queue_length == rollout.engine.tasks_max


def test_a_batch_and_a_staleness_of_the_file_are_the_plans() -> None:
    written = {"workload.trainer.flags": {BATCH_FLAG: 64, STALENESS_FLAG: 3}}
    batch = plan_of("reference-p5en", written).workload.batch
    assert (batch.groups, batch.staleness_versions, batch.window_groups) == (64, 3, 192)
    older = plan_of("reference-p5en", {"workload.trainer.flags": {STALENESS_FLAG: 4}}).workload
    assert older.batch.groups == 256
    assert older.rollouts[0].engines_busy == older.rollouts[0].geometry.engines_max


@pytest.mark.parametrize(
    ("written", "number"),
    [(64, 64), ("64", 64), (0, None), ("0", None), (-1, None), (2.0, None), ("many", None), ("", None), ("²", None)],
)
def test_counts(written: int | float | str, number: int | None) -> None:
    assert count(written) == number


@pytest.mark.parametrize("written", [True, False, None])
def test_a_bare_or_absent_flag_is_no_count(written: bool | None) -> None:
    assert count(written) is None
