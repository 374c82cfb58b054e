from __future__ import annotations

from dataclasses import replace

import pytest

from infra.catalog import CATALOG

S, R, P6 = "starter-p5en", "reference-p5en", "p6-b200"
SYDNEY = {
    "region": "ap-southeast-2",
    "network.zones": [f"ap-southeast-2{letter}" for letter in "abc"],
    "network.accelerator_zone": "ap-southeast-2b",
}

FAULTS = [
    (
        "storage.bucket-name",
        S,
        {"checkpoints.bucket": "team.checkpoints"},
        "checkpoints.bucket",
        "team.checkpoints",
        "has a dot",
        "without dots",
    ),
    *(
        ("storage.bucket-name", S, {"checkpoints.bucket": name}, "checkpoints.bucket", name, "3 to 63", "leave the key")
        for name in ("ab", "Team", "-team", "team-", "t" * 64)
    ),
    (
        "storage.derived-name",
        S,
        {"name": "a" * 24, **SYDNEY},
        "name",
        "a" * 24,
        f"{'a' * 24}-checkpoints-123456789012-ap-southeast-2, which has 64 characters; S3 allows 63",
        "Shorten it by 1.",
    ),
    (
        "storage.removal",
        S,
        {"checkpoints.removal": "destroy"},
        "checkpoints.removal",
        "destroy",
        "take every checkpoint with it",
        "`confirm_destroy: true`",
    ),
    *(
        (
            "storage.scratch-size",
            P6,
            {"checkpoints.scratch_gib": size},
            "checkpoints.scratch_gib",
            str(size),
            "1200, 2400 and multiples of 2400",
            f"Write {offered}.",
        )
        for size, offered in ((1201, 2400), (3600, 4800), (9599, 9600))
    ),
    (
        "storage.save-interval",
        S,
        {"workload.save_interval": 201},
        "workload.save_interval",
        "201",
        "is above steps (200)",
        "Write 200 or less",
    ),
    (
        "storage.save-optimizer",
        S,
        {"workload.trainer.save_optimizer": False},
        "workload.trainer.save_optimizer",
        "false",
        "cannot be resumed",
        "`no_checkpoint: true`",
    ),
    (
        "storage.load-equals-save",
        S,
        {"workload.load": "/scratch/other/checkpoints"},
        "workload.load",
        "/scratch/other/checkpoints",
        "is not the save path (/scratch/starter-p5en/checkpoints)",
        "Leave the key out",
    ),
]
WARNINGS = [
    (
        "storage.removal",
        S,
        {"checkpoints.removal": "destroy", "checkpoints.confirm_destroy": True},
        "checkpoints.removal",
        "destroy",
        "checkpoints go with the stack",
        "`removal: retain`",
    ),
]
PASSES = [
    ("storage.bucket-name", S, {"checkpoints.bucket": "team-checkpoints-1"}),
    ("storage.bucket-name", S, {"checkpoints.bucket": "t" * 63}),
    ("storage.bucket-name", S, {}),
    ("storage.derived-name", S, {"name": "a" * 23, **SYDNEY}),
    ("storage.removal", S, {"checkpoints.confirm_destroy": True}),
    ("storage.scratch-size", P6, {"checkpoints.scratch_gib": 1200}),
    ("storage.scratch-size", P6, {"checkpoints.scratch_gib": 2400}),
    ("storage.scratch-size", P6, {"checkpoints.scratch_gib": 4800}),
    ("storage.scratch-size", S, {"checkpoints.scratch_gib": 3600}),
    ("storage.save-interval", S, {"workload.save_interval": 200}),
    ("storage.save-interval", S, {"workload.save_interval": 201, "workload.no_checkpoint": True}),
    ("storage.save-optimizer", S, {"workload.trainer.save_optimizer": False, "workload.no_checkpoint": True}),
    ("storage.load-equals-save", S, {"workload.load": "/scratch/starter-p5en/checkpoints"}),
    ("storage.load-equals-save", S, {}),
]
NAMED = {"storage.scratch-nvme": "test_scratch_on_nvme_is_refused_where_the_type_has_no_local_disks"}


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), FAULTS)
def test_rule_refuses(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix)


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), WARNINGS)
def test_rule_warns(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, severity="warning")


@pytest.mark.parametrize(("rule", "base", "changes"), PASSES)
def test_rule_is_silent(rule, base, changes, silent) -> None:
    silent(rule, base, changes)


def test_scratch_on_nvme_is_refused_where_the_type_has_no_local_disks(fires, silent) -> None:
    rule, name = "storage.scratch-nvme", "p5en.48xlarge"
    bare = replace(CATALOG, instances={**CATALOG.instances, name: replace(CATALOG.instances[name], nvme_gib=0)})
    fires(rule, S, {}, "checkpoints.scratch", "nvme", f"pool trainer has {name}", "`scratch: fsx`", catalog=bare)
    silent(rule, S, {"checkpoints.scratch": "fsx"}, catalog=bare)
    silent(rule, S, {})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"checkpoints.removal": "destroy"}, "checkpoints.removal"),
        ({"checkpoints.bucket": "my.bucket"}, "checkpoints.bucket"),
        ({"workload.load": "/elsewhere"}, "workload.load"),
        ({"workload.save_interval": 1001}, "workload.save_interval"),
        ({"workload.trainer.save_optimizer": False}, "workload.trainer.save_optimizer"),
    ],
)
def test_c6_checkpoints_that_would_be_lost_are_refused(changes, key, edited) -> None:
    (found,) = (item for item in edited(R, changes) if item.severity == "fault")
    assert found.key == key


def test_c6_destroy_is_never_confirmed_in_a_shipped_file_and_retain_is_the_default(planned) -> None:
    for base in ("p5", P6, R, S):
        assert not planned(base).storage.destroy_checkpoints
    confirmed = {"checkpoints.removal": "destroy", "checkpoints.confirm_destroy": True}
    assert planned(S, confirmed).storage.destroy_checkpoints
