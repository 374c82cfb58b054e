"""A small part of CEL, enough for the admission policy: parse an expression, evaluate it on plain data.

Literals, lists, `{}`, field selection, `has`, `dyn`, `all`, `matches`, `!`, `-`, `+`, comparison, `in`, `&&`, `||` and
the ternary. Anything else raises SyntaxError; a missing field, or an operator on the wrong types, raises EvalError,
which a policy with failurePolicy Fail turns into a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Scope = Mapping[str, Any]
Node = Callable[[Scope], Any]

_TOKEN = re.compile(r"\s*(?:(?P<string>'[^'\\]*')|(?P<int>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<op>&&|\|\||==|!=|>=|<=|.))")
_MISSING = object()


class EvalError(Exception):
    """What CEL calls an error value."""


def evaluate(expression: str, scope: Scope) -> Any:
    """The value of the expression; names are looked up in `scope`."""
    return compiled(expression)(scope)


def compiled(expression: str) -> Node:
    """The expression as a function of its scope. SyntaxError for anything beyond the part that is known here."""
    parser = _Parser(expression)
    node = parser.ternary()
    parser.end()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        found = _TOKEN.finditer(text.strip())
        self.tokens = [(match.lastgroup or "", match.group(match.lastgroup or 0)) for match in found]
        self.at = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, *texts: str) -> str | None:
        kind, text = self.peek()
        if kind != "string" and text in texts:
            self.at += 1
            return text
        return None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise SyntaxError(f"expected {text!r} at {self.peek()}, token {self.at}")

    def end(self) -> None:
        if self.peek()[0] != "end":
            raise SyntaxError(f"unread from {self.peek()}, token {self.at}")

    def ternary(self) -> Node:
        condition = self.either()
        if not self.accept("?"):
            return condition
        then = self.either()
        self.expect(":")
        other = self.ternary()
        return lambda scope: then(scope) if _boolean(condition(scope)) else other(scope)

    def either(self) -> Node:
        terms = [self.both()]
        while self.accept("||"):
            terms.append(self.both())
        return terms[0] if len(terms) == 1 else lambda scope: _any(terms, scope, stop=True)

    def both(self) -> Node:
        terms = [self.relation()]
        while self.accept("&&"):
            terms.append(self.relation())
        return terms[0] if len(terms) == 1 else lambda scope: _any(terms, scope, stop=False)

    def relation(self) -> Node:
        left = self.sum()
        operator = self.accept("==", "!=", ">", "in")
        if operator is None:
            return left
        right = self.sum()
        return lambda scope: _related(operator, left(scope), right(scope))

    def sum(self) -> Node:
        terms = [self.unary()]
        while self.accept("+"):
            terms.append(self.unary())
        return terms[0] if len(terms) == 1 else lambda scope: _joined([term(scope) for term in terms])

    def unary(self) -> Node:
        if self.accept("!"):
            inner = self.unary()
            return lambda scope: not _boolean(inner(scope))
        if self.accept("-"):
            number = self.unary()
            return lambda scope: -number(scope)
        return self.member()

    def member(self) -> Node:
        node = self.primary()
        while self.accept("."):
            kind, name = self.take()
            if kind != "name":
                raise SyntaxError(f"{name!r} is no field")
            node = self.method(name, node) if self.accept("(") else _field(node, name)
        return node

    def method(self, name: str, target: Node) -> Node:
        if name == "all":
            _, variable = self.take()
            self.expect(",")
            body = self.ternary()
            self.expect(")")
            return lambda scope: _any(
                [lambda scope, item=item: body({**scope, variable: item}) for item in target(scope)], scope, stop=False
            )
        if name == "matches":
            pattern = self.ternary()
            self.expect(")")
            return lambda scope: _matches(_typed(target(scope), str), pattern(scope))
        raise SyntaxError(f"method {name} is not known here")

    def primary(self) -> Node:
        kind, text = self.take()
        if kind == "string":
            return lambda _: text[1:-1]
        if kind == "int":
            return lambda _: int(text)
        if text in ("true", "false"):
            return lambda _: text == "true"
        if text == "(":
            inner = self.ternary()
            self.expect(")")
            return inner
        if text == "[":
            items = [] if self.accept("]") else [self.ternary()]
            while items and not self.accept("]"):
                self.expect(",")
                items.append(self.ternary())
            return lambda scope: [item(scope) for item in items]
        if text == "{":
            self.expect("}")
            return lambda _: {}
        if kind != "name":
            raise SyntaxError(f"{text!r} at token {self.at}")
        if text in ("has", "dyn"):
            self.expect("(")
            inner = self.ternary()
            self.expect(")")
            return inner if text == "dyn" else _has(inner)
        return lambda scope: _get(scope, text)


def _field(node: Node, name: str) -> Node:
    def select(scope: Scope) -> Any:
        return _get(node(scope), name)

    select.parts = (node, name)  # type: ignore[attr-defined]
    return select


def _has(inner: Node) -> Node:
    """`has(a.b)`: whether b is there; a missing a is an error, as in CEL."""
    if not hasattr(inner, "parts"):
        raise SyntaxError("has() takes a field selection")
    holder, name = inner.parts
    return lambda scope: name in _typed(holder(scope), Mapping)


def _get(holder: Any, name: str) -> Any:
    value = _typed(holder, Mapping).get(name, _MISSING)
    if value is _MISSING:
        raise EvalError(f"no such field: {name}")
    return value


def _matches(text: str, pattern: str) -> bool:
    """RE2's `$` is the end of the text; Python's also stands before a last newline."""
    return re.search(re.sub(r"\$$", r"\\Z", pattern), text) is not None


def _any(terms: list[Node], scope: Scope, *, stop: bool) -> bool:
    """`||` for stop True, `&&` for False: one term that decides wins over errors in the others."""
    error: EvalError | None = None
    for term in terms:
        try:
            if _boolean(term(scope)) is stop:
                return stop
        except EvalError as raised:
            error = raised
    if error:
        raise error
    return not stop


def _related(operator: str, left: Any, right: Any) -> bool:
    if operator == "in":
        return left in right
    if operator == ">":
        return _typed(left, int) > _typed(right, int)
    return (left == right) is (operator == "==")


def _joined(values: list[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = result + _typed(value, type(result))
    return result


def _boolean(value: Any) -> bool:
    return bool(_typed(value, bool))


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise EvalError(f"{value!r} is not {kind.__name__}")
    return value
