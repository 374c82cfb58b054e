"""Reports are told where they can be, and nobody waits for one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import urllib3

from moerl_runtime.serve import Answer, serving
from moerl_runtime.trainer.metrics import metrics
from moerl_runtime.trainer.report import PHASE_PATH, SERIES_PATH, Reporter, poster
from tests.images.runtime.trainer.fakes import Clock


def test_a_head_that_does_not_answer_holds_up_nobody() -> None:
    calls = []

    def post(path: str, _body: dict[str, Any]) -> None:
        calls.append(path)
        raise urllib3.exceptions.HTTPError("gone")

    sender = Reporter("a", metrics(), post)
    sender.phase("wait", 0)
    sender.close()
    assert calls == [PHASE_PATH, SERIES_PATH]


def test_steps_that_are_shorter_than_the_period_do_not_put_the_series_off() -> None:
    """Each post takes a second here, and before its end the next phase begins."""
    clock, calls, over = Clock(), list[str](), threading.Event()

    def post(path: str, _body: dict[str, Any]) -> None:
        calls.append(path)
        clock.now += 1.0
        if path == SERIES_PATH or len(calls) == 100:
            over.set()
        else:
            sender.phase("wait", len(calls))

    sender = Reporter("a", metrics(), post, period_seconds=5.0, clock=clock)
    sender.phase("wait", 0)
    assert over.wait(10)
    assert calls[:6] == [*[PHASE_PATH] * 5, SERIES_PATH]
    sender.close()


def test_an_answer_other_than_200_counts_as_not_arrived() -> None:
    with (
        serving("127.0.0.1:0", lambda _: Answer(status=400)) as url,
        pytest.raises(urllib3.exceptions.HTTPError, match="400"),
    ):
        poster(url)(PHASE_PATH, {})
