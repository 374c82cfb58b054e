from __future__ import annotations

import pytest

S, R, P5, P6 = "starter-p5en", "reference-p5en", "p5", "p6-b200"
CUSTOM = "ami-0123456789abcdef0"
SLOW = {f"pools.{pool}.fast_image_pull": False for pool in ("trainer", "rollout")}
MULTIPART = """Content-Type: multipart/mixed; boundary="x"
MIME-Version: 1.0

--x
Content-Type: text/x-shellscript

#!/bin/bash
echo extra
--x--
"""

FAULTS = [
    *(
        (
            "ami.type",
            base,
            {f"pools.{pool}.ami.type": written},
            f"pools.{pool}.ami.type",
            written,
            reason,
            f"Write {needed}",
        )
        for base, pool, written, reason, needed in (
            (S, "trainer", "AL2_x86_64_GPU", "no AL2 image", "AL2023_x86_64_NVIDIA"),
            (S, "environments", "AL2_x86_64", "no AL2 image", "AL2023_x86_64_STANDARD"),
            (P6, "rollout", "AL2023_x86_64_STANDARD", "no NVIDIA driver", "AL2023_x86_64_NVIDIA"),
            (S, "environments", "AL2023_x86_64_NVIDIA", "GPU drivers", "AL2023_x86_64_STANDARD"),
        )
    ),
    ("ami.type", S, {"pools.trainer.ami.type": "CUSTOM"}, "pools.trainer.ami.type", "CUSTOM", "needs its id", "{id:"),
    (
        "ami.custom-alone",
        S,
        {"pools.trainer.ami": {"id": CUSTOM, "release": "1.35.2-20261012"}},
        "pools.trainer.ami",
        f"{CUSTOM} and 1.35.2-20261012",
        "its own release",
        "Keep id",
    ),
    (
        "ami.custom-alone",
        S,
        {"pools.trainer.ami": {"id": CUSTOM, "type": "AL2023_x86_64_NVIDIA"}},
        "pools.trainer.ami",
        f"{CUSTOM} and AL2023_x86_64_NVIDIA",
        "its own release",
        "Keep id",
    ),
    (
        "ami.release-version",
        S,
        {"kubernetes.node_release": "1.34.2-20261012"},
        "kubernetes.node_release",
        "1.34.2-20261012",
        "kubernetes.version (1.35)",
        "a release of 1.35",
    ),
    (
        "ami.release-version",
        S,
        {"pools.rollout.ami.release": "1.36.0-20261012"},
        "pools.rollout.ami.release",
        "1.36.0-20261012",
        "kubernetes.version (1.35)",
        "`moerl lock ENV`",
    ),
    (
        "ami.user-data",
        S,
        {"pools.rollout.user_data": "echo hello\n#!/bin/sh\n"},
        "pools.rollout.user_data",
        "echo hello",
        "neither a shell script",
        "#!/bin/bash",
    ),
    (
        "ami.user-data",
        S,
        {"pools.rollout.user_data": "#cloud-config\npackages: [htop]\n"},
        "pools.rollout.user_data",
        "#cloud-config",
        "neither a shell script",
        "#!/bin/bash",
    ),
    ("ami.user-data", S, {"pools.rollout.user_data": ""}, "pools.rollout.user_data", "empty", "neither", "#!/bin/bash"),
    (
        "ami.user-data",
        S,
        {"pools.rollout.user_data": MULTIPART.replace("--x", "--y")},
        "pools.rollout.user_data",
        "multipart/mixed",
        "neither",
        "MIME multipart",
    ),
    (
        "ami.node-config-once",
        S,
        {"pools.rollout.user_data": MULTIPART.replace("text/x-shellscript", "application/node.eks.aws")},
        "pools.rollout.user_data",
        "a NodeConfig",
        "merge field by field",
        "not NodeConfig",
    ),
    *(
        (
            "ami.fast-image-pull",
            S,
            {"pools.rollout.ami.release": release, **changes},
            "pools.rollout.fast_image_pull",
            "true",
            reason,
            "fast_image_pull: false",
        )
        for release, changes, reason in (
            ("1.35.2-20260505", {}, "2710 and 2712"),
            ("1.35.2-20250812", {"pools.rollout.fast_image_pull": True}, "refuses the whole NodeConfig"),
        )
    ),
    (
        "ami.fast-image-pull",
        S,
        {"pools.environments.ami.release": "1.35.2-20260505", "pools.environments.fast_image_pull": True},
        "pools.environments.fast_image_pull",
        "true",
        "keeps every node",
        "fast_image_pull: false",
    ),
    (
        "ami.baked-alone",
        S,
        {"pools.rollout.ami.baked": True},
        "pools.rollout.ami.baked",
        "true",
        "does not name",
        "images.bake_ami: true",
    ),
    (
        "ami.baked-alone",
        S,
        {"pools.rollout.ami": {"id": CUSTOM, "baked": True, "gdrdrv": "2.5"}},
        "pools.rollout.ami.gdrdrv",
        "2.5",
        "two sources of one fact",
        "Remove gdrdrv",
    ),
    (
        "ami.bake-egress",
        S,
        {"images.bake_ami": True, "network.egress": "none"},
        "images.bake_ami",
        "true",
        "needs a way out",
        "egress: nat",
    ),
]
WARNINGS = [
    *(
        (
            "ami.known-problem",
            S,
            {key: f"1.35.2-{release}"},
            "pools.rollout.ami.release",
            f"1.35.2-{release}",
            "kernel 6.12.110 can panic",
            "another release",
        )
        for key, release in (("pools.rollout.ami.release", "20261003"), ("kubernetes.node_release", "20260930"))
    ),
    (
        "ami.root-volume",
        S,
        {"pools.rollout.root_volume_gib": 149},
        "pools.rollout.root_volume_gib",
        "149",
        "evicts pods",
        "150 or more",
    ),
    (
        "ami.fast-image-pull",
        S,
        {"pools.rollout.ami.release": "1.35.2-20251216"},
        "pools.rollout.fast_image_pull",
        "true",
        "onto the root volume",
        "20251217 or later",
    ),
]
PASSES = [
    ("ami.type", S, {"pools.trainer.ami.type": "AL2023_x86_64_NVIDIA"}),
    ("ami.type", S, {"pools.environments.ami.type": "AL2023_x86_64_STANDARD"}),
    ("ami.type", S, {"pools.trainer.ami": {"type": "CUSTOM", "id": CUSTOM}}),
    ("ami.custom-alone", S, {"pools.trainer.ami": {"type": "CUSTOM", "id": CUSTOM}}),
    ("ami.release-version", S, {"kubernetes.node_release": "1.35.2-20261012"}),
    ("ami.known-problem", S, {"kubernetes.node_release": "1.35.2-20261012"}),
    ("ami.known-problem", S, {}),
    ("ami.user-data", S, {"pools.rollout.user_data": "#!/bin/sh\nexit 0\n"}),
    ("ami.user-data", S, {"pools.rollout.user_data": MULTIPART}),
    ("ami.node-config-once", S, {"pools.rollout.user_data": MULTIPART}),
    ("ami.root-volume", S, {"pools.rollout.root_volume_gib": 150}),
    ("ami.root-volume", S, {"pools.environments.root_volume_gib": 50}),
    ("ami.fast-image-pull", S, {"pools.rollout.ami.release": "1.35.2-20251217"}),
    ("ami.fast-image-pull", S, {"kubernetes.node_release": "1.35.2-20260505", **SLOW}),
    ("ami.fast-image-pull", S, {"pools.environments.ami.release": "1.35.2-20260505"}),
    ("ami.fast-image-pull", S, {"pools.rollout.ami.id": CUSTOM, "pools.rollout.fast_image_pull": True}),
    ("ami.baked-alone", S, {"pools.rollout.ami": {"id": CUSTOM, "baked": True}}),
    ("ami.baked-alone", S, {"pools.rollout.ami": {"id": CUSTOM, "efa_driver": "3.3.0", "gdrdrv": "2.5"}}),
    ("ami.bake-egress", S, {"images.bake_ami": True}),
    ("ami.bake-egress", S, {"network.egress": "none"}),
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


def test_c9_gpu_pool_with_an_al2_or_a_standard_image_is_refused_and_names_the_nvidia_one(edited) -> None:
    for written in ("AL2_x86_64_GPU", "AL2_x86_64", "AL2023_x86_64_STANDARD"):
        (found,) = (item for item in edited(P6, {"pools.trainer.ami.type": written}) if item.severity == "fault")
        assert (found.key, found.value) == ("pools.trainer.ami.type", written)
        assert "AL2023_x86_64_NVIDIA" in found.fix


def test_c9_b200_on_1_35_renders_with_the_nvidia_ami_type_stated(planned) -> None:
    plan = planned(P6)
    assert plan.kubernetes.version == "1.35"
    assert {plan.pool(name).ami.type for name in ("trainer", "rollout")} == {"AL2023_x86_64_NVIDIA"}


def test_c5_user_data_that_is_neither_script_nor_multipart_is_refused(edited) -> None:
    (found,) = (item for item in edited(S, {"pools.trainer.user_data": "yum install -y x"}) if item.severity == "fault")
    assert found.key == "pools.trainer.user_data"
    assert "yum install -y x" in found.text("f.yaml")
