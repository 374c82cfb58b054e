from __future__ import annotations

import pytest

S, R = "starter-p5en", "reference-p5en"
OURS = "arn:aws:iam::123456789012:role/admin"
THEIRS = "arn:aws:iam::999999999999:role/admin"
LABELS, TAINTS = "pools.rollout.labels", "pools.rollout.taints"

FAULTS = [
    *(
        ("identity.name", S, {"name": name}, "name", name, f"an environment {other} names", "without the word pool")
        for name, other in (("x-pool", "x"), ("x-y-pool-z", "x-y"), ("x-pool-pool", "x"))
    ),
    (
        "identity.admins",
        S,
        {"kubernetes.admins": []},
        "kubernetes.admins",
        "an empty list",
        "CloudFormation's role",
        "arn:aws:iam::123456789012:role/platform-admin",
    ),
    (
        "identity.admins",
        S,
        {"kubernetes.admins": [OURS, f"{OURS}-2", OURS]},
        "kubernetes.admins.2",
        OURS,
        "one access entry for each principal",
        "Remove it",
    ),
    ("identity.admins", S, {"kubernetes.admins": ...}, "kubernetes.admins", "an empty list", "the only one", "List an"),
    ("identity.tags", S, {"tags": {"aws:team": "x"}}, "tags.aws:team", "x", "aws: prefix", "another key"),
    ("identity.tags", S, {"tags": {"AWS:team": "x"}}, "tags.AWS:team", "x", "aws: prefix", "another key"),
    ("identity.tags", S, {"tags": {"k" * 129: "x"}}, f"tags.{'k' * 129}", "x", "128 characters of key", "another key"),
    (
        "identity.tags",
        S,
        {"tags": {"team": "v" * 257}},
        "tags.team",
        "v" * 100 + "... (257 characters)",
        "256 of value",
        "shorter value",
    ),
    ("identity.tags", S, {"tags": {"": "x"}}, "tags.", "x", "128 characters of key", "another key"),
    *(
        ("identity.tags", S, {"tags": {key: "x"}}, f"tags.{key}", "x", "moerl:", "another key")
        for key in ("moerl:environment", "eks:cluster-name")
    ),
    *(
        ("identity.tags", S, {"tags": {key: value}}, f"tags.{key}", shown, why, "_ . : / = + - @")
        for key, value, shown, why in (
            ("a,b", "x", "a,b", "',' does not belong in a tag's key"),
            ("team", "a*b", "a*b", "'*' does not belong in a tag's value"),
            ("team", "a\nb", "a\nb", "does not belong in a tag's value"),
        )
    ),
    ("identity.tags", S, {"tags": {f"k{n}": "v" for n in range(41)}}, "tags", "41 tags", "at most 50", "40 or fewer"),
    *(
        ("identity.labels", S, {LABELS: {key: "x"}}, f"{LABELS}.{key}", key, "not a Kubernetes label key", "63")
        for key in ("-team", "team-", "a b", "k" * 64, "example.com/", "/team", "Example.com/team", "a/b/c")
    ),
    *(
        ("identity.labels", S, {LABELS: {"team": value}}, f"{LABELS}.team", value, "not a Kubernetes label value", "63")
        for value in ("-x", "a b", "v" * 64)
    ),
    *(
        (
            "identity.labels",
            S,
            {LABELS: {f"{prefix}/x": "y"}},
            f"{LABELS}.{prefix}/x",
            prefix,
            "sets itself",
            "your own",
        )
        for prefix in (
            "kubernetes.io",
            "node.kubernetes.io",
            "k8s.io",
            "eks.amazonaws.com",
            "moerl.io",
            "nvidia.com",
            "vpc.amazonaws.com",
        )
    ),
    (
        "identity.labels",
        S,
        {TAINTS: [{"key": "example.com/ok"}, {"key": "moerl.io/role", "value": "x"}]},
        f"{TAINTS}.1",
        "moerl.io/role",
        "sets itself",
        "your own",
    ),
]
WARNINGS = [
    (
        "identity.admins",
        S,
        {"kubernetes.admins": ["arn:aws:iam::123456789012:role/a", THEIRS]},
        "kubernetes.admins.1",
        THEIRS,
        "another account than 123456789012",
        "make sure",
    ),
    (
        "identity.alerts",
        S,
        {"alerts": ...},
        "alerts.emails",
        "an empty list",
        "nobody would be told",
        "List an address",
    ),
    ("identity.budget", S, {"budget": ...}, "budget", "nothing", "spending", "monthly_usd"),
]
PASSES = [
    *(("identity.name", S, {"name": name}) for name in ("pool", "pool-a", "x-pools", "x-spool-a")),
    ("identity.admins", S, {"kubernetes.admins": ["arn:aws:iam::123456789012:user/path/person"]}),
    ("identity.alerts", S, {}),
    ("identity.budget", S, {}),
    ("identity.tags", S, {"tags": {"k" * 128: "v" * 256, "my:aws:": ""}}),
    ("identity.tags", S, {"tags": {f"k{n}": "v" for n in range(40)}}),
    ("identity.tags", S, {"tags": {"gr\u00fc\u00dfe 1": "_.:/=+-@ \u6771\u4eac"}}),
    ("identity.labels", S, {LABELS: {"example.com/Team_1.x": "Value_1.x", "plain": "", "notkubernetes.io/x": "y"}}),
    ("identity.labels", S, {TAINTS: [{"key": "example.com/only", "value": "v", "effect": "NO_EXECUTE"}]}),
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


def test_c7_no_admin_role_is_refused_and_names_one_of_the_same_account(edited) -> None:
    (found,) = (item for item in edited(R, {"kubernetes.admins": []}) if item.severity == "fault")
    assert found.key == "kubernetes.admins"
    assert "arn:aws:iam::123456789012:role/" in found.fix


def test_a_label_key_with_dots_is_found_on_its_own_line(edited, text) -> None:
    changes = {LABELS: {"example.com/a": "1", "moerl.io/b": "2"}}
    (found,) = (item for item in edited(S, changes) if item.severity == "fault")
    assert "moerl.io/b" in text(S, changes).splitlines()[found.line - 1]
