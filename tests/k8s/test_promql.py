"""The reader accepts what Prometheus does, as far as it goes, and nothing broken."""

from __future__ import annotations

import pytest

from tests.k8s.promql import read


@pytest.mark.parametrize(
    ("expression", "selectors", "grouped"),
    [
        ("max(a) > 3", [("a", (), False)], []),
        ('sum by (node) (rate(a{pool="x",b=~"y.*"}[5m])) == 0', [("a", ("pool", "b"), True)], ["node"]),
        ("a and on (pod) b == 1", [("a", (), False), ("b", (), False)], ["pod"]),
        ("time() - max(x:y) > 3600", [("x:y", (), False)], []),
        ("a > 0 unless on () sum(b) > 0", [("a", (), False), ("b", (), False)], []),
        ("(rate(a[1h30m]) + b) * 2.5", [("a", (), True), ("b", (), False)], []),
    ],
)
def test_well_formed_expressions_are_read(
    expression: str, selectors: list[tuple[str, tuple[str, ...], bool]], grouped: list[str]
) -> None:
    found = read(expression)
    assert (found.selectors, found.grouped) == (selectors, grouped)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "sum(a",
        "sum(a))",
        "rate(a)",
        "rate(a[5])",
        "rate(sum(a)[5m])",
        'a{pool="x}',
        "a{pool=x}",
        'a{pool"x"}',
        "a >",
        "a b",
        "sum by node (a)",
        "no_such_function(a)",
        "a[5m]",
        "a =~ 1",
        "a; b",
    ],
)
def test_broken_ones_are_refused(expression: str) -> None:
    with pytest.raises(SyntaxError):
        read(expression)
