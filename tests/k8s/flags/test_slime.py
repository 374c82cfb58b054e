"""slime's trainer, the baseline: train-only, weights with each checkpoint."""

from __future__ import annotations

import pytest

from infra.config.faults import EnvironmentFault
from k8s.flags import slime
from k8s.flags.sglang_rules import parse
from tests.shipped import plan_of

BASELINE = {
    "software": "baseline",
    "workload.rollout.precision": "bf16",
    "workload.trainer.expert_parallel": 8,
    "checkpoints.scratch": "fsx",
}


def test_the_trainer_has_no_engine_and_no_flag_of_miles() -> None:
    flags = parse(slime.trainer_flags(plan_of("starter-p5en", BASELINE)))
    assert "--debug-train-only" in flags
    assert flags["--rollout-function-path"] == "moerl_runtime.trainer.rollout.generate_rollout"
    assert not [name for name in flags if name.startswith(("--update-weight", "--sglang", "--custom-megatron"))]


def test_weights_are_published_with_checkpoints_so_there_must_be_some() -> None:
    flags = parse(slime.trainer_flags(plan_of("starter-p5en", BASELINE)))
    assert "{rollout_id}" in flags["--save-hf"]
    with pytest.raises(EnvironmentFault) as caught:
        slime.trainer_flags(plan_of("starter-p5en", BASELINE | {"workload.no_checkpoint": True}))
    assert caught.value.findings[0].key == "workload.no_checkpoint"


def test_several_nodes_publish_from_one_scratch() -> None:
    with pytest.raises(EnvironmentFault) as caught:
        slime.trainer_flags(plan_of("starter-p5en", BASELINE | {"checkpoints.scratch": "nvme"}))
    assert [finding.key for finding in caught.value.findings] == ["checkpoints.scratch"]


def test_a_flag_of_miles_alone_is_refused() -> None:
    changes = BASELINE | {"workload.trainer.flags": {"save-hf-every": True, "use-prometheus": True}}
    with pytest.raises(EnvironmentFault) as caught:
        slime.trainer_flags(plan_of("starter-p5en", changes))
    assert [finding.key.rpartition(".")[2] for finding in caught.value.findings] == ["save-hf-every", "use-prometheus"]
