from __future__ import annotations

import pytest

S, R = "starter-p5en", "reference-p5en"
PUBLIC = "kubernetes.endpoint"

NOWHERE = {
    "region": "xx-nowhere-1",
    "network.zones": ["xx-nowhere-1a", "xx-nowhere-1b"],
    "network.accelerator_zone": "xx-nowhere-1b",
}
TYPO = {
    "region": "us-wset-2",
    "network.zones": ["us-wset-2a", "us-wset-2b"],
    "network.accelerator_zone": "us-wset-2b",
}

FAULTS = [
    ("network.region", S, NOWHERE, "region", "xx-nowhere-1", "had EKS on 2026-11-29", "us-east-1, us-east-2"),
    ("network.region", S, TYPO, "region", "us-wset-2", "had EKS on 2026-11-29", "Write one of us-west-2"),
    ("network.cidr", S, {"network.cidr": "10.0.0.1/16"}, "network.cidr", "10.0.0.1/16", "not a network", "10.0.0.0/16"),
    ("network.cidr", S, {"network.cidr": "10.0.0.300/16"}, "network.cidr", "10.0.0.300", "not a network", "10.0.0.0"),
    ("network.cidr", S, {"network.cidr": "10.0.0.0/15"}, "network.cidr", "10.0.0.0/15", "a /16 to /18", "10.0.0.0/16"),
    ("network.cidr", S, {"network.cidr": "10.0.0.0/19"}, "network.cidr", "10.0.0.0/19", "smaller one", "10.0.0.0/16"),
    (
        "network.cidr",
        S,
        {"network.cidr": "8.8.0.0/16"},
        "network.cidr",
        "8.8.0.0/16",
        "public address",
        "private range",
    ),
    (
        "network.zone-count",
        S,
        {"network.zones": ["us-west-2b"]},
        "network.zones",
        "us-west-2b",
        "at least two",
        "two or",
    ),
    (
        "network.zone-count",
        S,
        {"network.zones": [f"us-west-2{letter}" for letter in "abcd"]},
        "network.zones",
        "[us-west-2a, us-west-2b, us-west-2c, us-west-2d]",
        "holds three",
        "two or three",
    ),
    (
        "network.zone-count",
        S,
        {"network.zones": ["us-west-2b", "us-west-2b"]},
        "network.zones",
        "[us-west-2b, us-west-2b]",
        "us-west-2b is listed twice",
        "once",
    ),
    (
        "network.zone-region",
        S,
        {"network.zones.0": "us-east-1a"},
        "network.zones.0",
        "us-east-1a",
        "not a zone of us-west-2",
        "us-west-2a",
    ),
    (
        "network.zone-region",
        S,
        {"network.zones.1": "us-east-1b", "network.accelerator_zone": "us-east-1b"},
        "network.accelerator_zone",
        "us-east-1b",
        "not a zone of us-west-2",
        "change region",
    ),
    (
        "network.zone-region",
        S,
        {"network.zones.0": "us-east-1a", "pools.rollout.zone": "us-east-1a"},
        "pools.rollout.zone",
        "us-east-1a",
        "not a zone of us-west-2",
        "us-west-2a",
    ),
    (
        "network.zone-listed",
        S,
        {"network.accelerator_zone": "us-west-2d"},
        "network.accelerator_zone",
        "us-west-2d",
        "us-west-2a, us-west-2b, us-west-2c",
        "add us-west-2d",
    ),
    (
        "network.zone-listed",
        S,
        {"pools.rollout.zone": "us-west-2d"},
        "pools.rollout.zone",
        "us-west-2d",
        "us-west-2a, us-west-2b, us-west-2c",
        "add us-west-2d",
    ),
    ("network.public-cidrs", S, {PUBLIC: {"public_cidrs": []}}, f"{PUBLIC}.public_cidrs", "[]", "internet", "private"),
    (
        "network.public-cidrs",
        S,
        {PUBLIC: {"public_cidrs": ["203.0.113.0/24", "0.0.0.0/0"]}},
        f"{PUBLIC}.public_cidrs.1",
        "0.0.0.0/0",
        "opens the API server",
        "endpoint: private",
    ),
    (
        "network.public-cidrs",
        S,
        {PUBLIC: {"public_cidrs": ["64.0.0.0/7"]}},
        f"{PUBLIC}.public_cidrs.0",
        "64.0.0.0/7",
        "opens the API server",
        "endpoint: private",
    ),
    (
        "network.public-cidrs",
        S,
        {PUBLIC: {"public_cidrs": ["203.0.113.7/24"]}},
        f"{PUBLIC}.public_cidrs.0",
        "203.0.113.7/24",
        "not a network",
        "203.0.113.0/24",
    ),
    # A p5en node takes 149 pod slots and one address of its own (150), an m7i.4xlarge 111. The share of a /18 is a /20
    # less AWS's five: 4091. Two trainers and four CPU nodes take 744, so 22 rollout nodes fit and the 23rd does not.
    (
        "network.subnet-fits",
        S,
        {"network.cidr": "10.0.0.0/18", "pools.rollout.nodes.max": 23},
        "network.cidr",
        "10.0.0.0/18",
        "may take 4194 addresses (nodes at their maximum, every pod slot used), and the fixed share of that zone,"
        " 10.0.32.0/20, has 4091",
        "move a pool to another zone",
    ),
    # The classic layout gives each of the 16 cards an address: 165 a node, and 21 nodes are one too many.
    (
        "network.subnet-fits",
        S,
        {"network.cidr": "10.0.0.0/18", "pools.rollout.nodes.max": 21, "pools.rollout.efa_layout": "classic"},
        "network.cidr",
        "10.0.0.0/18",
        "may take 4209 addresses",
        "larger network",
    ),
]
WARNINGS = [
    ("network.egress-none", S, {"network.egress": "none"}, "network.egress", "none", "endpoints only", "Mirror"),
]
PASSES = [
    ("network.region", S, {}),
    ("network.cidr", S, {"network.cidr": "10.64.0.0/16"}),
    ("network.cidr", S, {"network.cidr": "172.16.0.0/17"}),
    ("network.cidr", S, {"network.cidr": "192.168.0.0/18"}),
    ("network.cidr", S, {"network.cidr": "100.64.0.0/16"}),
    ("network.zone-count", S, {"network.zones": ["us-west-2a", "us-west-2b"]}),
    ("network.zone-count", S, {}),
    ("network.zone-region", S, {"pools.rollout.zone": "us-west-2c"}),
    ("network.zone-listed", S, {"pools.rollout.zone": "us-west-2c"}),
    ("network.public-cidrs", S, {}),
    ("network.public-cidrs", S, {PUBLIC: {"public_cidrs": ["203.0.113.0/24", "9.0.0.0/8"]}}),
    ("network.subnet-fits", S, {"network.cidr": "10.0.0.0/18", "pools.rollout.nodes.max": 22}),
    (
        "network.subnet-fits",
        S,
        {"network.cidr": "10.0.0.0/18", "pools.rollout.nodes.max": 23, "pools.environments.zone": "us-west-2a"},
    ),
    ("network.egress-none", S, {"network.egress": "nat"}),
]


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), FAULTS)
def test_rule_refuses(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix)


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), WARNINGS)
def test_rule_warns(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, severity="warning")


