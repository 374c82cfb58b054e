"""Miles' trainer starts no engine and still publishes weights."""

from __future__ import annotations

import importlib

import yaml

from k8s.charts.trainer import ENTRYPOINT
from k8s.flags import miles
from k8s.flags.sglang_rules import parse
from k8s.ports import FRAMEWORK_METRICS_PORT, METRICS_PORT
from tests.shipped import plan_of


def flags_of(name: str, changes=None) -> dict[str, str]:
    return parse(miles.trainer_flags(plan_of(name, changes), config_directory="/etc/x"))


def test_the_trainer_has_no_engine() -> None:
    """Any other form starts engines or fails: a list without entries, and 0 GPUs."""
    assert yaml.safe_load(miles.SGLANG_CONFIG) == {"sglang": []}
    flags = flags_of("reference-p5en")
    assert flags["--rollout-num-gpus"] == "0"
    assert flags["--sglang-config"] == "/etc/x/sglang.yaml"
    assert not {"--rollout-external", "--debug-train-only", "--prefill-num-servers"} & set(flags)


def test_weights_leave_as_files_with_a_hook_after_each_version() -> None:
    flags = flags_of("reference-p5en")
    assert flags["--update-weight-transfer-mode"] == "disk-delta"
    assert flags["--update-weights-interval"] == "1"
    assert flags["--custom-update-weight-post-write-path"] == "moerl_runtime.trainer.hooks.published"
    # The first publication deletes its directory, so nothing else may lie below it.
    published = flags["--update-weight-disk-dir"] + "/"
    others = (
        "--save",
        "--save-hf",
        "--update-weight-local-checkpoint-dir",
        "--save-trigger-sentinel",
        "--hf-checkpoint",
    )
    assert not [name for name in others if flags[name].startswith(published)]


def test_hook_classes_are_of_the_image_package() -> None:
    flags = flags_of("starter-p5en")
    paths = {name: value for name, value in flags.items() if value.startswith("moerl_runtime.")}
    assert set(paths) == {
        "--data-source-path",
        "--rollout-function-path",
        "--custom-megatron-init-path",
        "--custom-update-weight-post-write-path",
        "--custom-megatron-post-save-hook-path",
    }
    for value in paths.values():
        module, _, name = value.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), value


def test_the_scale_format_of_fp8_is_chosen_by_the_engines_values() -> None:
    plan = plan_of("reference-p5en")
    flags = flags_of("reference-p5en")
    assert flags["--sglang-moe-runner-backend"] == plan.workload.rollouts[0].engine.moe_runner == "deep_gemm"
    assert flags["--sglang-moe-a2a-backend"] == plan.workload.rollouts[0].backend == "deepep_v2"
    assert flags["--hf-checkpoint"].endswith("-fp8")
    dense = {
        "workload.model": "Qwen/Qwen3-4B",
        "workload.trainer.expert_parallel": 1,
        "workload.rollout.expert_parallel": 1,
    }
    dense |= {"workload.rollout.precision": "bf16", "workload.trainer.tensor_parallel": 4}
    assert not [
        name for name in flags_of("starter-p5en", dense) if name.startswith(("--sglang-moe", "--expert-", "--moe-"))
    ]


def test_a_resume_keeps_its_step() -> None:
    """Bridge mode restarts every resumed run at step 0 (radixark/miles#2682)."""
    assert flags_of("starter-p5en")["--megatron-to-hf-mode"] == "raw"


def test_its_own_metrics_stand_beside_the_runs_on_the_head() -> None:
    port = flags_of("starter-p5en")["--prometheus-port"]
    assert port == str(FRAMEWORK_METRICS_PORT) != str(METRICS_PORT)
    assert f"--framework-metrics-port {port}" in ENTRYPOINT
