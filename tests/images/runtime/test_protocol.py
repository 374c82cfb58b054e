"""What the halves of a run tell each other comes out as it went in, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime import protocol
from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import Attempt, Current, DeadLetter, ResultMessage, Sample, TaskMessage, TaskPayload

RUN = "trainer-0123abcd"
numbers = st.integers(min_value=0, max_value=10**6)
texts = st.text(max_size=40)
TASK = TaskMessage(run=RUN, attempt=3, group=7, key="samples/x", version_min=2, failures=1, crashes=2, issue=4)
PAYLOAD = TaskPayload(
    group=7,
    prompt="1+1=",
    prompt_tokens=(1, 2),
    samples=8,
    sampling={"temperature": 1.0},
    label="2",
    grader="exact",
)


@given(
    st.builds(
        Sample,
        group=numbers,
        sample=numbers,
        tokens=st.lists(numbers, max_size=8).map(tuple),
        response_length=numbers,
        response=texts,
        status=st.sampled_from(["completed", "truncated"]),
        reward=st.floats(allow_nan=False, allow_infinity=False),
        log_probs=st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False), max_size=8).map(tuple),
        loss_mask=st.none() | st.lists(st.integers(0, 1), max_size=8).map(tuple),
        versions=st.lists(numbers, min_size=1, max_size=3).map(tuple),
        worker=texts,
        finished_unix_seconds=st.floats(min_value=0, max_value=2e9),
        metadata=st.dictionaries(texts, st.integers() | texts, max_size=3),
    )
)
def test_a_sample_is_read_as_it_was_written(sample: Sample) -> None:
    assert protocol.decode(Sample, protocol.encode(sample)) == sample


@pytest.mark.parametrize(
    "body",
    [
        TASK,
        ResultMessage(run=RUN, attempt=3, group=7, sample=0, key="samples/x"),
        DeadLetter(run=RUN, attempt=3, group=7, key="samples/x", failures=3, reason="grader: no label"),
        Current(run=RUN, attempt=3, version=0, manifest=None),
        PAYLOAD,
    ],
    ids=lambda body: type(body).__name__,
)
def test_every_message_is_read_as_it_was_written(body: Any) -> None:
    assert protocol.decode(type(body), protocol.encode(body)) == body


def test_a_message_is_small_enough_for_any_queue() -> None:
    assert len(protocol.encode(TASK)) < 1024


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "TaskMessage"),
        ("[]", "TaskMessage"),
        ("{}", "TaskMessage"),
        (json.dumps(json.loads(protocol.encode(TASK)) | {"protocol": 1}), "same release"),
        (protocol.encode(TASK).replace('"group"', '"groups"'), "groups"),
        (json.dumps({"protocol": protocol.REVISED[TaskMessage], "run": RUN}), "attempt"),
    ],
    ids=["nothing", "a list", "no protocol", "another protocol", "unknown field", "missing fields"],
)
def test_what_is_no_message_is_refused_with_its_reason(text: str, named: str) -> None:
    with pytest.raises(InputFault, match=named):
        protocol.decode(TaskMessage, text)


@pytest.mark.parametrize(
    ("kind", "body", "name", "value"),
    [
        (TaskMessage, TASK, "version_min", "2"),
        (TaskMessage, TASK, "group", 7.0),
        (TaskMessage, TASK, "failures", True),
        (TaskMessage, TASK, "key", None),
        (TaskPayload, PAYLOAD, "samples", "8"),
        (TaskPayload, PAYLOAD, "prompt_tokens", "12"),
        (TaskPayload, PAYLOAD, "sampling", [1]),
        (TaskPayload, PAYLOAD, "grader", 5),
        (TaskPayload, PAYLOAD, "label", 2),
        (Current, Current(run=RUN, attempt=3, version=0, manifest=None), "attempt", None),
    ],
)
def test_a_field_of_another_type_is_named(kind: type[Any], body: Any, name: str, value: Any) -> None:
    written = json.loads(protocol.encode(body)) | {name: value}
    with pytest.raises(InputFault, match=f"its {name} is of type {type(value).__name__}".replace("list", "tuple")):
        protocol.decode(kind, json.dumps(written))


in_group = st.integers(min_value=0, max_value=9999)


parts = st.tuples(numbers, in_group, st.integers(0, 10**9))


@given(parts, parts)
def test_no_request_id_begins_another(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    """SGLang aborts by prefix."""
    attempt = Attempt(run=RUN, number=1)
    first, second = protocol.request_id(attempt, *one), protocol.request_id(attempt, *other)
    assert first == second or not second.startswith(first)


@given(st.lists(numbers, min_size=2, max_size=2))
def test_keys_are_in_the_order_of_their_numbers(pair: list[int]) -> None:
    low, high = sorted(pair)
    attempt = Attempt(run=RUN, number=1)
    assert protocol.task_key(attempt, low) <= protocol.task_key(attempt, high)
    assert protocol.version_prefix("weights/", attempt, low) <= protocol.version_prefix("weights/", attempt, high)


def test_a_samples_key_tells_its_number() -> None:
    key = protocol.sample_key(Attempt(run=RUN, number=2), 11, 5)
    assert protocol.sample_of(Attempt(run=RUN, number=2), key) == (11, 5)
    assert key.startswith(protocol.group_prefix(Attempt(run=RUN, number=2), 11))


@pytest.mark.parametrize(
    "name",
    ["", "notes.txt", "11/0005.json", "0000000011/5.json", "0000000011/0005", "0000000011/0005.json/x", "x/0005.json"],
)
def test_a_key_that_is_written_otherwise_is_no_samples(name: str) -> None:
    attempt = Attempt(run=RUN, number=2)
    assert protocol.sample_of(attempt, protocol.stored_prefix(attempt) + name) is None
