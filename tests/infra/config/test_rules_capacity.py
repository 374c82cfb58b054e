from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from infra.catalog import CATALOG

S, R, P5, P6 = "starter-p5en", "reference-p5en", "p5", "p6-b200"
SYSTEM = {"role": "system", "instance_types": ["m7i.2xlarge"], "nodes": 3, "capacity": {"type": "on_demand"}}
SECOND_TRAINER = {
    "role": "trainer",
    "instance_types": ["p5en.48xlarge"],
    "nodes": 2,
    "capacity": {"type": "on_demand"},
}
RESERVATION = {"type": "reservation", "id": "cr-0123456789abcdef0"}
STARTS = datetime(2026, 12, 7, 11, 30, tzinfo=UTC)


def block(ends: datetime, starts: datetime = STARTS) -> dict[str, object]:
    return {"type": "capacity_block", "id": "cr-0123456789abcdef0", "starts": starts, "ends": ends}


FAULTS = [
    ("capacity.roles", S, {"pools.trainer": ...}, "pools", "no trainer pool", "lockstep", "exactly one"),
    ("capacity.roles", S, {"pools.second": SECOND_TRAINER}, "pools", "[trainer, second]", "lockstep", "exactly one"),
    ("capacity.roles", S, {"pools.rollout": ...}, "pools", "no rollout pool", "samples", "at least one"),
    (
        "capacity.roles",
        S,
        {"pools.system": SYSTEM, "pools.other": SYSTEM},
        "pools",
        "[system, other]",
        "one system pool",
        "Keep one",
    ),
    (
        "capacity.roles",
        S,
        {"pools.system": SYSTEM | {"role": "environment"}},
        "pools.system",
        "role environment",
        "belongs to the system pool",
        "another name",
    ),
    (
        "capacity.instance-known",
        S,
        {"pools.rollout.instance_types": ["p5en.48xlarge", "p5en.24xlarge"]},
        "pools.rollout.instance_types.1",
        "p5en.24xlarge",
        "never guessed",
        "p5en.48xlarge",
    ),
    (
        "capacity.role-type",
        S,
        {"pools.trainer.instance_types": ["m7i.8xlarge"]},
        "pools.trainer.instance_types",
        "m7i.8xlarge",
        "a trainer needs GPUs",
        "p5en.48xlarge",
    ),
    (
        "capacity.role-type",
        S,
        {"pools.rollout.instance_types": ["m7i.8xlarge"]},
        "pools.rollout.instance_types",
        "m7i.8xlarge",
        "a rollout needs GPUs",
        "p5en.48xlarge",
    ),
    *(
        (
            "capacity.role-type",
            S,
            {"pools.extra": SYSTEM | {"role": role, "instance_types": ["p5en.48xlarge"]}},
            "pools.extra.instance_types",
            "p5en.48xlarge",
            f"a {role} pool runs no GPU pods",
            "m7i.8xlarge",
        )
        for role in ("system", "environment", "buffer")
    ),
    (
        "capacity.one-layout",
        S,
        {"pools.rollout.instance_types": ["p5en.48xlarge", "p5.48xlarge"]},
        "pools.rollout.instance_types",
        "[p5en.48xlarge, p5.48xlarge]",
        "p5en.48xlarge has 16 EFA, 8 GPUs; p5.48xlarge has 32 EFA, 8 GPUs",
        "a pool of their own",
    ),
    (
        "capacity.node-range",
        S,
        {"pools.rollout.nodes": {"min": 3, "max": 2}},
        "pools.rollout.nodes",
        "min 3, max 2",
        "min is above max",
        "Swap",
    ),
    (
        "capacity.trainer-on-spot",
        S,
        {"pools.trainer.capacity": {"type": "spot"}},
        "pools.trainer.capacity.type",
        "spot",
        "one reclaimed node stops every rank",
        "on_demand, reservation or capacity_block",
    ),
    *(
        (
            "capacity.trainer-fixed",
            S,
            {f"pools.{name}": pool | {"nodes": {"min": 1, "max": 2}}},
            f"pools.{name}.nodes",
            "min 1, max 2",
            f"a {name} pool has a fixed size",
            "`nodes: 2`",
        )
        for name, pool in (("trainer", SECOND_TRAINER), ("system", SYSTEM))
    ),
    (
        "capacity.spot-range",
        S,
        {"pools.rollout.nodes": 2},
        "pools.rollout.nodes",
        "2",
        "Spot capacity comes and goes",
        "`nodes: {min: 0, max: 2}`",
    ),
    (
        "capacity.block-size",
        P6,
        {"pools.trainer.nodes": 8},
        "pools.trainer.nodes",
        "8",
        "before the block starts every launch fails",
        "`nodes: {min: 0, max: 8}`; the schedule scales up at the start, or run"
        " `moerl pool scale ENV trainer --nodes 8`",
    ),
    (
        "capacity.block-size",
        P6,
        {"pools.trainer.nodes.min": 1},
        "pools.trainer.nodes",
        "min 1",
        "before the block starts",
        "`min: 0`; the schedule scales up at the start, or run `moerl pool scale ENV trainer --nodes 8`",
    ),
    (
        "capacity.block-size",
        P6,
        {"pools.rollout.capacity": block(STARTS + timedelta(days=14)), "pools.rollout.nodes.max": 65},
        "pools.rollout.nodes",
        "65",
        "at most 64 instances",
        "fewer",
    ),
    (
        "capacity.block-window",
        P6,
        {"pools.trainer.capacity": block(STARTS + timedelta(minutes=90))},
        "pools.trainer.capacity.ends",
        "2026-12-07T13:00:00+00:00",
        "not more than 90 minutes after starts (2026-12-07T11:30:00+00:00)",
        "from the reservation",
    ),
    (
        "capacity.block-window",
        P6,
        {"pools.trainer.capacity": block(STARTS + timedelta(days=182, minutes=1))},
        "pools.trainer.capacity.ends",
        "2027-06-07T11:31:00+00:00",
        "at most 182 days",
        "from the reservation",
    ),
    (
        "capacity.block-window",
        P6,
        {"pools.trainer.capacity": block(datetime(2026, 11, 29, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))},
        "pools.trainer.capacity.ends",
        "2026-11-29T00:00:00+00:00",
        "ended before this catalog's date (2026-11-29)",
        "still to come",
    ),
    *(
        (
            "capacity.reserved-one-type",
            P5,
            {
                "pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"],
                "pools.rollout.capacity": capacity,
                "pools.rollout.nodes": {"min": 0, "max": 16},
            },
            "pools.rollout.instance_types",
            "[p5.48xlarge, p5e.48xlarge]",
            f"{capacity['type']} cr-0123456789abcdef0 holds one instance type",
            "alone",
        )
        for capacity in (RESERVATION, block(STARTS + timedelta(days=14)))
    ),
    (
        "capacity.placement-group",
        R,
        {"pools.trainer.placement_group": "cluster"},
        "pools.trainer.placement_group",
        "cluster",
        "strands nodes already paid for",
        "capacity.placement_group",
    ),
    (
        "capacity.placement-group",
        P6,
        {"pools.trainer.placement_group": "mine"},
        "pools.trainer.placement_group",
        "mine",
        "places its nodes itself",
        "Remove",
    ),
]
WARNINGS = [
    (
        "capacity.role-type",
        R,
        {"pools.buffer.instance_types": ["m7i.8xlarge"]},
        "pools.buffer.instance_types",
        "m7i.8xlarge",
        "lives in memory",
        "r7i",
    ),
    (
        "capacity.placement-group",
        S,
        {"pools.rollout.placement_group": "cluster"},
        "pools.rollout.placement_group",
        "cluster",
        "narrows where Spot may find nodes",
        "Remove",
    ),
]
PASSES = [
    ("capacity.roles", S, {"pools.system": SYSTEM}),
    ("capacity.roles", S, {"pools.base": SYSTEM}),
    ("capacity.roles", P5, {}),
    ("capacity.instance-known", S, {}),
    ("capacity.role-type", R, {}),
    ("capacity.one-layout", P5, {"pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"]}),
    ("capacity.one-layout", S, {"pools.environments.instance_types": ["m7i.4xlarge", "c7i.8xlarge"]}),
    ("capacity.node-range", S, {"pools.rollout.nodes": {"min": 2, "max": 2}}),
    ("capacity.trainer-on-spot", S, {}),
    ("capacity.trainer-fixed", P6, {}),
    ("capacity.spot-range", S, {"pools.rollout.nodes": {"max": 1}}),
    ("capacity.block-size", P6, {"pools.trainer.nodes.max": 64}),
    ("capacity.block-window", P6, {"pools.trainer.capacity": block(STARTS + timedelta(minutes=91))}),
    ("capacity.block-window", P6, {"pools.trainer.capacity": block(STARTS + timedelta(days=182))}),
    (
        "capacity.block-window",
        P6,
        {"pools.trainer.capacity": block(datetime(2026, 11, 29, 0, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC))},
    ),
    ("capacity.reserved-one-type", R, {}),
    ("capacity.reserved-one-type", P5, {"pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"]}),
    ("capacity.placement-group", S, {"pools.trainer.placement_group": "cluster"}),
    ("capacity.placement-group", R, {"pools.trainer.capacity.placement_group": "theirs"}),
]
BESIDE = {"capacity.trainer-on-spot": {"capacity.spot-range"}}


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), FAULTS)
def test_rule_refuses(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, beside=BESIDE.get(rule, ()))


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), WARNINGS)
def test_rule_warns(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, severity="warning")


