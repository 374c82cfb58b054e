"""What each pool's nodes need besides their pods' images, and who brings it."""

from __future__ import annotations

import pytest

R, P5, P6, S = "reference-p5en", "p5", "p6-b200", "starter-p5en"
CUSTOM = "ami-0123456789abcdef0"
FSX = {"checkpoints": {"scratch": "fsx", "scratch_gib": 1200}}
BASELINE = {"software": "baseline", "workload.rollout.gpus_per_engine": 8, "workload.rollout.expert_parallel": 8}


def brought(pool) -> dict[str, str]:
    return {part.what: part.by for part in pool.host.parts}


@pytest.mark.parametrize("base", [R, P6, S])
def test_a_stock_image_under_gpu_direct_leaves_the_efa_driver_to_be_proven(base, planned) -> None:
    pool = planned(base).pool("rollout")
    assert pool.host.image == "eks"
    assert brought(pool) == {
        "EFA driver >= 3.3.0": "unproven",
        "gdrdrv >= 2.5": "DaemonSet",
        "PeerMappingOverride": "user data",
        "5128 huge pages": "user data",
        "FastImagePull": "user data",
    }


def test_the_proxy_asks_for_no_driver_version_and_no_driver_option(planned) -> None:
    assert brought(planned(P5).pool("trainer")) == {
        "EFA driver": "image",
        "gdrdrv >= 2.5": "DaemonSet",
        "5128 huge pages": "user data",
        "FastImagePull": "user data",
    }


def test_a_stack_without_experts_over_efa_needs_no_gdrdrv(planned) -> None:
    assert not [what for what in brought(planned(R, BASELINE).pool("trainer")) if "gdrdrv" in what]


def test_a_custom_image_is_taken_at_its_word_and_gets_no_feature_gate_that_it_may_not_know(planned) -> None:
    declared = {"pools.rollout.ami": {"id": CUSTOM, "efa_driver": "3.3.0", "gdrdrv": "2.5.2"}}
    pool = planned(R, declared).pool("rollout")
    assert (pool.host.image, pool.host.fast_image_pull) == ("custom", False)
    assert (brought(pool)["EFA driver >= 3.3.0"], brought(pool)["gdrdrv >= 2.5"]) == ("image", "image")
    silent = planned(R, {"pools.rollout.ami": {"id": CUSTOM}}).pool("rollout")
    assert (brought(silent)["EFA driver >= 3.3.0"], brought(silent)["gdrdrv >= 2.5"]) == ("unproven", "DaemonSet")
    asked = planned(R, declared | {"pools.rollout.fast_image_pull": True}).pool("rollout")
    assert asked.host.fast_image_pull


def test_a_baked_image_has_it_all_and_leaves_nothing_to_prove(planned) -> None:
    pool = planned(R, FSX | {"pools.trainer.ami": {"id": CUSTOM, "baked": True}}).pool("trainer")
    assert (pool.host.image, pool.transport, pool.transport_reason) == ("baked", "gda", None)
    assert not pool.load_gdrdrv
    assert not pool.host.lustre_client
    assert brought(pool) == {
        "EFA driver >= 3.3.0": "image",
        "gdrdrv >= 2.5": "image",
        "PeerMappingOverride": "user data",
        "5128 huge pages": "user data",
        "Lustre client": "image",
        "FastImagePull": "user data",
    }


def test_an_image_with_an_old_driver_turns_gpu_direct_into_a_warned_proxy(planned, edited) -> None:
    changes = {"pools.trainer.ami.release": "1.35.2-20260714"}
    pool = planned(R, changes).pool("trainer")
    assert (pool.transport, brought(pool)["EFA driver"]) == ("proxy", "image")
    assert "3.1.0" in pool.transport_reason
    warned = [found for found in edited(R, changes) if found.rule == "efa.transport-derived"]
    assert [(found.key, found.severity) for found in warned] == [("pools.trainer.transport", "warning")]
    refused = edited(R, changes | {"pools.trainer.transport": "gda"})
    assert [(found.rule, found.severity) for found in refused if found.key == "pools.trainer.transport"] == [
        ("efa.transport-asked", "fault")
    ]


def test_a_lustre_client_is_brought_where_scratch_is_mounted(planned) -> None:
    plan = planned(S, FSX)
    assert [pool.name for pool in plan.pools if pool.host.lustre_client] == ["trainer"]
    assert brought(plan.pool("trainer"))["Lustre client"] == "user data"
    assert not [pool.name for pool in planned(S).pools if pool.host.lustre_client]


def test_cpu_pools_need_nothing(planned) -> None:
    for base in (R, P5, P6, S):
        for pool in planned(base).pools:
            if not pool.is_gpu:
                assert pool.host.parts == ()


def test_a_new_release_of_the_ami_changes_nothing_that_reaches_a_launch_template(planned) -> None:
    before, after = (
        planned(S, {"kubernetes.node_release": f"1.35.2-{day}"}).pool("rollout").host
        for day in ("20260728", "20261012")
    )
    assert (before.huge_pages, before.fast_image_pull, before.lustre_client) == (
        after.huge_pages,
        after.fast_image_pull,
        after.lustre_client,
    )


def test_huge_pages_are_those_that_allocatable_memory_was_computed_with(planned) -> None:
    for base in (R, P5, P6, S):
        for pool in planned(base).pools:
            assert pool.host.huge_pages * 2 == pool.huge_pages_mib
