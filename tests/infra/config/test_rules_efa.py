from __future__ import annotations

import pytest

S, R, P5, P6 = "starter-p5en", "reference-p5en", "p5", "p6-b200"
CUSTOM = "ami-0123456789abcdef0"
PROVEN = {"id": CUSTOM, "efa_driver": "3.3.0", "gdrdrv": "2.5"}
KV = "workload.rollout.kv_transfer"

FAULTS = [
    (
        "efa.transport-asked",
        P5,
        {"pools.trainer.transport": "gda"},
        "pools.trainer.transport",
        "gda",
        "p5.48xlarge has no GPU-direct EFA, in hardware",
        "`transport: proxy`",
    ),
    (
        "efa.transport-asked",
        S,
        {"pools.rollout.transport": "gda", "pools.rollout.ami.efa_driver": "3.1.0"},
        "pools.rollout.transport",
        "gda",
        "EFA driver is 3.1.0; GPU-direct needs 3.3.0",
        "`transport: proxy`",
    ),
    # The catalog recorded driver 3.1.0 for this release.
    (
        "efa.transport-asked",
        S,
        {"pools.rollout.transport": "gda", "pools.rollout.ami.release": "1.35.2-20260728"},
        "pools.rollout.transport",
        "gda",
        "EFA driver is 3.1.0",
        "`transport: proxy`",
    ),
    (
        "efa.transport-asked",
        S,
        {"pools.rollout.transport": "gda", "software": "aws-reference"},
        "pools.rollout.transport",
        "gda",
        "software aws-reference: EFA installer 1.49.0 carries aws-ofi-nccl 1.20.0",
        "`transport: proxy`",
    ),
    (
        "efa.transport-asked",
        S,
        {"pools.rollout.transport": "proxy", "software": "baseline"},
        "pools.rollout.transport",
        "proxy",
        "software baseline: baseline has no DeepEP over EFA",
        "`transport: none`",
    ),
    (
        "efa.transport-asked",
        S,
        {"pools.rollout.transport": "proxy", "pools.rollout.ami.gdrdrv": "2.4"},
        "pools.rollout.transport",
        "proxy",
        "gdrdrv is 2.4; DeepEP over EFA needs 2.5",
        "`transport: none`",
    ),
    (
        "efa.transport-asked",
        S,
        {"pools.rollout.transport": "proxy", "pools.rollout.efa": False},
        "pools.rollout.transport",
        "proxy",
        "the pool has no EFA interfaces",
        "`transport: none`",
    ),
    (
        "efa.transport-asked",
        S,
        {"pools.environments.transport": "gda"},
        "pools.environments.transport",
        "gda",
        "the pool has no EFA interfaces",
        "`transport: none`",
    ),
    *(
        (
            "efa.kv-protocol",
            S,
            {KV: {"backend": backend, "protocol": "rdma"}},
            f"{KV}.protocol",
            "rdma",
            f"{backend} would open InfiniBand verbs that EFA does not have",
            "`protocol: efa`, or remove kv_transfer",
        )
        for backend in ("mooncake", "nixl")
    ),
]
WARNINGS = [
    (
        "efa.switched-off",
        S,
        {"pools.rollout.efa": False},
        "pools.rollout.efa",
        "false",
        "leaves 16 EFA devices a node unused",
        "Remove",
    ),
    (
        "efa.transport-derived",
        P5,
        {"pools.rollout.transport": ...},
        "pools.rollout.transport",
        "proxy (derived)",
        "p5.48xlarge has no GPU-direct EFA, in hardware, whatever the software; CPU-proxy dispatch measured 2.2 to 5.4"
        " times slower",
        "`transport: proxy` to accept it",
    ),
    (
        "efa.transport-derived",
        S,
        {"software": "aws-reference"},
        "pools.trainer.transport",
        "proxy (derived)",
        "software aws-reference: EFA installer 1.49.0",
        "`transport: proxy`",
    ),
    (
        "efa.transport-derived",
        S,
        {"pools.rollout.ami": {"id": CUSTOM, "efa_driver": "3.2.9", "gdrdrv": "2.5"}},
        "pools.rollout.transport",
        "proxy (derived)",
        "EFA driver is 3.2.9; GPU-direct needs 3.3.0",
        "`transport: proxy`",
    ),
    (
        "efa.transport-derived",
        S,
        {"pools.rollout.ami": {"id": CUSTOM, "gdrdrv": "2.4.9"}},
        "pools.rollout.transport",
        "none (derived)",
        "gdrdrv is 2.4.9; DeepEP over EFA needs 2.5",
        "newer gdrdrv",
    ),
    (
        "efa.transport-unproven",
        S,
        {},
        "pools.rollout.transport",
        "gda",
        "EFA driver >= 3.3.0 loaded and gdrdrv >= 2.5 loaded",
        "Node preflight",
    ),
    (
        "efa.transport-unproven",
        S,
        {"pools.rollout.ami": {"id": CUSTOM, "efa_driver": "3.3.0"}, "pools.rollout.transport": "gda"},
        "pools.rollout.transport",
        "gda",
        "this AMI carries gdrdrv >= 2.5 loaded;",
        "ami.gdrdrv",
    ),
    (
        "efa.transport-unproven",
        S,
        {"pools.rollout.ami": {"id": CUSTOM, "gdrdrv": "2.5"}},
        "pools.rollout.transport",
        "gda",
        "this AMI carries EFA driver >= 3.3.0 loaded;",
        "ami.efa_driver",
    ),
    (
        "efa.layout-classic",
        P6,
        {"pools.rollout.efa_layout": "classic"},
        "pools.rollout.efa_layout",
        "classic",
        "each of 8 interfaces takes an IP address",
        "efa-only",
    ),
]
PASSES = [
    ("efa.switched-off", S, {"pools.environments.efa": False}),
    ("efa.transport-asked", P5, {}),
    ("efa.transport-asked", S, {"pools.rollout.transport": "proxy"}),
    ("efa.transport-asked", S, {"pools.rollout.transport": "gda", "pools.rollout.ami": PROVEN}),
    ("efa.transport-asked", S, {"pools.rollout.transport": "none"}),
    ("efa.transport-asked", S, {"pools.environments.transport": "none"}),
    ("efa.transport-derived", P5, {}),
    ("efa.transport-derived", S, {}),
    ("efa.transport-derived", S, {"software": "baseline"}),
    ("efa.transport-derived", S, {"pools.rollout.efa": False, "pools.rollout.ami": {"id": CUSTOM, "gdrdrv": "2.4"}}),
    ("efa.transport-unproven", S, {"pools.rollout.ami": PROVEN, "pools.trainer.ami": PROVEN}),
    ("efa.transport-unproven", S, {"pools.rollout.transport": "proxy", "pools.trainer.transport": "none"}),
    ("efa.transport-unproven", P5, {}),
    ("efa.layout-classic", S, {"pools.rollout.efa_layout": "efa-only", "pools.environments.efa_layout": "classic"}),
    ("efa.kv-protocol", S, {KV: {"backend": "mooncake"}}),
    ("efa.kv-protocol", S, {KV: {"backend": "nixl", "protocol": "tcp"}}),
    ("efa.kv-protocol", S, {KV: {"backend": "mooncake", "protocol": "rdma"}, "pools.rollout.efa": False}),
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


def test_c9_gda_asked_for_on_p5_is_refused_and_names_proxy(edited) -> None:
    (found,) = (item for item in edited(P5, {"pools.rollout.transport": "gda"}) if item.severity == "fault")
    assert found.key == "pools.rollout.transport"
    assert "p5.48xlarge" in found.why
    assert "`transport: proxy`" in found.fix


def test_c9_gda_asked_for_with_declared_driver_3_1_0_is_refused_and_names_the_floor(edited) -> None:
    changes = {"pools.trainer.transport": "gda", "pools.trainer.ami": {"efa_driver": "3.1.0"}}
    (found,) = (item for item in edited(P6, changes) if item.severity == "fault")
    assert found.key == "pools.trainer.transport"
    assert "3.1.0" in found.why
    assert "3.3.0" in found.why


def test_c9_mooncake_with_protocol_rdma_is_refused_and_names_efa(edited) -> None:
    (found,) = (
        item for item in edited(R, {KV: {"backend": "mooncake", "protocol": "rdma"}}) if item.severity == "fault"
    )
    assert found.key == f"{KV}.protocol"
    assert "`protocol: efa`" in found.fix


def test_a_derived_proxy_only_warns(edited) -> None:
    findings = edited(P5, {"pools.rollout.transport": ..., "pools.trainer.transport": ...})
    assert [item.key for item in findings if item.rule == "efa.transport-derived"] == [
        "pools.trainer.transport",
        "pools.rollout.transport",
    ]
    assert all(item.severity == "warning" for item in findings)
