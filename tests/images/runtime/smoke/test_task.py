"""The task: text and tokens are one, and the reward counts right places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.graders import GradeError
from moerl_runtime.smoke import task


@given(st.text(alphabet=task.SYMBOLS))
def test_tokens_are_the_text(text: str) -> None:
    assert task.decode(task.encode(text)) == text


def test_the_answer_goes_round() -> None:
    assert task.prompt(8) == "8="
    assert task.label(8) == "901"
    assert len(task.prompt(8)) + task.ANSWER_TOKENS == task.CONTEXT


@pytest.mark.parametrize(
    ("response", "share"), [("901", 1.0), ("900", 2 / 3), ("", 0.0), ("9", 1 / 3), ("9012", 3 / 4), ("019", 0.0)]
)
def test_the_reward_is_the_share_of_right_places(response: str, share: float) -> None:
    assert task.reward(response, "901") == pytest.approx(share)
    assert task.grade(prompt="8=", response=response, label="901", metadata={}) == (pytest.approx(share), {})


def test_only_the_right_answer_has_the_full_reward() -> None:
    for start in range(task.BASE):
        full = [other for other in range(task.BASE) if task.reward(task.label(other), task.label(start)) == 1.0]
        assert full == [start]


def test_a_task_without_a_label_gets_no_reward() -> None:
    with pytest.raises(GradeError, match="label"):
        task.grade(prompt="8=", response="", label=None, metadata={})


def test_prompts_follow_the_seed() -> None:
    assert task.starts(3, 50) == task.starts(3, 50)
    assert task.starts(3, 50) != task.starts(4, 50)
    assert set(task.starts(3, 200)) == set(range(task.BASE))
