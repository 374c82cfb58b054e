"""Quotas and cost of the pools at their maximum, against sums worked out by hand."""

from __future__ import annotations

import pytest

from infra.config.quotas import HOURS_PER_MONTH

R, P5, P6, S = "reference-p5en", "p5", "p6-b200", "starter-p5en"


def needs(plan) -> dict[tuple[str, str], tuple[int, tuple[str, ...]]]:
    return {(need.code, need.purchase): (need.vcpus, need.pools) for need in plan.quotas}


def test_quotas_of_the_reference_by_hand(planned) -> None:
    assert needs(planned(R)) == {
        # 3 x m7i.2xlarge + 16 x m7i.8xlarge + 2 x r7i.8xlarge
        ("L-1216C47A", "on_demand"): (3 * 8 + 16 * 32 + 2 * 32, ("system", "environments", "buffer")),
        ("L-417A185B", "on_demand"): (16 * 192, ("trainer",)),
        ("L-C4BD4855", "spot"): (32 * 192, ("rollout",)),
    }


def test_a_capacity_block_needs_no_quota(planned) -> None:
    assert "trainer" not in [name for need in planned(P6).quotas for name in need.pools]


def test_a_spot_pool_of_cpu_nodes_counts_against_the_standard_spot_quota(planned) -> None:
    plan = planned(S, {"pools.environments.capacity": {"type": "spot"}})
    assert needs(plan)["L-34B43A08", "spot"] == (4 * 16, ("environments",))


def test_a_mixed_pool_counts_its_largest_type(planned) -> None:
    for types in (["m7i.4xlarge", "m7i.16xlarge"], ["m7i.16xlarge", "m7i.4xlarge"]):
        plan = planned(S, {"pools.environments.instance_types": types})
        assert needs(plan)["L-1216C47A", "on_demand"][0] == 3 * 8 + 4 * 64


def test_cost_of_the_reference_by_hand(planned) -> None:
    cost = planned(R).cost
    by_pool = {item.pool: item for item in cost.pools}
    assert by_pool["trainer"].usd_per_node_hour == 63.296
    assert by_pool["trainer"].usd_per_hour_min == pytest.approx(16 * 63.296)
    assert by_pool["rollout"].usd_per_hour_min == 0
    assert by_pool["rollout"].usd_per_hour_max == pytest.approx(32 * 26.9369)
    assert by_pool["rollout"].price_as_of == "2026-08-06"
    assert cost.usd_per_hour_max == pytest.approx(16 * 63.296 + 32 * 26.9369)
    assert cost.usd_per_month_max == pytest.approx(cost.usd_per_hour_max * 730)
    assert HOURS_PER_MONTH == 730


def test_a_pool_without_a_recorded_price_is_named_and_left_out_of_the_sum(planned) -> None:
    cost = planned(P6).cost
    assert cost.unpriced == ("system", "trainer", "rollout", "environments", "buffer")
    assert cost.usd_per_hour_max == 0
    assert all(item.usd_per_hour_max is None for item in cost.pools)


def test_a_price_is_of_the_pools_own_region_and_purchase(planned) -> None:
    by_pool = {item.pool: item.usd_per_node_hour for item in planned(P5).cost.pools}
    assert by_pool["trainer"] == 55.04  # on demand in us-east-1, which a reservation also pays
    assert by_pool["rollout"] is None  # no Spot price was read
    assert by_pool["environments"] == 1.6128


def test_a_mixed_pool_costs_its_dearest_type_and_nothing_when_one_has_no_price(planned) -> None:
    types = {"pools.environments.instance_types": ["m7i.4xlarge", "m7i.16xlarge"]}
    (mixed,) = (item for item in planned(P5, types).cost.pools if item.pool == "environments")
    assert mixed.usd_per_node_hour == 3.2256
    unknown = {
        "pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"],
        "pools.rollout.capacity": {"type": "on_demand"},
    }
    (mixed,) = (item for item in planned(P5, unknown).cost.pools if item.pool == "rollout")
    assert mixed.usd_per_node_hour is None
