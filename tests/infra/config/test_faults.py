"""A finding as people and pipelines read it."""

from __future__ import annotations

import pytest

from infra.config.faults import EnvironmentFault, Finding, count, shown

FOUND = Finding(rule="topic.name", key="a.b", value=("x", None, 3), why="cannot work", fix="Write y.", line=7)


def test_text_is_file_line_key_value_reason_remedy_and_rule() -> None:
    assert FOUND.text("e.yaml") == "e.yaml:7: a.b: [x, nothing, 3], cannot work. Write y. [topic.name]"
    nowhere = Finding(rule="r.n", key="k", value=None, why="is required", fix="Write it.")
    assert nowhere.text("e.yaml") == "e.yaml: k: nothing, is required. Write it. [r.n]"


def test_document_has_the_same_for_a_pipeline() -> None:
    assert FOUND.document() == {
        "rule": "topic.name",
        "severity": "fault",
        "key": "a.b",
        "value": "[x, nothing, 3]",
        "why": "cannot work",
        "fix": "Write y.",
        "line": 7,
    }


@pytest.mark.parametrize(("value", "shown"), [("a\nb", r"a\nb"), ("\x1b[2J", r"\x1b[2J"), ("größer", "größer")])
def test_control_characters_are_shown_and_never_sent_to_the_terminal(value, shown) -> None:
    text = Finding(rule="r.n", key=value, value=value, why=f"is no {value}", fix="Yes.").text("e.yaml")
    assert text == f"e.yaml: {shown}: {shown}, is no {shown}. Yes. [r.n]"


def test_the_exception_carries_every_finding_and_prints_the_faults() -> None:
    mild = Finding(rule="r.w", key="w", value=1, why="is odd", fix="Look.", severity="warning")
    refused = EnvironmentFault("e.yaml", (mild, FOUND))
    assert refused.findings == (mild, FOUND)
    assert str(refused) == FOUND.text("e.yaml")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "''"),
        ("2", "'2'"),
        ("true", "'true'"),
        ("1.35", "'1.35'"),
        (" x", "' x'"),
        ("spot", "spot"),
        (2, "2"),
        (True, "true"),
        (None, "nothing"),
        (["1", 1, ""], "['1', 1, '']"),
        ("x" * 100, "x" * 100),
        ("x" * 2_000_000, "x" * 100 + "... (2000000 characters)"),
    ],
)
def test_a_value_is_shown_as_the_file_has_it_and_never_whole_where_it_is_long(value, text) -> None:
    assert shown(value) == text


def test_a_long_key_is_cut_too() -> None:
    assert "k" * 101 not in Finding(rule="r.n", key="k" * 5000, value=1, why="is odd", fix="Look.").text("e.yaml")


def test_one_is_not_counted_in_the_plural() -> None:
    assert [count(number, "fault") for number in (0, 1, 2)] == ["0 faults", "1 fault", "2 faults"]
