"""slime's own train.py, RolloutManager, argument parser and data conversion, from its sources, around this package's data
source and rollout function. Only the training ranks and Ray are stood in for. Run by `test_contract`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from moerl_runtime.weights import safetensors
from tests.images.runtime.trainer.contract import common, stubs
from tests.images.runtime.trainer.fakes import Posts, Tokenizer, reporter


class Handle:
    """An actor's handle, whose futures are the results: `ray.get` gives them back."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.actor, name)

        class Remote:
            @staticmethod
            def remote(*given: Any, **named: Any) -> Any:
                return method(*given, **named)

        return Remote()


class Ranks:
    """The training ranks: they train on nothing."""

    def __init__(self, args: Any, events: list[Any]) -> None:
        self.args, self.events = args, events

    def async_train(self, rollout_id: int, refs: Any) -> None:
        found = sorted(index for shard in refs for index in shard.inner["sample_indices"])
        self.events.append(["train", rollout_id, found])

    def save_model(self, rollout_id: int, force_sync: bool) -> None:
        export = Path(self.args.save_hf.format(rollout_id=rollout_id))
        for directory in (Path(self.args.save) / f"iter_{rollout_id:07d}", export):
            directory.mkdir(parents=True, exist_ok=True)
        safetensors.write(export / "model.safetensors", {"weight": ("U8", (1,), bytes([rollout_id]))}, {})
        self.events.append(["save", rollout_id, force_sync])

    def clear_memory(self) -> None:
        pass

    def update_weights(self) -> None:
        """Returns at once in train-only mode (slime/backends/megatron_utils/actor.py)."""
        assert self.args.debug_train_only


def arguments(job: common.Job) -> argparse.Namespace:
    """By slime's parser and slime's validation, from the rendered flags."""
    from slime.utils import arguments

    flags = [*job.flags, "--custom-config-path", common.config_file(job, "slime")]
    sys.argv = ["train.py", *flags]
    before = arguments._pre_parse_mode()
    parser = common.Parser()
    arguments.get_slime_extra_args_provider()(parser)
    args, _ = parser.parse_known_args(flags)
    for name, value in vars(before).items():
        setattr(args, name, value)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        setattr(args, name, 1)
    arguments.slime_validate_args(args)
    args.sglang_speculative_algorithm = None
    return args


def main() -> None:
    common.watchdog(120)
    job = common.read_job()
    stubs.install(job.source)
    common.hurry()
    import ray
    import train
    from slime.ray import rollout
    from slime.utils import processing_utils

    from moerl_runtime.trainer import data_source

    events: list[Any] = []
    batches: list[Any] = []
    args = arguments(job)
    ray.get = ray.put = lambda found: found

    nothing = lambda *_, **__: None  # noqa: E731 - a stand-in
    for name in ("configure_logger", "init_tracking", "finish_tracking", "update_tracking_open_metrics"):
        for module in (rollout, train):
            if hasattr(module, name):
                setattr(module, name, nothing)
    rollout.logging_utils = stubs.Anything()
    rollout.Lock = stubs.Anything()
    processing_utils.load_tokenizer = lambda *_, **__: Tokenizer()
    posts = Posts()
    data_source.Reporter = lambda _source, found, _post: reporter(posts, found)

    manager = rollout.RolloutManager(args, None)
    convert = manager._convert_samples_to_train_data

    def converted(found: Any) -> Any:
        data = convert(found)
        batches.append({"keys": sorted(data), "rewards": list(data["rewards"]), "indices": data["sample_indices"]})
        return data

    manager._convert_samples_to_train_data = converted

    def models(*_: Any) -> tuple[Ranks, None]:
        # slime/ray/placement_group.py, create_training_models
        args.start_rollout_id = job.start
        manager.set_train_parallel_config({"dp_size": 1})
        manager.load(args.start_rollout_id - 1)
        return Ranks(args, events), None

    train.create_placement_groups = lambda _: {"rollout": None, "actor": None}
    train.create_rollout_manager = lambda *_: (Handle(manager), None)
    train.create_training_models = models
    with common.fleet(job, version=lambda: manager.data_source._version):
        train.train(args)
    common.finish(
        {
            "events": events,
            "batches": batches,
            "phases": posts.phases(),
            "sample": f"{manager.data_source._parts.sample_class.__module__}.Sample",
            **common.compare("slime"),
        }
    )


if __name__ == "__main__":
    main()