@pytest.mark.parametrize(("rule", "base", "changes"), PASSES)
def test_rule_is_silent(rule, base, changes, silent) -> None:
    silent(rule, base, changes)


def test_c3a_pool_over_two_zones_is_refused_and_shows_both(edited) -> None:
    findings = edited(S, {"pools.trainer.zone": ["us-west-2a", "us-west-2b"]})
    (found,) = (item for item in findings if item.severity == "fault")
    assert found.key == "pools.trainer.zone"
    assert found.document()["value"] == "[us-west-2a, us-west-2b]"
    assert "zone: us-west-2b" in found.fix


def test_c3b_zone_without_a_subnet_is_refused_and_shows_the_list(edited) -> None:
    (found,) = (item for item in edited(R, {"pools.trainer.zone": "us-west-2d"}) if item.severity == "fault")
    text = found.text("f.yaml")
    assert "pools.trainer.zone: us-west-2d" in text
    assert "us-west-2a, us-west-2b, us-west-2c" in text


def test_c3c_zone_of_another_region_is_refused_and_shows_both(edited) -> None:
    faults = [item for item in edited(R, {"pools.trainer.zone": "eu-west-1a"}) if item.severity == "fault"]
    assert {item.key for item in faults} == {"pools.trainer.zone"}
    (region,) = (item for item in faults if item.rule == "network.zone-region")
    assert "eu-west-1a" in region.text("f.yaml")
    assert "us-west-2" in region.why


def test_c3d_three_zones_give_subnets_in_exactly_those_three(planned) -> None:
    zones = ("us-west-2d", "us-west-2b", "us-west-2a")
    plan = planned(R, {"network.zones": list(zones)})
    for kind in ("private", "public"):
        assert tuple(subnet.zone for subnet in plan.network.subnets if subnet.kind == kind) == zones
    assert [subnet.zone for subnet in plan.network.subnets if subnet.kind == "accelerator"] == ["us-west-2b"]
    assert all(len(pool.zones) == 1 for pool in plan.pools if pool.role != "system")


def test_every_bad_address_is_found_in_one_run(edited) -> None:
    findings = edited(S, {PUBLIC: {"public_cidrs": ["0.0.0.0/0", "203.0.113.7/24"]}, "network.cidr": "8.8.0.0/16"})
    assert {item.key for item in findings if item.severity == "fault"} == {
        f"{PUBLIC}.public_cidrs.0",
        f"{PUBLIC}.public_cidrs.1",
        "network.cidr",
    }
