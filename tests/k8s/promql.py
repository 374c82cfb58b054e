"""A strict reader of the PromQL that this package writes: it knows less than Prometheus, and refuses the rest.

`read(expression)` returns the selectors and grouping labels of a well-formed expression, or raises SyntaxError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?(?![a-z0-9.]))
    | (?P<duration>(?:\d+(?:ms|[smhdw]))+)
    | (?P<string>"[^"\\\n]*")
    | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    | (?P<operator>=~|!~|==|!=|<=|>=|[-+*/<>=(){}\[\],])
    )""",
    re.VERBOSE,
)
AGGREGATIONS = frozenset({"sum", "min", "max", "avg", "count"})
RANGE_FUNCTIONS = frozenset({"rate", "increase", "avg_over_time", "max_over_time"})
INSTANT_FUNCTIONS = frozenset({"abs", "time", "clamp_min"})
COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")
LEVELS: tuple[tuple[str, ...], ...] = (("or",), ("and", "unless"), COMPARISONS, ("+", "-"), ("*", "/"))
"""Binary operators, those that bind loosest first."""


@dataclass(slots=True)
class Read:
    """What an expression names: (metric, labels matched, in a counter's function) and the labels it groups by."""

    selectors: list[tuple[str, tuple[str, ...], bool]] = field(default_factory=list)
    grouped: list[str] = field(default_factory=list)


def tokens(expression: str) -> list[tuple[str, str]]:
    """(kind, text) of each token. SyntaxError for anything else."""
    found, position = [], 0
    while expression[position:].strip():
        match = TOKEN.match(expression, position)
        if match is None:
            raise SyntaxError(f"{expression!r}: cannot read {expression[position:]!r}")
        kind = match.lastgroup or ""
        found.append((kind, match[kind]))
        position = match.end()
    return found


def read(expression: str) -> Read:
    """Reads one whole expression."""
    reader = _Reader(expression, tokens(expression))
    reader.binary(0)
    if reader.left:
        raise SyntaxError(f"{expression!r}: {reader.left[0][1]!r} is too much")
    return reader.read


class _Reader:
    """Recursive descent over the tokens; one is used up for each expression."""

    def __init__(self, expression: str, left: list[tuple[str, str]]) -> None:
        self.expression, self.left, self.read = expression, left, Read()

    def binary(self, level: int) -> None:
        if level == len(LEVELS):
            self.operand()
            return
        self.binary(level + 1)
        while self.peek() in LEVELS[level]:
            self.take()
            if self.peek() in ("on", "ignoring"):
                self.take()
                self.labels()
            self.binary(level + 1)

    def operand(self) -> None:
        kind, text = self.take()
        if kind == "number":
            return
        if text == "(":
            self.binary(0)
            self.take(")")
        elif kind != "name":
            self.fail(text)
        elif text in AGGREGATIONS:
            if self.peek() in ("by", "without"):
                self.take()
                self.labels()
            self.take("(")
            self.binary(0)
            self.take(")")
        elif text in RANGE_FUNCTIONS:
            self.take("(")
            self.selector(self.take_kind("name"), counted=text in ("rate", "increase"))
            self.take("[")
            self.take_kind("duration")
            self.take("]")
            self.take(")")
        elif text in INSTANT_FUNCTIONS:
            self.take("(")
            if text != "time":
                self.binary(0)
            self.take(")")
        elif self.peek() == "(":
            self.fail(f"{text}(")
        else:
            self.selector(text, counted=False)

    def selector(self, name: str, *, counted: bool) -> None:
        matched = []
        if self.peek() == "{":
            self.take()
            while self.peek() != "}":
                matched.append(self.take_kind("name"))
                if self.take()[1] not in ("=", "!=", "=~", "!~"):
                    self.fail(matched[-1])
                self.take_kind("string")
                if self.peek() != "}":
                    self.take(",")
            self.take("}")
        self.read.selectors.append((name, tuple(matched), counted))

    def labels(self) -> None:
        self.take("(")
        while self.peek() != ")":
            self.read.grouped.append(self.take_kind("name"))
            if self.peek() != ")":
                self.take(",")
        self.take(")")

    def peek(self) -> str:
        return self.left[0][1] if self.left else ""

    def take(self, wanted: str | None = None) -> tuple[str, str]:
        if not self.left or (wanted is not None and self.peek() != wanted):
            self.fail(self.peek() or "the end")
        return self.left.pop(0)

    def take_kind(self, kind: str) -> str:
        found, text = self.take()
        if found != kind:
            self.fail(text)
        return text

    def fail(self, at: str) -> None:
        raise SyntaxError(f"{self.expression!r}: unexpected {at!r}")
