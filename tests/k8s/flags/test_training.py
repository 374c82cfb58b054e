"""Trainer flags: from the Plan alone where they follow from it, changed by the file where they may be, refused otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.config.faults import EnvironmentFault
from k8s.flags import miles, slime
from k8s.flags.known import RELEASES, framework_flags, is_known, nearest
from k8s.flags.sglang_rules import parse
from k8s.flags.training import REFUSED, scratch_directory
from tests.shipped import SHIPPED, plan_of

R, S, P6 = "reference-p5en", "starter-p5en", "p6-b200"
BASELINE = {
    "software": "baseline",
    "workload.rollout.precision": "bf16",
    "workload.trainer.expert_parallel": 8,
    "checkpoints.scratch": "fsx",
}
CONFIG = "/etc/moerl-trainer"


def flags_of(plan) -> dict[str, str]:
    if CATALOG.software[plan.software].framework == "slime":
        return parse(slime.trainer_flags(plan))
    return parse(miles.trainer_flags(plan, config_directory=CONFIG))


def findings(name: str, changes: dict) -> list[tuple[str, str]]:
    with pytest.raises(EnvironmentFault) as caught:
        flags_of(plan_of(name, changes))
    return [(finding.key, finding.why) for finding in caught.value.findings]


@pytest.mark.parametrize("name", SHIPPED)
def test_parallelism_is_the_plans(name) -> None:
    plan = plan_of(name)
    geometry, flags = plan.workload.trainer.geometry, flags_of(plan)
    ranks = int(flags["--actor-num-nodes"]) * int(flags["--actor-num-gpus-per-node"])
    assert ranks == geometry.gpus == plan.workload.trainer.workers * geometry.gpus_per_node
    wanted = {
        "--tensor-model-parallel-size": geometry.tensor_parallel,
        "--pipeline-model-parallel-size": geometry.pipeline_parallel,
        "--context-parallel-size": geometry.context_parallel,
        "--expert-model-parallel-size": geometry.expert_parallel,
        "--expert-tensor-parallel-size": geometry.expert_tensor_parallel,
    }
    assert {name: int(flags[name]) for name in wanted} == wanted
    assert ("--sequence-parallel" in flags) == (geometry.tensor_parallel > 1)


def test_an_uneven_last_stage_is_stated_and_an_even_one_is_not() -> None:
    assert flags_of(plan_of(R))["--decoder-last-pipeline-num-layers"] == "22"  # 94 = 24 + 24 + 24 + 22
    assert "--decoder-last-pipeline-num-layers" not in flags_of(plan_of(S))


@pytest.mark.parametrize("changes", [{}, BASELINE])
def test_a_run_loads_what_it_saves(changes) -> None:
    """B57: without a load path a restarted run begins anew and says nothing."""
    plan = plan_of(S, changes)
    flags = flags_of(plan)
    assert flags["--load"] == flags["--save"] == plan.storage.checkpoint_path
    assert flags["--save-interval"] == str(plan.workload.save_interval)
    assert "--no-save-optim" not in flags
    # Exports of the model lie beside the checkpoint directory: there the uploader looks for them.
    assert flags["--save-hf"].startswith(scratch_directory(plan) + "/")
    assert not flags["--save-hf"].startswith(plan.storage.checkpoint_path + "/")


def test_a_run_without_checkpoints_has_no_path_to_one() -> None:
    changes = {"workload.no_checkpoint": True}
    flags = flags_of(plan_of(S, changes))
    assert not {"--save", "--load", "--save-interval", "--save-hf", "--save-trigger-sentinel"} & set(flags)
    assert "--custom-megatron-post-save-hook-path" not in flags
    assert [key for key, _ in findings(S, changes | {"workload.trainer.flags": {"save": "/scratch/x"}})] == [
        "workload.trainer.flags.save"
    ]


@pytest.mark.parametrize(
    ("name", "changes"), [(R, {}), (S, BASELINE), (S, {"workload.trainer.flags": {"use-kl-loss": True}})]
)
def test_nothing_that_needs_engines_or_hides_a_save_is_passed(name, changes) -> None:
    assert not {f"--{flag}" for flag in REFUSED} & set(flags_of(plan_of(name, changes)))


@pytest.mark.parametrize("name", [*SHIPPED])
def test_every_flag_is_known_to_the_pinned_release(name) -> None:
    plan = plan_of(name)
    stack = CATALOG.software[plan.software]
    assert all(is_known(flag.removeprefix("--"), stack) for flag in flags_of(plan))
    baseline = plan_of(S, BASELINE)
    assert all(is_known(flag.removeprefix("--"), CATALOG.software["baseline"]) for flag in flags_of(baseline))


def test_a_collective_may_wait_as_long_as_the_longest_save() -> None:
    for name in SHIPPED:
        plan = plan_of(name)
        assert int(flags_of(plan)["--distributed-timeout-minutes"]) * 60 > plan.workload.trainer.save_seconds_max


def test_the_group_is_as_large_as_the_task_that_engines_generate() -> None:
    plan = plan_of(R)
    assert flags_of(plan)["--n-samples-per-prompt"] == str(plan.workload.rollouts[0].engine.samples_per_task)


def test_dispatchers() -> None:
    assert flags_of(plan_of(S))["--moe-token-dispatcher-type"] == "alltoall"
    inside = {"workload.trainer.dispatcher": "deepep", "workload.trainer.expert_parallel": 8}
    flags = flags_of(plan_of(S, inside))
    assert flags["--moe-token-dispatcher-type"] == "flex"
    assert "--moe-enable-deepep" in flags


def test_the_file_changes_the_recipe_adds_to_it_and_takes_away() -> None:
    written = {
        "lr": 3.0e-6,
        "rollout-batch-size": 64,
        "use-kl-loss": True,
        "balance-data": False,
        "rm-type": "deepscaler",
    }
    before, after = flags_of(plan_of(S)), flags_of(plan_of(S, {"workload.trainer.flags": written}))
    assert (before["--lr"], after["--lr"]) == ("1e-6", "3e-06")
    assert after["--rollout-batch-size"] == "64"
    assert after["--rm-type"] == "deepscaler"
    assert after["--use-kl-loss"] == ""
    assert "--balance-data" in before
    assert "--balance-data" not in after


def test_what_follows_from_the_file_cannot_be_said_again() -> None:
    written = {"tensor-model-parallel-size": 8, "save": "/scratch/x", "no-save-optim": True, "num-layers": 4}
    assert [key.rpartition(".")[2] for key, _ in findings(S, {"workload.trainer.flags": written})] == list(written)


def test_a_misspelt_flag_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        flags_of(plan_of(S, {"workload.trainer.flags": {"rollout-bach-size": 64}}))
    (finding,) = caught.value.findings
    assert finding.key == "workload.trainer.flags.rollout-bach-size"
    assert "rollout-batch-size" in finding.fix
    assert nearest("rollout-bach-size", CATALOG.software["efa-gda"])[0] == "rollout-batch-size"


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_what_cannot_work_here_is_refused_with_its_reason(flag) -> None:
    assert findings(S, {"workload.trainer.flags": {flag: True}}) == [(f"workload.trainer.flags.{flag}", REFUSED[flag])]


def test_engine_flags_do_not_belong_to_the_trainer() -> None:
    ((key, why),) = findings(S, {"workload.trainer.flags": {"sglang-mem-fraction-static": 0.8}})
    assert (key, "engines" in why) == ("workload.trainer.flags.sglang-mem-fraction-static", True)


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ({}, True),
        ({"use-tis": False, "use-rollout-logprobs": True}, True),
        ({"use-tis": False}, False),
        ({"use-rollout-logprobs": True}, False),
    ],
)
def test_exactly_one_correction_for_old_samples(written, right) -> None:
    changes = {"workload.trainer.flags": written}
    if right:
        flags_of(plan_of(S, changes))
    else:
        assert [key for key, _ in findings(S, changes)] == ["workload.trainer.flags"]


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 200), steps=st.integers(1, 5))
def test_a_batch_divides_over_steps_and_ranks_or_is_refused(batch, steps) -> None:
    changes = {"workload.trainer.flags": {"rollout-batch-size": batch, "num-steps-per-rollout": steps}}
    plan = plan_of(S, changes)
    samples, ranks = plan.workload.rollouts[0].engine.samples_per_task, plan.workload.trainer.geometry.data_parallel
    divides = batch % steps == 0 and batch // steps * samples % ranks == 0
    try:
        flags_of(plan)
    except EnvironmentFault:
        assert not divides
    else:
        assert divides


def test_a_batch_that_is_no_count_is_refused() -> None:
    assert [key for key, _ in findings(S, {"workload.trainer.flags": {"rollout-batch-size": "many"}})] == [
        "workload.trainer.flags.rollout-batch-size"
    ]


@pytest.mark.parametrize("written", [0, "two", True])
def test_a_staleness_that_is_no_count_is_refused(written) -> None:
    assert [key for key, _ in findings(S, {"workload.trainer.flags": {"max-weight-staleness": written}})] == [
        "workload.trainer.flags.max-weight-staleness"
    ]


def test_a_default_batch_follows_the_files_other_flags() -> None:
    """Of more optimizer steps, so that it divides, and of an older window, so that it is no larger than it has to be."""
    assert (
        flags_of(plan_of(S, {"workload.trainer.flags": {"num-steps-per-rollout": 3}}))["--rollout-batch-size"] == "33"
    )
    older = flags_of(plan_of(R, {"workload.trainer.flags": {"max-weight-staleness": 4}}))
    assert (older["--rollout-batch-size"], older["--max-weight-staleness"]) == ("256", "4")


def test_lists_of_flags_name_their_release_and_hold_names_only() -> None:
    """The list is of the release that the catalog pins."""
    for stack in CATALOG.software.values():
        release = RELEASES[stack.framework]
        assert stack.framework_version == release or stack.framework_version.startswith("main")
        known = framework_flags(stack.framework)
        assert {"num-layers", "rollout-batch-size", "data-source-path"} <= known
        assert not any(flag.startswith("-") or " " in flag for flag in known)
    assert "update-weight-disk-dir" in framework_flags("miles") - framework_flags("slime")


def test_the_default_batch_divides_over_any_number_of_ranks() -> None:
    plan = plan_of("starter-p5en", {"pools.trainer.nodes": 3, "workload.trainer.expert_parallel": 8})
    assert plan.workload.trainer.geometry.data_parallel == 6
    flags = miles.trainer_flags(plan, config_directory="/etc/moerl")
    groups = int(flags[flags.index("--rollout-batch-size") + 1])
    assert groups == 33
    assert groups * plan.workload.rollouts[0].engine.samples_per_task % 6 == 0
