"""The few things that are asked of Miles and slime themselves. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

from moerl_runtime.trainer.settings import Framework


def sample_class(framework: Framework) -> type[Any]:
    kind: type[Any] = importlib.import_module(f"{framework}.utils.types").Sample
    return kind


def train_output(framework: Framework) -> type[Any]:
    kind: type[Any] = importlib.import_module(f"{framework}.rollout.base_types").RolloutFnTrainOutput
    return kind


def tokenizer(framework: Framework, args: Any) -> Any:
    """By the framework's own loader, which repairs what transformers breaks."""
    load = importlib.import_module(f"{framework}.utils.processing_utils").load_tokenizer
    more = {"chat_template_path": args.chat_template_path} if getattr(args, "chat_template_path", None) else {}
    return load(args.hf_checkpoint, trust_remote_code=True, **more)


def save_began_unix_seconds(framework: Framework) -> float | None:
    """When the save in work began, by the framework's own timer on this rank; None where it keeps none."""
    try:
        began = importlib.import_module(f"{framework}.utils.timer").Timer().start_time.get("save_model")
    except (ImportError, AttributeError):
        # Only a measurement: no run ends for it.
        return None
    return None if began is None else float(began)


def gloo_group(framework: Framework) -> Any:
    """Process group of all ranks for small objects."""
    return importlib.import_module(f"{framework}.utils.distributed_utils").get_gloo_group()
