"""The rendered command line is asked and changed by flag, and stays a list of arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k8s.charts.trainer import FLAGS_FILE
from k8s.flags import miles, slime
from moerl_runtime.faults import InputFault
from moerl_runtime.trainer import flags
from tests.shipped import plan_of

FLAGS = ("--a", "1", "--switch", "--b", "2")


def test_values_and_switches() -> None:
    assert flags.value(FLAGS, "a") == "1"
    assert flags.value(FLAGS, "c") is None
    assert flags.needed(FLAGS, "b") == "2"
    with pytest.raises(InputFault, match="--c"):
        flags.needed(FLAGS, "c")
    with pytest.raises(InputFault, match="has no value"):
        flags.value(FLAGS, "switch")


def test_a_value_is_put_in_the_place_of_the_old_one_or_added() -> None:
    assert flags.replaced(FLAGS, "a", "9") == ("--a", "9", "--switch", "--b", "2")
    assert flags.replaced(FLAGS, "c", "3") == (*FLAGS, "--c", "3")


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_a_file_that_is_no_list_of_arguments_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / flags.FILE_NAME).write_text(text)
    with pytest.raises(InputFault, match="--config"):
        flags.load(tmp_path)


def test_the_rendered_flags_are_read_and_name_their_framework(tmp_path: Path) -> None:
    assert flags.FILE_NAME == FLAGS_FILE
    rendered = {
        "miles": miles.trainer_flags(plan_of("starter-p5en"), config_directory="/etc/x"),
        "slime": slime.trainer_flags(plan_of("starter-p5en", {"software": "baseline", "checkpoints.scratch": "fsx"})),
    }
    for framework, written in rendered.items():
        (tmp_path / flags.FILE_NAME).write_text(json.dumps(written))
        found = flags.load(tmp_path)
        assert flags.framework(found) == framework
        assert flags.needed(found, "num-rollout").isdigit()
        assert flags.needed(found, "save-hf").format(rollout_id=3).endswith("/3")
    with pytest.raises(InputFault, match="rollout-function-path"):
        flags.framework(("--rollout-function-path", "other.f"))
