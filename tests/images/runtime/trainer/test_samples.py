"""Nothing is trained on that has wrong lengths, types or numbers; what is has the framework's own form."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.protocol import Sample
from moerl_runtime.trainer.ledger import Taken
from moerl_runtime.trainer.prompts import Row
from moerl_runtime.trainer.samples import framework_group, problem, prompt_group, repeats, statistics
from tests.images.runtime.trainer.fakes import SAMPLE, FrameworkSample, sample

ROW = Row(prompt="question", label="7", metadata={"source": "x"})


def taken(*entries: Sample, group: int = 3) -> Taken:
    return Taken(id=group, position=0, tries=0, samples=entries)


def test_a_finished_answer_has_no_problem() -> None:
    assert problem(SAMPLE) is None
    assert problem(replace(SAMPLE, status="truncated", loss_mask=(1, 0), versions=(3, 4))) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "aborted"},
        {"response_length": 0},
        {"response_length": 2.0},
        {"response_length": True},
        {"response_length": 3},
        {"tokens": (1, 2)},
        {"tokens": (1, 2, -3)},
        {"tokens": (1, 2, "3")},
        {"log_probs": ()},
        {"log_probs": (-0.1, float("nan"))},
        {"log_probs": (-0.1, None)},
        {"log_probs": (-0.1, -0.2, -0.3)},
        {"loss_mask": (1,)},
        {"loss_mask": (1, 2)},
        {"reward": None},
        {"reward": float("inf")},
        {"reward": True},
        {"versions": ()},
        {"versions": (-1,)},
        {"versions": ("1",)},
    ],
    ids=str,
)
def test_damage_is_named(changes: dict[str, Any]) -> None:
    assert problem(replace(SAMPLE, **changes)) is not None


@given(group=st.integers(0, 10**6), count=st.integers(1, 8))
def test_ids_of_samples_are_unique_in_a_run(group: int, count: int) -> None:
    """Two samples with one index count as one rollout in Miles, and must then share their reward."""
    made = framework_group(FrameworkSample, taken(*(sample(group, n) for n in range(count)), group=group), ROW)
    following = prompt_group(FrameworkSample, group + 1, ROW, count)
    indices = [entry.index for entry in (*made, *following)]
    assert indices == list(range(group * count, (group + 2) * count))
    assert {entry.group_index for entry in made} == {group}


def test_a_sample_in_the_frameworks_form() -> None:
    (made,) = framework_group(
        FrameworkSample,
        taken(
            sample(
                3,
                0,
                metadata={"answer": "7", "raw_reward": 1, "round_number": 2},
                versions=(11, 12),
                status="truncated",
                loss_mask=(1, 0),
            )
        ),
        ROW,
    )
    assert (made.tokens, made.response, made.response_length) == ([1, 2, 3], "a b", 2)
    assert (made.rollout_log_probs, made.loss_mask, made.reward) == ([-0.1, -0.2], [1, 0], 1.0)
    assert made.weight_versions == ["11", "12"]
    assert made.status is FrameworkSample.Status.TRUNCATED
    assert (made.prompt, made.label) == ("question", "7")
    assert made.metadata == {"source": "x", "answer": "7"}, "Miles would ask the reserved keys of every sample"


def test_the_frameworks_own_validation_runs() -> None:
    class Strict(FrameworkSample):
        def validate(self) -> None:
            raise AssertionError("strict")

    with pytest.raises(AssertionError, match="strict"):
        framework_group(Strict, taken(sample(0, 0)), ROW)


def test_a_batch_is_summed_up() -> None:
    found = statistics(
        [
            taken(sample(0, 0, 3, reward=1.0), sample(0, 1, 4, reward=0.0, status="truncated")),
            taken(sample(1, 0, 5, reward=0.5, response="again and " * 2_000), sample(1, 1, 5, versions=(3, 5))),
        ],
        version=5,
    )
    assert (found.samples, found.reward_mean, found.reward_min, found.reward_max) == (4, 0.625, 0.0, 1.0)
    assert (found.repetition_share, found.truncated_share) == (0.25, 0.25)
    assert found.staleness_versions == (2 + 1 + 0 + 2) / 4


def test_only_a_long_answer_that_says_the_same_over_and_over_repeats() -> None:
    words = random.Random(1)  # noqa: S311 - text that repeats on every run
    varied = " ".join(str(words.randrange(10**6)) for _ in range(5_000))
    assert not repeats(varied)
    assert not repeats("again and " * 900)
    assert repeats("again and " * 1_100)
    assert repeats(varied + "again and " * 1_100)
