"""The few things that are asked of Miles and slime themselves. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from moerl_runtime.faults import InputFault
from moerl_runtime.trainer.settings import Framework


def train_script(framework: Framework) -> Path:
    """The driver, which stands beside the package in the sources and is in neither wheel."""
    spec = importlib.util.find_spec(framework)
    if spec is None or spec.submodule_search_locations is None:
        raise InputFault("framework", framework, "is not installed", "Use the image of the environment's software.")
    places = [Path(place).parent / "train.py" for place in spec.submodule_search_locations]
    for path in places:
        if path.is_file():
            return path
    raise InputFault(
        "train.py", str(places[0]), "does not stand beside the package", "Install the framework from its sources."
    )


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
