"""What moerl_runtime calls, and is called with, in Miles, slime and SGLang.

One entry for every place where a renamed field or a changed signature would break a run hours after it started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoint:
    """`fields`: the class has them. `parameters`: the function or method begins with them. `call`: the module calls the
    name with so many positional arguments, and the keywords, which end in `=`."""

    module: str
    name: str
    kind: Literal["fields", "parameters", "call"]
    expects: tuple[str, ...]


def _point(module: str, name: str, kind: Literal["fields", "parameters", "call"], *expects: str) -> ExtensionPoint:
    return ExtensionPoint(module=module, name=name, kind=kind, expects=expects)


_SAMPLE = (
    "group_index",
    "index",
    "prompt",
    "tokens",
    "response",
    "response_length",
    "label",
    "reward",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "rollout_routed_experts",
    "status",
    "metadata",
)
_DELTA = "miles.backends.megatron_utils.update_weight.update_weight_from_distributed.delta"

EXTENSION_POINTS: Mapping[str, tuple[ExtensionPoint, ...]] = MappingProxyType(
    {
        "miles": (
            _point("miles.rollout.base_types", "RolloutFnConstructorInput", "fields", "args", "data_source"),
            _point("miles.rollout.base_types", "RolloutFnTrainInput", "fields", "rollout_id", "weight_version"),
            _point("miles.rollout.base_types", "RolloutFnTrainOutput", "fields", "samples", "metrics"),
            _point("miles.rollout.data_source", "DataSource.get_samples", "parameters", "num_samples"),
            _point("miles.rollout.data_source", "DataSource.add_samples", "parameters", "samples"),
            _point("miles.rollout.data_source", "DataSource.save", "parameters", "rollout_id"),
            _point("miles.rollout.data_source", "DataSource.load", "parameters", "rollout_id"),
            _point("miles.utils.types", "Sample", "fields", *_SAMPLE),
            _point("miles.utils.types", "Sample.from_dict", "parameters", "data"),
            _point("miles.utils.types", "Sample.validate", "parameters"),
            _point("miles.utils.misc", "load_function", "parameters", "path"),
            _point("miles.utils.processing_utils", "load_tokenizer", "parameters", "name_or_path"),
            _point("miles.utils.distributed_utils", "get_gloo_group", "parameters"),
            _point("miles.ray.rollout.rollout_manager", "load_rollout_function", "call", "input", "path"),
            _point(
                "miles.backends.megatron_utils.actor", "post_save_hook", "call", "args", "rollout_id", "dir", "hf_dir"
            ),
            _point(_DELTA, "_post_write_hook", "call", "args", "version_dir", "rollout_engines"),
        ),
        "slime": (
            _point("slime.rollout.base_types", "RolloutFnTrainOutput", "fields", "samples", "metrics"),
            _point("slime.rollout.data_source", "DataSource.get_samples", "parameters", "num_samples"),
            _point("slime.rollout.data_source", "DataSource.add_samples", "parameters", "samples"),
            _point("slime.rollout.data_source", "DataSource.save", "parameters", "rollout_id"),
            _point("slime.rollout.data_source", "DataSource.load", "parameters", "rollout_id"),
            _point("slime.utils.types", "Sample", "fields", *_SAMPLE),
            _point("slime.utils.types", "Sample.from_dict", "parameters", "data"),
            _point("slime.utils.misc", "load_function", "parameters", "path"),
            _point("slime.utils.processing_utils", "load_tokenizer", "parameters", "name_or_path"),
            _point(
                "slime.ray.rollout", "call_rollout_fn", "call", "fn", "args", "rollout_id", "data_source", "evaluation="
            ),
        ),
    }
)

TOOLS = ("convert_hf_to_fp8.py", "convert_hf_to_torch_dist.py", "fp8_cast_bf16.py")
"""Programs of the framework, in the folder tools beside train.py, that `weights prepare` runs."""
DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "miles": ("awscrt", "boto3", "huggingface-hub", "numpy", "xxhash", "zstandard"),
        "slime": ("awscrt", "boto3", "huggingface-hub", "numpy"),
    }
)
"""What moerl_runtime imports in an image of that framework, at any version; Miles' weights come compressed and summed."""

GRADERS = ("count_on", "exact")
"""Graders of this package: tasks of the smoke job name the first."""

ENGINE_MODULE = "sglang.srt.entrypoints.http_server"
ENGINE_ROUTES = (
    "/abort_request",
    "/continue_generation",
    "/flush_cache",
    "/generate",
    "/health",
    "/health_generate",
    "/model_info",
    "/pause_generation",
    "/update_weights_from_disk",
)
"""Routes of SGLang that the agent and the probes of its pod use."""
ENGINE_FLAG_MODULES = ("sglang.srt.server_args",)
ENGINE_VARIABLE_MODULES = ("sglang.srt.environ",)
TRAINER_FLAG_PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"miles": ("miles", "megatron"), "slime": ("slime", "megatron")}
)
"""Packages whose modules together make the trainer's command line."""
ENGINE_PREFIX = "--sglang-"
"""Trainer flags that pass through to the engine's own list."""
