"""What counts as the same value in a template and in a service's answer, and what does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local import compare

_values = st.recursive(
    st.one_of(st.booleans(), st.integers(-999, 999), st.text("abc-", max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (True, "true"),
        ("5", 5),
        (10, 10.0),
        ("100", "100.0"),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([{"a": 1}, {"a": 2}], [{"a": 2, "default": 0}, {"a": 1}]),
        ({"Version": "1"}, '{"Version": "1"}'),
        ('{"a":[1]}', '{ "a": [1] }'),
        ("2027-01-01T00:00:00Z", datetime(2027, 1, 1, tzinfo=UTC)),
        ([], []),
    ],
)
def test_same(expected: Any, actual: Any) -> None:
    assert compare.compare(expected, actual, "P").differences == ()


@pytest.mark.parametrize(
    ("expected", "actual", "paths"),
    [
        (True, "false", ["P"]),
        ("005", 5, ["P"]),
        ({"a": {"b": 1}}, {"a": {}}, ["P.a.b"]),
        ([1, 2], [1], ["P"]),
        ([1], [1, 2], ["P"]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], ["P[1].a"]),
        ({"a": 1}, None, ["P"]),
        ("x", compare.MISSING, ["P"]),
        ("2027-01-01T00:00:00Z", datetime(2027, 1, 2, tzinfo=UTC), ["P"]),
        ([[1, 2], [1, 3]], [[1, 2], [1, 2]], ["P[1][1]"]),
    ],
)
def test_different(expected: Any, actual: Any, paths: list[str]) -> None:
    assert [one.path for one in compare.compare(expected, actual, "P").differences] == paths


def test_one_label_too_many_is_a_difference() -> None:
    assert [one.path for one in compare.compare({"a": "1"}, {"a": "1", "b": "2"}, "Labels").differences] == ["Labels.b"]


@given(_values)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    result = compare.compare(value, value, "P")
    assert result.differences == ()
    assert result.checked > 0


@given(_values.filter(lambda value: value != "absent"))
def test_a_missing_value_is_always_a_difference(value: Any) -> None:
    assert compare.compare({"a": value}, {"b": value}, "P").differences != ()


@given(st.lists(st.integers(), unique=True, min_size=2, max_size=5), st.randoms())
def test_order_is_nothing_and_multiplicity_is(items: list[int], random: Any) -> None:
    shuffled = random.sample(items, len(items))
    assert compare.compare(items, shuffled, "P").differences == ()
    assert compare.compare(items, [*shuffled[:-1], shuffled[0]], "P").differences != ()
