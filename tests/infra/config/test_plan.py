"""The Plan as a whole: pure, serializable, and complete about what nobody has looked up yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from infra.catalog import CATALOG
from infra.config.pins import Kubectl, Pins

ROOT = Path(__file__).parents[3]
SHIPPED = ("p5", "p6-b200", "reference-p5en", "starter-p5en")
R, S, P6 = "reference-p5en", "starter-p5en", "p6-b200"
PINS = Pins(
    kubernetes_version="1.35",
    node_release="1.35.2-20261012",
    addons=dict.fromkeys(CATALOG.addons, "v1.0.0-eksbuild.1"),
    kubectl=Kubectl(key="1.35.2/2026-10-12/bin/linux/amd64/kubectl", sha256="0" * 64),
    images=dict.fromkeys(CATALOG.images, "sha256:" + "1" * 64),
    charts={name: "2" * 64 for name, controller in CATALOG.controllers.items() if controller.helm},
)
PROGRAM = """
import json, sys
from pathlib import Path
from infra.config.loader import load
from infra.config.plan import build_plan
loaded = load(Path(sys.argv[1]))
print(json.dumps(build_plan(loaded.environment, loaded.pins, loaded.warnings).document()))
"""


@pytest.mark.parametrize("base", SHIPPED)
def test_document_is_plain_json_and_the_same_over_two_builds(base, planned) -> None:
    first, second = planned(base, pins=PINS).document(), planned(base, pins=PINS).document()
    assert json.dumps(first) == json.dumps(second)
    assert json.loads(json.dumps(first)) == first


def test_document_does_not_depend_on_the_process_that_writes_it() -> None:
    def written(seed: str) -> str:
        return subprocess.run(  # noqa: S603
            [sys.executable, "-c", PROGRAM, str(ROOT / "environments" / f"{R}.yaml")],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "TZ": "Asia/Tokyo" if seed == "1" else "UTC",
                "PYTHONPATH": str(ROOT),
            },
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert written("1") == written("2")


def test_document_carries_warnings_as_plain_data(planned) -> None:
    document = planned(R).document()
    assert {warning["rule"] for warning in document["warnings"]} == {"efa.transport-unproven", "workload.blast-radius"}
    assert all(warning["severity"] == "warning" for warning in document["warnings"])
    assert document["as_of"] == "2026-11-29"


def test_times_of_a_block_are_written_in_utc(planned) -> None:
    (trainer,) = (pool for pool in planned(P6).document()["pools"] if pool["name"] == "trainer")
    assert trainer["capacity"]["block"]["save_signal_at"] == "2026-12-21T10:00:00+00:00"
    assert trainer["capacity"]["block"]["scale_down_at"] == "2026-12-21T10:30:00+00:00"


def test_without_a_lock_every_pin_is_unresolved_and_named(planned) -> None:
    unresolved = planned(S).unresolved
    assert [item for item in unresolved if item.startswith("AMI release of pool ")] == [
        f"AMI release of pool {name}" for name in ("system", "trainer", "rollout", "environments")
    ]
    assert [item for item in unresolved if item.startswith("version of add-on ")] == [
        f"version of add-on {addon.name}" for addon in planned(S).addons
    ]
    assert unresolved[-1] == "kubectl build for 1.35"
    images = [f"digest of image {name}" for name in CATALOG.images]
    charts = [f"digest of chart {name}" for name in planned(S).charts]
    assert [item for item in unresolved if item.startswith("digest of ")] == images + charts
    assert len(unresolved) == 4 + len(planned(S).addons) + len(images) + len(charts) + 1


def test_with_a_lock_nothing_is_unresolved(planned) -> None:
    plan = planned(R, pins=PINS)
    assert plan.unresolved == ()
    assert {addon.version for addon in plan.addons} == {"v1.0.0-eksbuild.1"}
    assert plan.kubectl == PINS.kubectl
    assert not plan.fixture_pins
    assert planned(R, pins=PINS.model_copy(update={"fixture": True})).fixture_pins


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({"node_release": None}, "AMI release of pool system"),
        ({"addons": {k: v for k, v in PINS.addons.items() if k != "coredns"}}, "version of add-on coredns"),
        ({"kubectl": None}, "kubectl build for 1.35"),
        ({"images": {k: v for k, v in PINS.images.items() if k != "kueue"}}, "digest of image kueue"),
        ({"charts": {k: v for k, v in PINS.charts.items() if k != "keda"}}, "digest of chart keda"),
    ],
)
def test_a_single_missing_pin_is_unresolved(missing, said, planned) -> None:
    assert said in planned(R, pins=PINS.model_copy(update=missing)).unresolved


def test_images_carry_tag_and_digest_and_one_without_a_digest_cannot_be_pulled(planned) -> None:
    pinned, bare = planned(R, pins=PINS).images, planned(R).images
    assert set(pinned) == set(bare) == set(CATALOG.images)
    assert pinned["kueue"] == "registry.k8s.io/kueue/kueue:v0.17.0@sha256:" + "1" * 64
    assert {reference.partition("@")[2] for reference in bare.values()} == {"unresolved"}
    assert {name: text.partition("@")[0] for name, text in bare.items()} == {
        name: text.partition("@")[0] for name, text in pinned.items()
    }


def test_regional_and_versioned_images_follow_region_and_kubernetes_version(planned) -> None:
    home = planned(R).images
    assert home["efa-device-plugin"].startswith("602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/")
    assert planned("p5").images["efa-device-plugin"].startswith("602401143452.dkr.ecr.us-east-1.amazonaws.com/eks/")
    older = planned(R, {"kubernetes.version": "1.34"}).images
    assert {name for name in home if home[name] != older[name]} == {"cluster-autoscaler"}
    assert ":v1.35." in home["cluster-autoscaler"]
    assert ":v1.34." in older["cluster-autoscaler"]


def test_charts_are_those_that_helm_installs(planned) -> None:
    charts = planned(R, pins=PINS).charts
    assert set(charts) == set(CATALOG.controllers) - {
        "nvidia-device-plugin",
        "aws-efa-k8s-device-plugin",
        "dcgm-exporter",
    }
    assert set(charts.values()) == {"2" * 64}
    assert set(planned(R).charts.values()) == {"unresolved"}


def test_a_custom_ami_and_a_release_in_the_file_need_no_lock(planned) -> None:
    changes = {
        "pools.trainer.ami": {"id": "ami-0123456789abcdef0"},
        "pools.rollout.ami": {"release": "1.35.2-20261012"},
    }
    unresolved = planned(S, changes).unresolved
    assert [item for item in unresolved if "AMI" in item] == [
        "AMI release of pool system",
        "AMI release of pool environments",
    ]


def test_addons_come_in_the_catalogs_order_and_the_fsx_driver_only_with_fsx(planned) -> None:
    with_fsx = [addon.name for addon in planned(R).addons]
    without = [addon.name for addon in planned(S).addons]
    assert with_fsx == sorted(CATALOG.addons, key=lambda name: CATALOG.addons[name].order)
    assert set(with_fsx) - set(without) == {"aws-fsx-csi-driver"}


@pytest.mark.parametrize(
    ("version", "day", "expected"),
    [
        ("1.35", date(2026, 11, 29), "STANDARD"),
        ("1.34", date(2026, 12, 1), "STANDARD"),
        ("1.34", date(2026, 12, 2), "EXTENDED"),
        ("1.33", date(2026, 11, 29), "EXTENDED"),
        ("1.31", date(2026, 11, 29), "EXTENDED"),
    ],
)
def test_support_type_follows_the_catalogs_date(version, day, expected, planned, dated) -> None:
    plan = planned(S, {"kubernetes.version": version}, catalog=dated(day))
    assert plan.kubernetes.support_type == expected
    assert plan.as_of == day


def test_public_networks_are_empty_for_a_private_endpoint_and_listed_for_a_public_one(planned) -> None:
    assert planned(S).kubernetes.public_cidrs == ()
    public = planned(S, {"kubernetes.endpoint": {"public_cidrs": ["203.0.113.0/24"]}})
    assert public.kubernetes.public_cidrs == ("203.0.113.0/24",)


@pytest.mark.parametrize(
    ("zone", "zones"),
    [
        (None, ("us-west-2b",)),
        ("us-west-2a", ("us-west-2a", "us-west-2b")),
        ("us-west-2c", ("us-west-2b", "us-west-2c")),
    ],
)
def test_each_zone_that_a_pool_names_has_one_accelerator_subnet_in_the_files_order(zone, zones, planned) -> None:
    network = planned(S, {"pools.environments.zone": zone}).network
    assert network.accelerator_zones == zones
    assert tuple(subnet.zone for subnet in network.subnets if subnet.kind == "accelerator") == zones


def test_a_pool_is_found_by_name_and_a_wrong_name_lists_the_right_ones(planned) -> None:
    plan = planned(S)
    assert plan.pool("rollout").role == "rollout"
    with pytest.raises(KeyError, match="'trainers'; the plan has system, trainer, rollout, environments"):
        plan.pool("trainers")


def test_what_the_file_says_reaches_the_plan(planned) -> None:
    plan = planned(
        S,
        {
            "protected": False,
            "bootstrap": {"qualifier": "mine", "permissions_boundary": "bound"},
            "tags": {"team": "a"},
            "budget": ...,
            "checkpoints.retain_last": 9,
            "checkpoints.scratch": "fsx",
            "checkpoints.scratch_gib": 2400,
        },
    )
    assert (plan.name, plan.account, plan.region, plan.partition) == (S, "123456789012", "us-west-2", "aws")
    assert (plan.protected, plan.qualifier, plan.permissions_boundary) == (False, "mine", "bound")
    assert plan.tags == {"moerl:environment": S, "team": "a"}
    assert (plan.budget_monthly_usd, plan.emails) == (None, ("ml-platform@example.com",))
    assert planned(S).budget_monthly_usd == 200_000
    assert planned(S).protected
    storage = plan.storage
    assert (storage.retain_last, storage.scratch, storage.scratch_gib) == (9, "fsx", 2400)
    assert storage.checkpoint_path == f"/scratch/{S}/checkpoints"


def test_queues_are_reached_by_urls_of_account_and_region(planned) -> None:
    queue = planned(S).queue
    assert queue.task_url == f"https://sqs.us-west-2.amazonaws.com/123456789012/{S}-tasks"
    assert len({queue.task_url, queue.result_url, queue.dead_letter_url}) == 3
    assert 1 <= queue.max_receive_count <= 1000
    assert 0 < queue.visibility_seconds <= 12 * 3600
    assert queue.retention_seconds == 14 * 24 * 3600


def test_nat_traffic_to_expect_counts_a_zones_nodes_at_their_maximum_and_is_empty_without_nat(planned) -> None:
    plan = planned(S, {"pools.rollout.zone": "us-west-2a"})
    by_zone = plan.network.nat_gib_per_hour
    assert set(by_zone) == set(plan.network.zones)
    for zone, gib in by_zone.items():
        assert gib == 4 * sum(pool.size.max for pool in plan.pools if zone in pool.zones)
    assert by_zone["us-west-2a"] != planned(S).network.nat_gib_per_hour["us-west-2a"]
    assert planned(S, {"network.egress": "none"}).network.nat_gib_per_hour == {}
