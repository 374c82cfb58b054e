from __future__ import annotations

from datetime import date

import pytest

from infra.config.pins import Pins

S, R, P5, P6 = "starter-p5en", "reference-p5en", "p5", "p6-b200"
VERSION = "kubernetes.version"

FAULTS = [
    ("software.kubernetes-version", S, {VERSION: "1.30"}, VERSION, "1.30", "older than this package", "1.35"),
    ("software.kubernetes-version", S, {VERSION: "1.37"}, VERSION, "1.37", "not in the catalog", "1.36"),
    (
        "software.image-archs",
        S,
        {"images.cuda_archs": ["10.0", "8.0"]},
        "images.cuda_archs",
        "['10.0', '8.0']",
        "lacks 9.0, which pool rollout (p5en.48xlarge) needs",
        'Add "9.0"',
    ),
    (
        "software.image-archs",
        S,
        {"pools.rollout.instance_types": ["p4d.24xlarge"]},
        "pools.rollout.instance_types",
        "[p4d.24xlarge]",
        "CUDA architecture 8.0, and the image of software efa-gda is built for 9.0, 10.0, 10.3",
        "another stack or type",
    ),
    (
        "software.image-archs",
        P6,
        {"software": "aws-reference"},
        "pools.trainer.instance_types",
        "[p6-b200.48xlarge]",
        "DeepEP 2.0.0 as software aws-reference pins it has no known run on architecture 10.0 under CUDA 13.0",
        "`software: efa-gda`",
    ),
]
WARNINGS = [
    (
        "software.kubernetes-support",
        S,
        {VERSION: "1.31"},
        VERSION,
        "1.31",
        "left extended support on 2026-11-26: EKS refuses new clusters",
        "in standard support",
    ),
    (
        "software.kubernetes-support",
        S,
        {VERSION: "1.33"},
        VERSION,
        "1.33",
        "left standard support on 2026-07-29; extended support adds 0.5 USD an hour until 2027-07-29",
        "in standard support",
    ),
]
PASSES = [
    ("software.kubernetes-version", S, {VERSION: "1.31"}),
    ("software.kubernetes-version", S, {VERSION: "1.36"}),
    ("software.kubernetes-support", S, {VERSION: "1.34"}),
    ("software.kubernetes-support", S, {}),
    ("software.image-archs", S, {"images.cuda_archs": ["10.0", "9.0"]}),
    ("software.image-archs", P6, {}),
    ("software.image-archs", P6, {"software": "baseline"}),
]
NAMED = {"software.pins-version": "test_lock_of_another_minor_version_is_refused"}


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), FAULTS)
def test_rule_refuses(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix)


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), WARNINGS)
def test_rule_warns(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, severity="warning")


@pytest.mark.parametrize(("rule", "base", "changes"), PASSES)
def test_rule_is_silent(rule, base, changes, silent) -> None:
    silent(rule, base, changes)


def test_lock_of_another_minor_version_is_refused(fires, silent) -> None:
    rule = "software.pins-version"
    pins = Pins(kubernetes_version="1.34")
    fires(rule, S, {}, VERSION, "1.35", "written for (1.34)", "`moerl lock ENV`", pins=pins)
    silent(rule, S, {}, pins=Pins(kubernetes_version="1.35"))
    silent(rule, S, {VERSION: "1.34"}, pins=pins)
    silent(rule, S, {})


@pytest.mark.parametrize(
    ("day", "word"),
    [
        (date(2026, 12, 1), None),
        (date(2026, 12, 2), "left standard support on 2026-12-02"),
        (date(2027, 12, 2), "left extended support on 2027-12-02"),
    ],
)
def test_support_is_judged_on_the_catalogs_date_not_the_clocks(day, word, edited, dated) -> None:
    said = [item.why for item in edited(S, {VERSION: "1.34"}, catalog=dated(day)) if item.key == VERSION]
    assert [word] == [why[: len(word)] for why in said] if word else not said


def test_c9_image_without_the_pools_architecture_is_refused_and_names_it(edited) -> None:
    found = [item for item in edited(P6, {"images.cuda_archs": ["9.0"]}) if item.severity == "fault"]
    assert {item.key for item in found} == {"images.cuda_archs"}
    assert {item.fix for item in found} == {'Add "10.0", or leave the key out.'}
    assert [pool for item in found for pool in ("trainer", "rollout") if f"pool {pool} " in item.why] == [
        "trainer",
        "rollout",
    ]


def test_c9_b200_with_cuda_13_0_and_the_published_deepep_pin_is_refused_and_names_the_stack_that_works(edited) -> None:
    found = [item for item in edited(P6, {"software": "aws-reference"}) if item.rule == "software.image-archs"]
    assert len(found) == 2
    for item in found:
        assert item.severity == "fault"
        assert "CUDA 13.0" in item.why
        assert "DeepEP 2.0.0" in item.why
        assert "efa-gda" in item.fix
