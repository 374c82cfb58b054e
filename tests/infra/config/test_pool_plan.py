"""Derived numbers of a node pool."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from infra.catalog.allocatable import EFA_HUGE_PAGES_MIB, allocatable
from infra.catalog.instances import INSTANCES
from infra.config.pins import Pins
from infra.config.pool_plan import scaled_outside

R, P5, P6, S = "reference-p5en", "p5", "p6-b200", "starter-p5en"
SYSTEM = {"role": "system", "instance_types": ["m7i.4xlarge"], "nodes": 2, "capacity": {"type": "on_demand"}}
CUSTOM = "ami-0123456789abcdef0"
PREFIX = "k8s.io/cluster-autoscaler/node-template"


@pytest.mark.parametrize(("base", "efa"), [(P5, 32), (R, 16), (S, 16), (P6, 8)])
@pytest.mark.parametrize("pool", ["trainer", "rollout"])
def test_c1_interfaces_are_one_plain_primary_and_the_types_efa_devices(base, efa, pool, planned) -> None:
    plan = planned(base).pool(pool)
    assert plan.efa_per_node == efa
    assert sum(interface.is_efa for interface in plan.interfaces) == efa
    primary = [interface for interface in plan.interfaces if (interface.card, interface.device) == (0, 0)]
    assert [interface.kind for interface in primary] == ["interface"]
    assert len({(interface.card, interface.device) for interface in plan.interfaces}) == len(plan.interfaces) == efa + 1
    assert {interface.device for interface in plan.interfaces} <= {0, 1}


def test_classic_layout_has_an_address_on_every_card(planned) -> None:
    plan = planned(S, {"pools.trainer.efa_layout": "classic"}).pool("trainer")
    assert Counter(interface.kind for interface in plan.interfaces) == {"efa": 16}
    assert plan.efa_per_node == 16


@pytest.mark.parametrize("changes", [{"pools.rollout.efa": False}, {"pools.environments.efa": True}])
def test_a_pool_without_efa_has_no_interface_list_no_huge_pages_and_no_efa_tag(changes, planned) -> None:
    (name,) = (key.split(".")[1] for key in changes)
    plan = planned(S, changes).pool(name)
    assert (plan.interfaces, plan.efa_per_node, plan.huge_pages_mib) == ((), 0, 0)
    assert plan.transport == "none"
    assert not plan.gpu_direct_driver
    assert not [tag for tag in plan.scaler_tags if "efa" in tag or "hugepages" in tag]


def test_huge_pages_leave_ordinary_memory_on_efa_nodes(planned) -> None:
    with_efa = planned(S).pool("rollout")
    without = planned(S, {"pools.rollout.efa": False}).pool("rollout")
    assert with_efa.huge_pages_mib == EFA_HUGE_PAGES_MIB == 10256
    assert without.allocatable.memory_mib - with_efa.allocatable.memory_mib == 10256


def test_an_undeclared_system_pool_is_implied_and_comes_first(planned) -> None:
    first = planned(S).pools[0]
    assert (first.name, first.role, first.instance_types) == ("system", "system", ("m7i.2xlarge",))
    assert (first.size.min, first.size.desired, first.size.max) == (3, 3, 3)


def test_a_declared_system_pool_replaces_the_implied_one_and_comes_first(planned) -> None:
    pools = planned(S, {"pools.base": SYSTEM}).pools
    assert [pool.name for pool in pools] == ["base", "trainer", "rollout", "environments"]
    assert pools[0].size.desired == 2


def test_fixed_pool_has_min_desired_and_max_and_no_other_pool_has_a_desired_size(planned) -> None:
    for base in (R, P5, P6, S):
        plan = planned(base)
        for pool in plan.pools:
            if pool.size.desired is None:
                assert scaled_outside(pool) == ("schedule" if pool.capacity.block else "autoscaler")
            else:
                assert pool.size.min == pool.size.desired == pool.size.max
                assert scaled_outside(pool) is None
    fixed = {pool.name for pool in planned(R).pools if pool.size.desired is not None}
    assert fixed == {"system", "trainer", "buffer"}
    block = planned(P6).pool("trainer")
    assert (block.size.min, block.size.max, scaled_outside(block)) == (0, 8, "schedule")


def test_c4_a_new_maximum_changes_that_pools_size_and_nothing_else_of_any_pool(planned) -> None:
    before, after = planned(R).document()["pools"], planned(R, {"pools.rollout.nodes.max": 30}).document()["pools"]
    for old, new in zip(before, after, strict=True):
        changed = {key for key in old if old[key] != new[key]}
        assert changed == ({"size"} if old["name"] == "rollout" else set())


def test_c4_a_new_ami_release_changes_no_label_no_tag_and_no_user_data_of_a_pool(planned) -> None:
    # The first release is recorded with an EFA driver too old for GPU-direct, the second with none at all.
    old = planned(R, {"kubernetes.node_release": "1.35.2-20260728"})
    new = planned(R, {"kubernetes.node_release": "1.35.2-20261012"})
    for before, after in zip(old.pools, new.pools, strict=True):
        assert (before.labels, before.taints, before.scaler_tags) == (after.labels, after.taints, after.scaler_tags)
        assert (before.gpu_direct_driver, before.max_pods) == (after.gpu_direct_driver, after.max_pods)
    assert (old.pool("rollout").transport, new.pool("rollout").transport) == ("proxy", "gda")


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (R, {}, True),
        (P5, {}, False),
        (R, {"pools.rollout.transport": "gda"}, True),
        (R, {"pools.rollout.transport": "proxy"}, False),
        (S, {"software": "aws-reference"}, False),
        (S, {"pools.rollout.efa": False}, False),
    ],
)
def test_driver_option_of_gpu_direct_follows_type_stack_and_file(base, changes, expected, planned) -> None:
    assert planned(base, changes).pool("rollout").gpu_direct_driver == expected


def test_c2_block_times_are_save_90_and_down_60_minutes_before_the_end(planned) -> None:
    plan = planned(P6).pool("trainer")
    block = plan.capacity.block
    assert block is not None
    assert plan.capacity.reservation_id == "cr-0fedcba9876543210"
    assert (block.starts, block.ends) == (
        datetime(2026, 12, 7, 11, 30, tzinfo=UTC),
        datetime(2026, 12, 21, 11, 30, tzinfo=UTC),
    )
    assert block.scale_up_at == datetime(2026, 12, 7, 11, 31, tzinfo=UTC)
    assert block.save_signal_at == datetime(2026, 12, 21, 10, 0, tzinfo=UTC)
    assert block.scale_down_at == datetime(2026, 12, 21, 10, 30, tzinfo=UTC)
    assert block.ends - block.scale_down_at > timedelta(minutes=30)
    assert (block.schedule_group, block.save_signal_parameter) == (
        "p6-b200-trainer",
        "/moerl/p6-b200/trainer/save-signal",
    )


def test_block_times_of_any_offset_come_out_in_utc(planned) -> None:
    changes = {
        "pools.trainer.capacity.starts": "2026-12-07T13:30:00+02:00",
        "pools.trainer.capacity.ends": "2026-12-21T04:30:00-07:00",
    }
    there, here = planned(P6, changes).pool("trainer").capacity.block, planned(P6).pool("trainer").capacity.block
    assert there == here
    assert there is not None
    assert {moment.tzinfo for moment in (there.starts, there.ends, there.scale_up_at, there.scale_down_at)} == {UTC}


def test_only_a_reservation_or_a_block_has_an_id(planned) -> None:
    ids = {pool.name: pool.capacity.reservation_id for pool in planned(R).pools}
    assert ids == {
        "system": None,
        "trainer": "cr-0123456789abcdef0",
        "rollout": None,
        "environments": None,
        "buffer": None,
    }


def test_ami_is_of_the_pools_role_at_the_most_specific_release(planned) -> None:
    pins = Pins(node_release="1.35.2-20261012")
    plan = planned(S, {"pools.rollout.ami.release": "1.35.2-20260818"}, pins=pins)
    assert {pool.name: (pool.ami.type, pool.ami.release, pool.ami.id) for pool in plan.pools} == {
        "system": ("AL2023_x86_64_STANDARD", "1.35.2-20261012", None),
        "trainer": ("AL2023_x86_64_NVIDIA", "1.35.2-20261012", None),
        "rollout": ("AL2023_x86_64_NVIDIA", "1.35.2-20260818", None),
        "environments": ("AL2023_x86_64_STANDARD", "1.35.2-20261012", None),
    }


def test_custom_ami_has_neither_type_nor_release(planned) -> None:
    ami = planned(S, {"pools.rollout.ami": {"id": CUSTOM, "type": "CUSTOM"}}, pins=Pins(node_release="1.35.2-20261012"))
    assert ami.pool("rollout").ami.id == CUSTOM
    assert (ami.pool("rollout").ami.type, ami.pool("rollout").ami.release) == (None, None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pools.trainer.placement_group": "cluster"}, (True, None)),
        ({"pools.trainer.placement_group": "theirs"}, (False, "theirs")),
        (
            {
                "pools.trainer.capacity": {
                    "type": "reservation",
                    "id": "cr-0123456789abcdef0",
                    "placement_group": "made-in",
                }
            },
            (False, "made-in"),
        ),
    ],
)
def test_placement_group_is_created_joined_or_taken_from_the_reservation(changes, expected, planned) -> None:
    placement = planned(S, changes).pool("trainer").placement
    assert placement is not None
    assert (placement.create, placement.name) == expected


def test_labels_say_pool_role_and_capacity_and_the_users_come_with_them(planned) -> None:
    plan = planned(P6, {"pools.trainer.labels": {"example.com/team": "a"}})
    assert plan.pool("trainer").labels == {
        "moerl.io/pool": "trainer",
        "moerl.io/role": "trainer",
        "moerl.io/capacity": "capacity-block",
        "example.com/team": "a",
    }


def test_taints_keep_other_pods_off_gpu_and_role_pools_and_nothing_off_the_system_pool(planned) -> None:
    plan = planned(S, {"pools.rollout.taints": [{"key": "example.com/x", "effect": "NO_EXECUTE"}]})
    taints = {pool.name: [(taint.key, taint.text()) for taint in pool.taints] for pool in plan.pools}
    assert taints == {
        "system": [],
        "trainer": [("moerl.io/role", "trainer:NoSchedule"), ("nvidia.com/gpu", "true:NoSchedule")],
        "rollout": [
            ("moerl.io/role", "rollout:NoSchedule"),
            ("nvidia.com/gpu", "true:NoSchedule"),
            ("example.com/x", ":NoExecute"),
        ],
        "environments": [("moerl.io/role", "environment:NoSchedule")],
    }


def test_the_autoscaler_finds_the_pools_that_it_scales_and_no_others(planned) -> None:
    for base in (R, P5, P6, S):
        for pool in planned(base).pools:
            scaled = scaled_outside(pool) == "autoscaler"
            assert (pool.scaler_tags.get("moerl.io/scaled-by") == "autoscaler") == scaled
            assert ("k8s.amazonaws.com/accelerator" in pool.labels) == (scaled and pool.is_gpu)


@pytest.mark.parametrize(
    ("base", "changes", "loads"),
    [
        (R, {}, True),
        (P5, {}, True),
        (R, {"pools.trainer.ami": {"id": CUSTOM, "efa_driver": "3.3.0", "gdrdrv": "2.5.2"}}, False),
        (
            R,
            {"software": "baseline", "workload.rollout.gpus_per_engine": 8, "workload.rollout.expert_parallel": 8},
            False,
        ),
    ],
    ids=["gda", "proxy", "declared", "no transport"],
)
def test_gdrdrv_is_loaded_where_the_transport_needs_it_and_the_ami_is_not_known_to_have_it(
    base, changes, loads, planned
) -> None:
    plan = planned(base, changes)
    assert plan.pool("trainer").load_gdrdrv is loads
    assert not [pool.name for pool in plan.pools if pool.load_gdrdrv and not pool.efa_per_node]


def test_scaler_tags_describe_a_node_that_does_not_exist_yet(planned) -> None:
    tags = planned(P5).pool("rollout").scaler_tags
    assert tags == {
        f"{PREFIX}/label/moerl.io/pool": "rollout",
        f"{PREFIX}/label/moerl.io/role": "rollout",
        f"{PREFIX}/label/moerl.io/capacity": "spot",
        f"{PREFIX}/label/k8s.amazonaws.com/accelerator": "nvidia-h100",
        f"{PREFIX}/taint/moerl.io/role": "rollout:NoSchedule",
        f"{PREFIX}/taint/nvidia.com/gpu": "true:NoSchedule",
        f"{PREFIX}/resources/nvidia.com/gpu": "8",
        f"{PREFIX}/resources/vpc.amazonaws.com/efa": "32",
        f"{PREFIX}/resources/hugepages-2Mi": "10256Mi",
        "moerl.io/scaled-by": "autoscaler",
    }
    assert not [tag for tag in planned(P5).pool("environments").scaler_tags if "/resources/" in tag]


@pytest.mark.parametrize(
    ("base", "pool", "types"),
    [
        (P5, "rollout", ("p5.48xlarge", "p5e.48xlarge")),
        (S, "environments", ("m7i.16xlarge", "c7i.24xlarge", "r7i.8xlarge")),
    ],
)
def test_a_mixed_pool_is_planned_for_the_least_of_its_types_in_whatever_order_they_are_written(
    base, pool, types, planned
) -> None:
    plans = []
    for order in permutations(types):
        document = planned(base, {f"pools.{pool}.instance_types": list(order)}).document()
        (found,) = (entry for entry in document["pools"] if entry["name"] == pool)
        # The reason names the first of equally limited types.
        plans.append({**found, "instance_types": None, "transport_reason": None})
    assert all(plan == plans[0] for plan in plans)
    instances = [INSTANCES[name] for name in types]
    assert plans[0]["gpu_memory_gib"] == min(instance.gpu_memory_gib for instance in instances)
    assert plans[0]["max_pods"] == min(instance.max_pods for instance in instances)
    assert plans[0]["vcpus_per_node"] == min(instance.vcpus for instance in instances)
    nodes = [
        allocatable(
            instance,
            max_pods=plans[0]["max_pods"],
            root_volume_gib=plans[0]["root_volume_gib"],
            huge_pages_mib=plans[0]["huge_pages_mib"],
        )
        for instance in instances
    ]
    for resource in ("cpu_millis", "memory_mib", "ephemeral_gib"):
        assert plans[0]["allocatable"][resource] == min(getattr(node, resource) for node in nodes)


def test_local_disks_are_joined_where_there_are_any(planned) -> None:
    assert planned(S).pool("trainer").raid0
    assert planned(S).pool("trainer").is_gpu
    assert not planned(S).pool("environments").raid0
    assert not planned(S).pool("environments").is_gpu


@pytest.mark.parametrize(
    ("base", "changes", "transport", "reason"),
    [
        (R, {}, "gda", "EFA driver >= 3.3.0 loaded and gdrdrv >= 2.5 loaded"),
        (P5, {}, "proxy", "p5.48xlarge has no GPU-direct EFA, in hardware, whatever the software"),
        (R, {"pools.rollout.ami": {"id": CUSTOM, "efa_driver": "3.3.0", "gdrdrv": "2.5"}}, "gda", None),
    ],
)
def test_transport_comes_with_what_limits_it_or_is_still_to_prove(base, changes, transport, reason, planned) -> None:
    pool = planned(base, changes).pool("rollout")
    assert (pool.transport, pool.transport_reason) == (transport, reason)
    assert planned(base, changes).pool("environments").transport_reason is None


def test_user_data_of_the_file_is_handed_on_unchanged(planned) -> None:
    script = "#!/bin/sh\necho ü\n\n"
    assert planned(S, {"pools.rollout.user_data": script}).pool("rollout").extra_user_data == script
