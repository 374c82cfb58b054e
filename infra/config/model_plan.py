"""Where a model's files live: the directories that the prepare job fills and trainer and engines read."""

from __future__ import annotations

from dataclasses import dataclass

MODELS_PREFIX = "models/"
"""Prefix in the weights bucket; trainer and rollout may read it, the prepare job writes it."""
MODELS_PATH = "/models"
"""Where pods see the same tree, on the node's NVMe."""
BF16_BYTES = 2
CONVERSION_SHARE = 0.7
"""Of a node's GPU memory: layers do not split evenly over stages, and a stage's copy lies beside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Directories of one model, relative to MODELS_PREFIX in the bucket and to MODELS_PATH in a pod."""

    source: str
    """The Hugging Face checkpoint in BF16."""
    serving: str
    """What engines start from, and the trainer's names, dtypes and shapes of published weights: FP8 where the engines are
    FP8, else the same as `source`."""
    reference: str
    """Megatron's torch_dist form of `source`: what a first attempt starts from."""
    conversion_nodes: int
    """Trainer nodes whose GPUs hold the BF16 model while it is converted."""


def model_plan(name: str, precision: str, *, total_params_b: float, node_gpu_memory_gib: float) -> ModelPlan:
    """Paths from the hub name and the engines' precision; `total_params_b` in billions."""
    slug = name.lower().replace("/", "--")
    weights_gib = total_params_b * 1e9 * BF16_BYTES / 2**30
    return ModelPlan(
        source=f"{slug}-bf16",
        serving=f"{slug}-{precision}",
        reference=f"{slug}-torch-dist",
        conversion_nodes=max(1, -int(-weights_gib // (node_gpu_memory_gib * CONVERSION_SHARE))),
    )
