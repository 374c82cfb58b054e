"""Miles' own train.py, RolloutManager, argument parser and data conversion, from its sources, around this package's data
source, rollout class and hooks. Only the training ranks and Ray are stood in for. Run by `test_contract`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.images.runtime.trainer.contract import common, stubs
from tests.images.runtime.trainer.fakes import Posts, Tokenizer, reporter


class Handle:
    """An actor's handle: `handle.method.remote(...)` is awaited."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.actor, name)

        class Remote:
            @staticmethod
            async def remote(*given: Any, **named: Any) -> Any:
                result = method(*given, **named)
                return await result if asyncio.iscoroutine(result) else result

        return Remote()


class Ranks:
    """The training ranks: they train on nothing, and call the hooks where Miles' own code calls them."""

    def __init__(self, args: Any, manager: Handle, events: list[Any]) -> None:
        self.args, self.manager, self.events, self.version = args, manager, events, -1

    async def train(self, rollout_id: int, pack: dict[str, Any]) -> None:
        self.events.append(["train", rollout_id, sorted(pack["sample_indices"])])

    async def save_model(self, rollout_id: int, force_sync: bool) -> None:
        from miles.utils.misc import load_function

        checkpoint = Path(self.args.save) / f"iter_{rollout_id:07d}"
        export = Path(self.args.save_hf.format(rollout_id=rollout_id))
        for directory in (checkpoint, export):
            directory.mkdir(parents=True, exist_ok=True)
        (export / "model.safetensors").touch()
        (export / ".complete").touch()
        # miles/backends/megatron_utils/actor.py, save_model
        load_function(self.args.custom_megatron_post_save_hook_path)(
            self.args, rollout_id, str(checkpoint), str(export)
        )
        self.events.append(["save", rollout_id, force_sync])

    async def clear_memory(self) -> None:
        pass

    async def update_weights(self, rollout_id: int | None = None) -> None:
        from miles.utils.misc import load_function

        info = await self.manager.get_updatable_engines_and_lock.remote()
        self.version += 1
        root = self.args.update_weight_disk_dir
        named = root if self.version == 0 else f"{root}/weight_v{self.version:06d}"
        # miles/backends/megatron_utils/update_weight/update_weight_from_distributed/delta.py
        load_function(self.args.custom_update_weight_post_write_path)(self.args, named, list(info.rollout_engines))
        await self.manager.set_weight_version.remote(self.version)
        self.events.append(["update", rollout_id, self.version])


class Publisher:
    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def begin(self, base: Path, *, resumed: bool) -> None:
        self.events.append(["begin", str(base), resumed])

    def enqueue(self, version_dir: Path, version: int, kind: str, base: int | None) -> None:
        self.events.append(["enqueue", version_dir.name, version, kind, base])

    def flush(self, _: float) -> None:
        self.events.append(["flush"])

    def offer_anchor(self, directory: Path, version: int) -> None:
        self.events.append(["anchor", directory.name, version])


def arguments(job: common.Job) -> argparse.Namespace:
    """By Miles' parser and Miles' validation, from the rendered flags."""
    from miles.utils import arguments

    flags = [*job.flags, "--custom-config-path", common.config_file(job, "miles")]
    sys.argv = ["train.py", *flags]  # Miles reads it twice
    parser = common.Parser()
    arguments.get_miles_extra_args_provider()(parser)
    args, megatron = parser.parse_known_args(flags)
    # What Megatron's parser would bring, as far as Miles' validation reads it.
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        setattr(args, name, 1)
    for name, value in {"async_save": False, "no_save_optim": False, "enable_mtp_training": False}.items():
        if not hasattr(args, name):
            setattr(args, name, value)
    arguments.miles_validate_args(args)
    # SGLang's own, which Miles copies from ServerArgs.
    args.sglang_router_ip = args.sglang_router_port = args.sglang_speculative_algorithm = None
    assert "--rollout-function-path" not in megatron
    return args


def main() -> None:
    common.watchdog(120)
    job = common.read_job()
    stubs.install(job.source)
    common.hurry()
    import train
    from miles.ray import placement_group
    from miles.ray.rollout import metrics as rollout_metrics
    from miles.ray.rollout import rollout_manager
    from miles.utils import processing_utils

    from moerl_runtime.trainer import data_source, hooks

    events: list[Any] = []
    batches: list[Any] = []
    args = arguments(job)
    layout = placement_group._get_placement_group_layout(args)

    nothing = lambda *_, **__: None  # noqa: E731 - a stand-in
    for name in ("configure_logger", "init_tracking"):
        setattr(rollout_manager, name, nothing)
        setattr(train, name, nothing)
    rollout_metrics.tracking.log = lambda _, found, **__: events.append(
        ["logged", found["rollout/moerl/staleness_versions"]]
    )
    processing_utils.load_tokenizer = lambda *_, **__: Tokenizer()
    convert = rollout_manager.convert_samples_to_train_data

    def converted(*given: Any, **named: Any) -> Any:
        data = convert(*given, **named)
        batches.append(
            {
                "keys": sorted(data),
                "rewards": data["rewards"],
                "versions": [versions[0] for versions in data["weight_versions"]],
                "indices": data["sample_indices"],
            }
        )
        return data

    rollout_manager.convert_samples_to_train_data = converted
    rollout_manager.Lock = train.object_store = stubs.Anything()
    train.remove_rollout_data_refs = nothing
    rollout_manager.split_train_data_by_dp = lambda _args, data, _config: data
    posts = Posts()
    data_source.Reporter = lambda _source, found, _post: reporter(posts, found)
    hooks._publisher = lambda _: Publisher(events)
    hooks._reporter = lambda _: reporter(posts)
    hooks._rank = lambda: 0

    manager = rollout_manager.RolloutManager(args, None)
    handle = Handle(manager)
    ranks = Ranks(args, handle, events)

    async def models(*_: Any) -> tuple[Ranks, None]:
        # miles/ray/placement_group.py, create_training_models
        args.start_rollout_id = job.start
        await handle.set_train_parallel_config.remote({"dp_size": 1})
        if args.rollout_global_dataset:
            await handle.load.remote(args.start_rollout_id - 1)
        return ranks, None

    train.create_placement_groups = lambda _: {"rollout": None, "actor": None}
    train.create_rollout_manager = lambda *_: (handle, None)
    train.create_training_models = models
    with common.fleet(job, version=lambda: max(0, ranks.version)):
        asyncio.run(train.train(args))
    common.finish(
        {
            "events": events,
            "batches": batches,
            "layout": layout,
            "servers": len(manager.servers),
            "phases": posts.phases(),
            "sample": f"{manager.data_source._parts.sample_class.__module__}.Sample",
            **common.compare("miles"),
        }
    )


if __name__ == "__main__":
    main()
