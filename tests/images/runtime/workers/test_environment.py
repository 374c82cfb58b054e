"""Grades run apart from each other and from the server, within their limits, and a worker ends without losing one."""

from __future__ import annotations

import json
import os
import select
import threading
from typing import Any

import pytest

from moerl_runtime import graders, serve
from moerl_runtime.faults import InputFault
from moerl_runtime.serve import Request
from moerl_runtime.workers import environment, running
from moerl_runtime.workers.environment import SCORE_PATH, Scores, read_ask
from moerl_runtime.workers.grading import Ask, Grade, Grading, Limits
from tests.images.runtime.workers import misbehaving

GIB = 2**30
BODY = {"grader": "exact", "prompt": "1+1?", "response": r"\boxed{2}", "label": "2", "metadata": {}}


def ask(**changes: Any) -> Ask:
    return Ask(**(BODY | changes))


class Held:
    """Grades that end when they are told to."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Semaphore(0), threading.Event()

    def grade(self, asked: Ask) -> Grade:
        self.begun.release()
        assert self.end.wait(10)
        return Grade(reward=float(len(asked.response)), metadata={})


def scores_of(grading: Any, *, slots: int = 1, queue_seconds: float = 0.0) -> Scores:
    return Scores(grading, environment.new_metrics(), slots=slots, queue_seconds=queue_seconds)


@pytest.fixture(scope="module")
def grading() -> Grading:
    return Grading(Limits(seconds=20.0, memory_bytes=2 * GIB))


def test_the_answer_is_graded_in_another_process(grading: Grading) -> None:
    answer = environment.answer(
        scores_of(grading), Request(method="POST", path=SCORE_PATH, body=json.dumps(BODY).encode())
    )
    assert answer.status == 200
    assert json.loads(answer.body)["reward"] == 1.0
    assert grading.grade(ask(label="3")).reward == 0.0


def test_a_grader_that_gives_no_reward_says_why(grading: Grading) -> None:
    answer = environment.answer(
        scores_of(grading), Request(method="POST", path=SCORE_PATH, body=json.dumps(BODY | {"label": None}).encode())
    )
    assert answer.status == 422
    assert "has no label" in json.loads(answer.body)["error"]
    assert "is not in this image" in str(grading.grade(ask(grader="nobody")).failure)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("sleeps", "time limit"),
        ("exhausts_memory", "MemoryError"),
        ("exits", "ended without a grade"),
        ("writes_half_a_line", "time limit"),
        ("writes_no_json", "cannot be read"),
        ("writes_too_much", "larger than"),
    ],
)
def test_a_grade_that_misbehaves_costs_itself_alone(
    target: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(seconds=1.0 if expected == "time limit" else 20.0, memory_bytes=2 * GIB)
    grading = Grading(limits)
    monkeypatch.setattr("moerl_runtime.workers.grading._child", getattr(misbehaving, target))
    failed = grading.grade(ask())
    assert failed.reward is None
    assert expected in str(failed.failure)
    assert failed.timed_out is (expected == "time limit")
    monkeypatch.undo()
    assert grading.grade(ask()).reward == 1.0


def test_what_a_grade_left_running_is_killed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    grading = Grading(Limits(seconds=20.0, memory_bytes=2 * GIB))
    monkeypatch.setattr("moerl_runtime.workers.grading._child", misbehaving.leaves_a_process)
    try:
        left = os.pidfd_open(int(grading.grade(ask()).metadata["pid"]))
    except ProcessLookupError:
        return
    try:
        # Readable once the process has ended.
        assert select.select([left], [], [], 10.0)[0] == [left]
    finally:
        os.close(left)


def test_no_more_grades_run_than_there_are_slots() -> None:
    held = Held()
    scores = scores_of(held, slots=2)
    threads = [threading.Thread(target=scores.score, args=(ask(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert held.begun.acquire(timeout=10)
    refused = environment.answer(scores, Request(method="POST", path=SCORE_PATH, body=json.dumps(BODY).encode()))
    assert refused.status == 503
    held.end.set()
    for thread in threads:
        thread.join()
    assert scores.score(ask()) is not None


def test_a_worker_that_ends_is_unready_refuses_and_lets_grades_end() -> None:
    held = Held()
    scores = scores_of(held, slots=2)
    found: list[Grade | None] = []
    thread = threading.Thread(target=lambda: found.append(scores.score(ask(response="four"))))
    thread.start()
    assert held.begun.acquire(timeout=10)
    assert not scores.drain(0.0)
    assert environment.answer(scores, Request(method="GET", path=running.READY_PATH)).status == 503
    assert environment.answer(scores, Request(method="GET", path=running.LIVE_PATH)).status == 200
    assert scores.score(ask()) is None
    held.end.set()
    assert scores.drain(10.0)
    thread.join()
    assert found == [Grade(reward=4.0, metadata={})]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"7",
        json.dumps(BODY | {"more": 1}).encode(),
        json.dumps({name: value for name, value in BODY.items() if name != "label"}).encode(),
        json.dumps(BODY | {"label": 2}).encode(),
        json.dumps(BODY | {"metadata": []}).encode(),
        json.dumps(BODY | {"response": None}).encode(),
        bytes(environment.TEXT_BYTES_MAX + 1),
    ],
)
def test_bodies_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(InputFault):
        read_ask(body)
    assert environment.answer(scores_of(Held()), Request(method="POST", path=SCORE_PATH, body=body)).status == 400


def test_metrics_are_served_where_the_monitor_looks() -> None:
    from k8s.ports import METRICS_PORT

    assert running.METRICS_PORT == METRICS_PORT
    exported = environment.new_metrics()
    exported.add("moerl_environment_scores_total", outcome="scored")
    with serve.serving("127.0.0.1:0", running.exposition(exported)):
        answer = running.exposition(exported)(Request(method="GET", path=running.METRICS_PATH))
    assert b'moerl_environment_scores_total{outcome="scored"} 1.0' in answer.body
    assert graders.GROUP == "moerl.graders"
