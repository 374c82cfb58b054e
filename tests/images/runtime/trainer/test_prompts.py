"""A position means the same prompt for ever, and a bad line is refused with its number."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime import store
from moerl_runtime.faults import InputFault
from moerl_runtime.trainer.prompts import Columns, Prompts, Row, fingerprint, parse, read, renderer
from tests.images.runtime.trainer.fakes import Bed, Tokenizer

COLUMNS = Columns(prompt="prompt", label="label", tools="tools")
RENDER = renderer(Tokenizer(), chat_template=False)


def prompts(count: int, *, shuffle: bool = True, tokens_max: int | None = None) -> Prompts:
    rows = [Row(prompt=f"question number {number}", label=str(number)) for number in range(count)]
    return Prompts(
        rows,
        fingerprint="f",
        render=RENDER,
        samples=4,
        sampling={"temperature": 1.0},
        seed=7,
        shuffle=shuffle,
        tokens_max=tokens_max,
    )


@given(count=st.integers(1, 20), epochs=st.integers(1, 4))
def test_every_epoch_asks_every_prompt_once(count: int, epochs: int) -> None:
    found = prompts(count)
    for epoch in range(epochs):
        labels = [found.row(epoch * count + offset).label for offset in range(count)]
        assert sorted(labels, key=str) == sorted((str(number) for number in range(count)), key=str)


def test_epochs_are_shuffled_as_miles_and_slime_shuffle_theirs() -> None:
    """Their sources seed the global generator with seed + epoch and shuffle a list of numbers."""
    found = prompts(8)
    for epoch in range(3):
        order = list(range(8))
        random.seed(7 + epoch)
        random.shuffle(order)
        assert [found.row(epoch * 8 + offset).label for offset in range(8)] == [str(number) for number in order]


def test_without_shuffling_prompts_come_in_the_order_of_the_file() -> None:
    assert [prompts(3, shuffle=False).row(position).label for position in range(5)] == ["0", "1", "2", "0", "1"]


def test_a_task_holds_text_tokens_label_and_grader() -> None:
    rows = parse(
        b'{"prompt": "two words", "label": 3, "metadata": {"source": "x"}}\n\n'
        b'{"prompt": "a", "label": "l", "grader": "environment:shell"}\n',
        COLUMNS,
    )
    found = Prompts(rows, fingerprint="f", render=RENDER, samples=2, sampling={"top_p": 0.9}, shuffle=False)
    task = found.payload(2, group=5)
    assert task is not None
    assert (task.group, task.prompt, task.prompt_tokens, task.samples) == (5, "two words", (3, 5), 2)
    assert (task.label, task.grader, task.metadata, task.sampling) == ("3", "exact", {"source": "x"}, {"top_p": 0.9})
    other = found.payload(1, group=6)
    assert other is not None
    assert other.grader == "environment:shell"


@pytest.mark.parametrize(
    ("written", "tools"),
    [
        ({}, None),
        ({"tools": None}, None),
        ({"tools": ""}, None),
        ({"tools": []}, None),
        ({"tools": [{"name": "x"}]}, ({"name": "x"},)),
        ({"tools": '[{"name": "x"}]'}, ({"name": "x"},)),
    ],
)
def test_tools_are_a_list_or_a_text_that_has_one(written: dict[str, object], tools: object) -> None:
    (row,) = parse(json.dumps({"prompt": "a"} | written).encode(), COLUMNS)
    assert row.tools == tools


def test_a_prompt_that_is_too_long_or_empty_is_no_task() -> None:
    assert prompts(1, tokens_max=2).payload(0, 0) is None
    assert prompts(1, tokens_max=3).payload(0, 0) is not None
    empty = Prompts([Row(prompt="", label=None)], fingerprint="f", render=RENDER, samples=1, sampling={})
    assert empty.payload(0, 0) is None


def test_messages_go_through_the_chat_template_and_nothing_else_does() -> None:
    chat = renderer(Tokenizer(), chat_template=True)
    assert chat("hello", None)[0] == "<user> hello <assistant>"
    messages = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
    assert chat(messages, None)[0] == "<system> be brief <user> hi <assistant>"
    assert RENDER("hello", None) == ("hello", (5,))
    with pytest.raises(InputFault, match="apply-chat-template"):
        RENDER(messages, None)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "has no 'prompt'"),
        ('{"text": 1}', "has no 'prompt'"),
        ('{"prompt": 3}', "neither"),
        ("[]", "has no"),
        ('{"prompt": "a", "metadata": [1]}', "'list': is no object"),
        ('{"prompt": "a", "grader": 5}', "5: is no name of a grader"),
        ('{"prompt": "a", "tools": "{"}', "is no JSON"),
        ('{"prompt": "a", "tools": {"name": "x"}}', "'dict': is no list of tools"),
    ],
)
def test_a_bad_line_is_named(line: str, what: str) -> None:
    with pytest.raises(InputFault, match="line 2") as caught:
        parse(f'{{"prompt": "a"}}\n{line}\n'.encode(), COLUMNS)
    assert what in str(caught.value)


def test_a_file_without_prompts_is_refused() -> None:
    with pytest.raises(InputFault, match="holds no prompt"):
        prompts(0)


def test_prompts_come_from_a_bucket_or_a_path(aws: Bed, tmp_path: Path) -> None:
    body = json.dumps({"prompt": "a"}).encode()
    store.put(aws.s3, aws.bucket, "models/prompts.jsonl", body)
    (tmp_path / "p.jsonl").write_bytes(body)
    assert read(f"s3://{aws.bucket}/models/prompts.jsonl", aws.s3) == read(str(tmp_path / "p.jsonl"), aws.s3) == body
    for missing in (f"s3://{aws.bucket}/models/none.jsonl", str(tmp_path / "none.jsonl")):
        with pytest.raises(InputFault, match="prompt-data"):
            read(missing, aws.s3)
    assert fingerprint(body) != fingerprint(body + b"\n")
