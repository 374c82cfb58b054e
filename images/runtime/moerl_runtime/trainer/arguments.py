"""What the framework's parsed arguments must say for the trainer's half to work: read again inside the run, since a flag of
the framework may have been renamed, defaulted or overridden on the way. A hook that is silently not called is the worst
outcome: training goes on, and nothing is published or saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from moerl_runtime.faults import InputFault
from moerl_runtime.trainer.settings import Framework

PACKAGE = "moerl_runtime.trainer"
FIX = "Render the run anew, with the flags of k8s/flags."


def check(args: Any, framework: Framework) -> None:
    """Raises InputFault with the first argument that would break the run."""
    for name, expected, why in _expected(args, framework):
        found = getattr(args, name, None)
        if found != expected:
            raise InputFault(f"args.{name}", found, why, f"{FIX} It should be {expected!r}.")
    groups, samples = args.rollout_batch_size, args.n_samples_per_prompt
    batch = getattr(args, "global_batch_size", None)
    if batch and groups * samples % batch:
        raise InputFault(
            "args.global_batch_size",
            batch,
            f"{groups} groups of {samples} samples do not divide by it: the rest is cut off in the middle of a group",
            "Write num-steps-per-rollout: 1, or a divisor.",
        )


def no_engines(engines: Sequence[Any]) -> None:
    """Raises InputFault where the framework manages engines: it would join them to its own communication."""
    if engines:
        raise InputFault(
            "rollout_engines",
            len(engines),
            "the framework started engines of its own; the empty list of --sglang-config did not hold",
            "Use the release of Miles that the catalog pins.",
        )


def _expected(args: Any, framework: Framework) -> Iterator[tuple[str, object, str]]:
    yield "data_source_path", f"{PACKAGE}.data_source.DataSource", "prompts and checkpoints would be another source's"
    yield "rollout_global_dataset", True, "checkpoints would be written without the ledger"
    yield "debug_rollout_only", False, "it does not train"
    yield "load_debug_rollout_data", None, "samples would come from a file"
    # Samples carry no expert routes, which the replay takes from the engine.
    yield "use_rollout_routing_replay", False, "samples carry no expert routes"
    yield "reward_key", None, "rewards are numbers here, not documents"
    if framework == "slime":
        yield "rollout_function_path", f"{PACKAGE}.rollout.generate_rollout", "samples would not come from the queue"
        yield "debug_train_only", True, "slime would start engines"
        return
    yield "rollout_function_path", f"{PACKAGE}.rollout.Rollout", "samples would not come from the queue"
    yield "rollout_num_gpus", 0, "GPUs would be kept for engines of the framework"
    yield "debug_train_only", False, "no weights would be published"
    yield "debug_skip_weight_update", False, "no weights would be published"
    yield "fully_async", False, "it brings its own generator"
    yield "colocate", False, "the trainer has no engines"
    yield "async_save", False, "the hook after a save would wait alone for a collective of all ranks"
    yield "update_weight_transfer_mode", "disk-delta", "no weights would be written to disk"
    yield "custom_update_weight_post_write_path", f"{PACKAGE}.hooks.published", "weights would never leave the node"
    if getattr(args, "save", None):
        yield "custom_megatron_post_save_hook_path", f"{PACKAGE}.hooks.saved", "a failed export would go unnoticed"
