"""The CEL evaluator: precedence, errors and what it refuses to guess."""

from __future__ import annotations

import pytest

from tests.k8s.cel import EvalError, evaluate

SCOPE = {"a": {"b": 1, "list": [1, 2], "text": "x\n"}, "yes": True}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("true || false && false", True),
        ("!false && a.b == 1", True),
        ("a.b > 1 ? 'more' : a.b == 1 ? 'one' : 'less'", "one"),
        ("1 + 2 == 3 && -1 != 1", True),
        ("has(a.b) && !has(a.c)", True),
        ("2 in a.list && !(3 in [1, 2])", True),
        ("a.list.all(x, x > 0)", True),
        ("a.list.all(x, x == 1)", False),
        ("[].all(x, false)", True),
        ("a.list + [3] == [1, 2, 3]", True),
        ("{} == {}", True),
        ("a.text.matches('^x$')", False),
        ("a.text.matches('x')", True),
        ("a.c == 1 || true", True),
        ("a.c == 1 && false", False),
        ("dyn(a.b) == 1", True),
    ],
)
def test_value(expression: str, value: object) -> None:
    assert evaluate(expression, SCOPE) == value


@pytest.mark.parametrize("expression", ["a.c", "has(a.c.d)", "a.b && yes", "a.c == 1 || false", "!a.b", "a.b ? 1 : 2"])
def test_error_is_no_value(expression: str) -> None:
    with pytest.raises(EvalError):
        evaluate(expression, SCOPE)


@pytest.mark.parametrize("expression", ["a.map(x, x)", "a.b)", "has(a)", "a.?b", "'x", "a[0]", "", "a b"])
def test_unknown_syntax_is_refused(expression: str) -> None:
    with pytest.raises(SyntaxError):
        evaluate(expression, SCOPE)
