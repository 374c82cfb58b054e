"""Replies are read strictly: what is not understood is no sample."""

from __future__ import annotations

from typing import Any

import pytest

from moerl_runtime.engine.answers import Answer, MalformedAnswer, message_of, read


def document(**changes: Any) -> dict[str, Any]:
    about: dict[str, Any] = {
        "finish_reason": {"type": "stop", "matched": 2},
        "weight_version": "7",
        "output_token_logprobs": [[-0.5, 11, None], [-0.25, 2, None]],
    }
    top = {"text": "x", "output_ids": [11, 2], "meta_info": about}
    for name, value in changes.items():
        holder = top if name in top else about
        if value is ...:
            del holder[name]
        else:
            holder[name] = value
    return top


def test_spans_are_taken_in_order_and_once() -> None:
    spans = [{"version": version, "start": 0, "end": 1} for version in ("3", "4", "3")]
    answer = read(document(weight_versions=spans))
    assert (answer.tags, answer.spans) == (("3", "4"), True)


def test_without_spans_there_is_the_last_tag_alone() -> None:
    answer = read(document())
    assert (answer.tags, answer.spans) == (("7",), False)


def test_a_queued_abort_needs_nothing_but_its_reason() -> None:
    assert read({"meta_info": {"finish_reason": {"type": "abort"}}}) == Answer(ending="aborted")


@pytest.mark.parametrize(
    "changes",
    [
        {"finish_reason": None},
        {"finish_reason": {"type": "surprise"}},
        {"output_token_logprobs": [[-0.5, 11, None]]},
        {"output_token_logprobs": [[None, 11, None], [-0.1, 2, None]]},
        {"output_token_logprobs": [[float("nan"), 11, None], [-0.1, 2, None]]},
        {"output_ids": [1.5, 2]},
        {"output_ids": ...},
        {"text": ...},
        {"weight_version": ...},
        {"meta_info": ...},
    ],
)
def test_anything_else_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        read(document(**changes))


@pytest.mark.parametrize("whole", [None, [], "text", {"meta_info": []}])
def test_so_is_what_is_no_reply_at_all(whole: Any) -> None:
    with pytest.raises(MalformedAnswer):
        read(whole)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"object": "error", "message": "first", "code": 400}, "first"),
        ({"error": {"message": "second"}}, "second"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        (None, "raw"),
        ({}, "raw"),
    ],
)
def test_both_shapes_of_errors_are_read(found: Any, message: str) -> None:
    assert message_of(found, b"raw") == message
