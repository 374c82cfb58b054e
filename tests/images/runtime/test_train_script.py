"""train.py is where the image says, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from moerl_runtime import train_script
from moerl_runtime.faults import InputFault


def test_the_image_says_where_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert train_script.path({"MOERL_TRAIN_SCRIPT": str(script)}) == script


@pytest.mark.parametrize(
    ("variables", "why"),
    [({}, "is not set"), ({"MOERL_TRAIN_SCRIPT": ""}, "is not set"), ({"MOERL_TRAIN_SCRIPT": "/none.py"}, "no file")],
)
def test_one_that_is_not_there_is_refused_with_the_variable(variables: dict[str, str], why: str) -> None:
    with pytest.raises(InputFault, match=rf"MOERL_TRAIN_SCRIPT.*{why}"):
        train_script.path(variables)


def test_a_directory_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(InputFault, match="names no file"):
        train_script.path({"MOERL_TRAIN_SCRIPT": str(tmp_path)})
