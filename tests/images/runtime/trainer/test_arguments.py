"""An argument of the framework that is not as this package needs it is named, before anything is trained in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moerl_runtime.faults import InputFault
from moerl_runtime.trainer import arguments
from moerl_runtime.trainer.settings import Framework
from tests.images.runtime.trainer.fakes import arguments_of


@pytest.mark.parametrize("framework", ["miles", "slime"])
def test_what_the_render_says_is_taken(tmp_path: Path, framework: Framework) -> None:
    arguments.check(arguments_of(tmp_path, {}, framework=framework), framework)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rollout_num_gpus", 8),
        ("custom_update_weight_post_write_path", None),
        ("custom_megatron_post_save_hook_path", None),
        ("update_weight_transfer_mode", "broadcast"),
        ("debug_train_only", True),
        ("rollout_global_dataset", False),
        ("use_rollout_routing_replay", True),
        ("rollout_function_path", "miles.rollout.sglang_rollout.generate_rollout"),
        ("load_debug_rollout_data", "x"),
        ("async_save", True),
        ("reward_key", "score"),
        ("global_batch_size", 3),
    ],
)
def test_one_that_would_drop_a_hook_in_silence_is_named(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InputFault, match=name):
        arguments.check(arguments_of(tmp_path, {}, **{name: value}), "miles")


@pytest.mark.parametrize(
    ("name", "value"),
    [("debug_train_only", False), ("rollout_function_path", "slime.rollout.sglang_rollout.generate_rollout")],
)
def test_slime_is_held_to_its_own(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InputFault, match=name):
        arguments.check(arguments_of(tmp_path, {}, framework="slime", **{name: value}), "slime")


def test_without_saves_no_hook_of_a_save_is_needed(tmp_path: Path) -> None:
    args = arguments_of(tmp_path, {}, save=None, custom_megatron_post_save_hook_path=None)
    arguments.check(args, "miles")
