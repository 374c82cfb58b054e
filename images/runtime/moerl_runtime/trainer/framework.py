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


def gloo_group(framework: Framework) -> Any:
    """Process group of all ranks for small objects."""
    return importlib.import_module(f"{framework}.utils.distributed_utils").get_gloo_group()