@pytest.mark.parametrize(("rule", "base", "changes"), PASSES)
def test_rule_is_silent(rule, base, changes, silent) -> None:
    silent(rule, base, changes)


def test_types_of_one_interface_layout_and_different_gpus_are_refused(fires) -> None:
    changes = {"pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"]}
    for field, value in (("gpus", 4), ("cuda_arch", "10.0")):
        other = replace(CATALOG.instances["p5e.48xlarge"], **{field: value})
        catalog = replace(CATALOG, instances={**CATALOG.instances, other.name: other})
        key = "pools.rollout.instance_types"
        shown = "[p5.48xlarge, p5e.48xlarge]"
        fires("capacity.one-layout", P5, changes, key, shown, "they differ", "Keep types", catalog=catalog)


@pytest.mark.parametrize("base", [S, R, P5, P6])
def test_c1_type_that_the_catalog_does_not_know_is_refused_and_names_pool_and_type(base, edited) -> None:
    changes = {"pools.rollout.instance_types": ["p7.48xlarge"]}
    (found,) = (item for item in edited(base, changes) if item.severity == "fault")
    assert "pools.rollout.instance_types.0: p7.48xlarge" in found.text("f.yaml")
    assert "p6-b200.48xlarge" in found.fix


@pytest.mark.parametrize("missing", ["id", "starts", "ends"])
def test_c2_block_without_id_or_times_is_refused(missing, edited) -> None:
    (found,) = (item for item in edited(P6, {f"pools.trainer.capacity.{missing}": ...}) if item.severity == "fault")
    assert found.key == f"pools.trainer.capacity.{missing}"
    assert "is required" in found.why
    assert f"`{missing}: " in found.fix


def test_c2_fixed_node_count_on_a_block_is_refused_with_the_command_that_scales_later(edited) -> None:
    faults = [item for item in edited(P6, {"pools.trainer.nodes": 8}) if item.severity == "fault"]
    assert len(faults) == 1
    assert "moerl pool scale ENV trainer --nodes 8" in faults[0].fix


def test_c4_spot_pool_of_two_types_with_one_layout_renders(planned) -> None:
    pool = planned(P5, {"pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"]}).pool("rollout")
    assert pool.instance_types == ("p5.48xlarge", "p5e.48xlarge")
    assert (pool.capacity.type, pool.efa_per_node, pool.size.desired) == ("spot", 32, None)


def test_c4_spot_on_a_trainer_is_refused_whatever_its_size(edited) -> None:
    changes = {"pools.trainer.capacity": {"type": "spot"}, "pools.trainer.nodes": {"min": 0, "max": 2}}
    assert "capacity.trainer-on-spot" in {item.rule for item in edited(S, changes) if item.severity == "fault"}
