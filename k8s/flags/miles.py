"""Command line of Miles' train.py: a trainer without engines, fed by a queue, that publishes its weights as files.

Facts behind the choices: an empty `sglang` list with 0 rollout GPUs is the only form in which Miles starts no engine and
still publishes weights; `broadcast` and `p2p` would join Spot engines to the trainer's communication group.
"""

from __future__ import annotations

from infra.config.plan import Plan
from k8s.flags.training import RUNTIME, Flags, scratch_directory
from k8s.flags.training import trainer_flags as shared_flags
from k8s.ports import FRAMEWORK_METRICS_PORT

SGLANG_CONFIG_FILE = "sglang.yaml"
SGLANG_CONFIG = "sglang: []\n"
"""Exactly this: a missing list, or none, makes Miles start engines or fail."""


def trainer_flags(plan: Plan, *, config_directory: str) -> tuple[str, ...]:
    """Arguments of train.py. `config_directory` holds SGLANG_CONFIG_FILE in the pod.

    Raises EnvironmentFault for flags of the file that cannot work.
    """
    return shared_flags(plan, _owned(plan, config_directory))


def _owned(plan: Plan, config_directory: str) -> Flags:
    scratch = scratch_directory(plan)
    flags: Flags = {
        "rollout-num-gpus": ("0",),
        "sglang-config": (f"{config_directory}/{SGLANG_CONFIG_FILE}",),
        "rollout-function-path": (f"{RUNTIME}.rollout.Rollout",),
        # Raw: in 0.1.0 the bridge restarts every resumed run at step 0 (radixark/miles#2682).
        "megatron-to-hf-mode": ("raw",),
        "update-weight-transfer-mode": ("disk-delta",),
        "update-weights-interval": ("1",),
        "update-weight-disk-dir": (f"{scratch}/weights",),
        # Read by managed engines alone, but Miles asks for it.
        "update-weight-local-checkpoint-dir": (f"{scratch}/engine",),
        # An agent that died in the middle of a version applies it again; exclusive-or may be applied once only.
        "update-weight-delta-encoding": ("overwrite",),
        "update-weight-delta-checksum": ("xxh3-128",),
        "custom-megatron-init-path": (f"{RUNTIME}.hooks.started",),
        "custom-update-weight-post-write-path": (f"{RUNTIME}.hooks.published",),
        "use-prometheus": (),
        "prometheus-port": (str(FRAMEWORK_METRICS_PORT),),
        "prometheus-run-name": (plan.name,),
    }
    if not plan.workload.no_checkpoint:
        flags["custom-megatron-post-save-hook-path"] = (f"{RUNTIME}.hooks.saved",)
        flags["save-trigger-sentinel"] = (f"{scratch}/save-now",)
    rollout = plan.workload.rollouts[0]
    if rollout.engine.moe_runner is not None:
        # Miles picks the format of FP8 scales by these, although it manages no engine.
        flags["sglang-moe-runner-backend"] = (rollout.engine.moe_runner,)
        flags["sglang-moe-a2a-backend"] = (rollout.backend,)
    return flags
