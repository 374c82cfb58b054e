"""No text on the result queue or among the dead letters ends a run: it is counted, named and dropped, or left alone."""

from __future__ import annotations

import json
import logging
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moerl_runtime import protocol
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Attempt, DeadLetter, ResultMessage
from moerl_runtime.trainer.dispatch import Feed, Limits, Queues
from moerl_runtime.trainer.ledger import Ledger
from moerl_runtime.trainer.metrics import metrics
from tests.images.runtime.agent.services import S3, S3Client, Sqs, SqsClient
from tests.images.runtime.messages import bent
from tests.images.runtime.trainer.fakes import payload

ATTEMPT = Attempt(run="run", number=1)
QUEUES = Queues(task="tasks", result="results", dead_letter="dead")
RESULT = ResultMessage(run="run", attempt=1, group=0, sample=0, key=protocol.sample_key(ATTEMPT, 0, 0))
LETTER = DeadLetter(
    run="run", attempt=1, group=0, key=protocol.task_key(ATTEMPT, 0), failures=3, reason="grader: no label"
)
OUTCOMES = ("used", "stale", "duplicate", "invalid")


def begun() -> tuple[Feed, Sqs, Metrics]:
    """A feed that has sent its window of two groups."""
    queues, counted = Sqs(lambda: 0.0, random.Random(1)), metrics()  # noqa: S311 - a seed has to give the same run
    feed = Feed(
        ledger=Ledger(samples=2, window=2, reissue_seconds=100.0),
        attempt=ATTEMPT,
        payload=payload,
        limits=Limits(batch=2, staleness=1),
        queues=QUEUES,
        bucket="bucket",
        s3=S3Client(S3(lambda: 0.0)),
        sqs_client=SqsClient(queues),
        fetch=lambda _group, _key: None,
        metrics=counted,
        clock=lambda: 0.0,
    )
    assert feed.dispatch_once() == 2
    return feed, queues, counted


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bent(RESULT))
def test_no_text_on_the_result_queue_ends_a_run(body: str) -> None:
    feed, queues, counted = begun()
    queues.send("results", body)
    assert feed.collect_once(0) == 1
    assert not queues.queue("results").messages
    assert sum(counted.value("moerl_trainer_results_total", outcome=each) for each in OUTCOMES) == 1
    feed.close()


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bent(LETTER) | st.text())
def test_no_dead_letter_ends_a_run(body: str) -> None:
    feed, queues, _ = begun()
    queues.send("dead", body)
    feed.sweep_once()
    feed.close()


@pytest.mark.parametrize("change", [{"sample": "0"}, {"group": None}, {"sample": -1}, {"attempt": True}])
def test_a_foreign_result_is_dropped_and_named(change: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    feed, queues, counted = begun()
    queues.send("results", json.dumps(json.loads(protocol.encode(RESULT)) | change))
    with caplog.at_level(logging.WARNING):
        feed.collect_once(0)
    assert "dropped from the result queue" in caplog.text
    assert next(iter(change)) in caplog.text
    assert counted.value("moerl_trainer_results_total", outcome="invalid") == 1
    feed.close()
