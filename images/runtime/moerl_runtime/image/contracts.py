"""What moerl_runtime calls, and is called with, in Miles, slime and SGLang.

One entry for every place where a renamed field or a changed signature would break a run hours after it started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["fields", "parameters", "texts", "call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoint:
    """`fields`: the class has them. `parameters`: the function or method begins with them. `texts`: they stand in the
    function or class as they are, as the keys of an answer do. `call`: the module calls the name with so many positional
    arguments, and the keywords, which end in `=`."""

    module: str
    name: str
    kind: Kind
    expects: tuple[str, ...]


def _point(module: str, name: str, kind: Kind, *expects: str) -> ExtensionPoint:
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

_ENGINE_HTTP, _ENGINE_LOADS = "sglang.srt.entrypoints.http_server", "sglang.srt.entrypoints.v1_loads"
ENGINE_ROUTE_MODULES = (_ENGINE_HTTP, _ENGINE_LOADS)
ENGINE_ROUTES = (
    "/abort_request",
    "/continue_generation",
    "/flush_cache",
    "/generate",
    "/health",
    "/health_generate",
    "/model_info",
    "/pause_generation",
    "/server_info",
    "/update_weights_from_disk",
    "/v1/loads",
)
"""Routes of SGLang that the agent and the probes of its pod use."""
_BODIES, _SAMPLING = "sglang.srt.managers.io_struct", "sglang.srt.sampling.sampling_params"
_OF_EVERY_ENGINE = (
    _point(
        _BODIES,
        "GenerateReqInput",
        "fields",
        "rid",
        "input_ids",
        "sampling_params",
        "return_logprob",
        "stream",
        "extra_key",
    ),
    _point(_BODIES, "AbortReq", "fields", "rid", "abort_all"),
    _point(_BODIES, "PauseGenerationReqInput", "fields", "mode"),
    _point(
        _BODIES,
        "UpdateWeightFromDiskReqInput",
        "fields",
        "model_path",
        "load_format",
        "weight_version",
        "flush_cache",
        "abort_all_requests",
    ),
    _point(
        "sglang.srt.managers.tokenizer_manager",
        "TokenizerManager",
        "texts",
        "text",
        "output_ids",
        "meta_info",
        "finish_reason",
        "output_token_logprobs",
        "weight_version",
    ),
    _point("sglang.srt.server_args", "ServerArgs", "fields", "tp_size", "ep_size", "dp_size", "moe_a2a_backend"),
    _point(_ENGINE_HTTP, "model_info", "texts", "weight_version"),
    _point(_ENGINE_HTTP, "update_weights_from_disk", "texts", "success", "message"),
    _point(_ENGINE_LOADS, "get_loads", "texts", "loads"),
)
_LOAD = ("num_running_reqs", "num_waiting_reqs")
ENGINE_POINTS: Mapping[str, tuple[ExtensionPoint, ...]] = MappingProxyType(
    {
        "miles": (
            *_OF_EVERY_ENGINE,
            _point("sglang.srt.managers.load_snapshot", "LoadSnapshot", "fields", *_LOAD),
            _point(
                _SAMPLING,
                "SamplingParams",
                "fields",
                "max_new_tokens",
                "stop",
                "stop_token_ids",
                "temperature",
                "top_p",
                "top_k",
                "skip_special_tokens",
                "spaces_between_special_tokens",
                "no_stop_trim",
                "sampling_seed",
            ),
        ),
        # SGLang 0.5.9, whose sampling parameters are no fields; one that it does not know is an error there.
        "slime": (*_OF_EVERY_ENGINE, _point(_BODIES, "GetLoadsReqOutput", "fields", *_LOAD)),
    }
)
"""What the agent sends to the engine of a framework's image, and reads of its answers: SGLang ignores a field that it does
not know, so that a renamed `flush_cache` would mean its default."""
ENGINE_FLAG_MODULES = ("sglang.srt.server_args",)
ENGINE_VARIABLE_MODULES = ("sglang.srt.environ",)
TRAINER_FLAG_PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"miles": ("miles", "megatron"), "slime": ("slime", "megatron")}
)
"""Packages whose modules together make the trainer's command line."""
ENGINE_PREFIX = "--sglang-"
"""Trainer flags that pass through to the engine's own list."""
