"""Who grades an answer, and which failures are the answer's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from moerl_runtime.agent.grading import grader
from moerl_runtime.agent.work import GradingBusy
from moerl_runtime.graders import GradeError
from moerl_runtime.protocol import TaskPayload
from moerl_runtime.serve import Answer, Request, serving

TASK = TaskPayload(
    group=1,
    prompt="what is 6 * 7",
    prompt_tokens=(1,),
    samples=1,
    sampling={},
    label="42",
    grader="environment:calculator",
    metadata={"level": 3},
)


class Worker:
    """An environment worker that answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.status, self.body = 200, json.dumps({"reward": 0.5, "metadata": {"steps": 2}}).encode()

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer(status=self.status, body=self.body)


@pytest.fixture
def worker() -> Iterator[tuple[Worker, str]]:
    made = Worker()
    with serving("127.0.0.1:0", made.answer) as url:
        yield made, url


def test_a_remote_grader_gets_the_five_fields_and_its_bare_name(worker: tuple[Worker, str]) -> None:
    made, url = worker
    assert grader([url])(TASK, "42") == (0.5, {"steps": 2})
    (asked,) = made.asked
    assert (asked.method, asked.path) == ("POST", "/v1/score")
    assert json.loads(asked.body) == {
        "grader": "calculator",
        "prompt": "what is 6 * 7",
        "response": "42",
        "label": "42",
        "metadata": {"level": 3},
    }


def test_a_grader_of_the_image_asks_nobody() -> None:
    assert grader([])(replace(TASK, grader="exact"), "it is 42")[0] == 1.0


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_worker_is_asked_again(worker: tuple[Worker, str], status: int) -> None:
    made, url = worker
    made.status = status
    with pytest.raises(GradingBusy, match=str(status)):
        grader([url])(TASK, "42")


def test_a_worker_that_is_away_is_asked_again() -> None:
    with pytest.raises(GradingBusy):
        grader(["http://127.0.0.1:9"])(TASK, "42")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (422, b'{"error": "no such grader"}', "no such grader"),
        (504, b'{"error": "too slow"}', "too slow"),
        (400, b'{"error": "bad body"}', "bad body"),
        (404, b"", "without a reward"),
        (200, b"[]", "without a reward"),
        (200, b'{"reward": "much", "metadata": {}}', "without a reward"),
        (200, b'{"reward": NaN, "metadata": {}}', "no finite number"),
        (200, b'{"reward": 1}', "without a reward"),
    ],
)
def test_any_other_answer_is_the_samples_failure(
    worker: tuple[Worker, str], status: int, body: bytes, why: str
) -> None:
    made, url = worker
    made.status, made.body = status, body
    with pytest.raises(GradeError, match=why):
        grader([url])(TASK, "42")


def test_a_run_without_environment_workers_says_so() -> None:
    with pytest.raises(GradeError, match="no pool of environment workers"):
        grader([])(TASK, "42")


def test_groups_are_spread_over_the_pools() -> None:
    first, second = Worker(), Worker()
    with serving("127.0.0.1:0", first.answer) as one, serving("127.0.0.1:0", second.answer) as two:
        grade = grader([one, two])
        for group in range(4):
            grade(replace(TASK, group=group), "42")
    assert (len(first.asked), len(second.asked)) == (2, 2)
