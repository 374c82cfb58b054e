"""Compare what a template asked for with what a service shows. Every asked-for value must be there; AWS may show more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

MISSING = "<not there>"

# Maps whose keys are the user's: one more than asked for is as wrong as one less.
CLOSED_MAPS = frozenset({"Labels", "Tags"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that is not what the template asked for. path: 'A.B[0].C' below the resource's properties."""

    path: str
    expected: Any
    actual: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """checked: number of single values compared."""

    checked: int
    differences: tuple[Difference, ...]


def compare(expected: Any, actual: Any, path: str) -> Comparison:
    """Objects: each expected key; others are ignored, except in maps of the user's own (`CLOSED_MAPS`). Lists: same length,
    order free. Policy documents may be text or objects. Scalars by value, so 'true' is True and '5' is 5.
    """
    checked, differences = 0, []
    for leaf in _walk(expected, actual, path):
        checked += 1
        if leaf is not None:
            differences.append(leaf)
    return Comparison(checked, tuple(differences))


def _walk(expected: Any, actual: Any, path: str) -> Iterator[Difference | None]:
    expected, actual = _parsed_alike(expected, actual)
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if not expected:
            yield None
        for key, value in expected.items():
            yield from _walk(value, actual.get(key, MISSING), f"{path}.{key}")
        if path in CLOSED_MAPS:
            yield from (
                Difference(f"{path}.{key}", MISSING, value) for key, value in actual.items() if key not in expected
            )
        return
    if isinstance(expected, list) and isinstance(actual, list):
        yield from _walk_list(expected, actual, path)
        return
    yield None if _same_scalar(expected, actual) else Difference(path, expected, actual)


def _walk_list(expected: list[Any], actual: list[Any], path: str) -> Iterator[Difference | None]:
    if len(expected) != len(actual):
        yield Difference(path, expected, actual)
        return
    if not expected:
        yield None
        return
    left = list(actual)
    unmatched = []
    for index, item in enumerate(expected):
        leaves: list[Difference | None] = []
        for candidate in left:
            leaves = list(_walk(item, candidate, f"{path}[{index}]"))
            if not any(leaves):
                left.remove(candidate)
                yield from leaves
                break
        else:
            unmatched.append((index, item))
    for (index, item), candidate in zip(unmatched, left, strict=True):
        yield from _walk(item, candidate, f"{path}[{index}]")


def _parsed_alike(expected: Any, actual: Any) -> tuple[Any, Any]:
    """JSON text on one side, and an object or JSON text on the other, both as objects."""
    if isinstance(expected, str) and isinstance(actual, str) and expected == actual:
        return expected, actual
    sides = [_json(expected), _json(actual)]
    return (sides[0], sides[1]) if all(isinstance(side, (Mapping, list)) for side in sides) else (expected, actual)


def _json(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _same_scalar(expected: Any, actual: Any) -> bool:
    if isinstance(expected, (Mapping, list)) or isinstance(actual, (Mapping, list)):
        return False
    if isinstance(actual, datetime):
        return _same_moment(expected, actual)
    return bool(_plain(expected) == _plain(actual))


def _same_moment(expected: Any, actual: datetime) -> bool:
    """Whether ISO 8601 text names the moment that an API returned."""
    try:
        asked = datetime.fromisoformat(str(expected))
    except ValueError:
        return False
    return (asked if asked.tzinfo else asked.replace(tzinfo=UTC)) == actual


def _plain(value: Any) -> Any:
    """Template and API spell the same scalar as text, number or boolean: 'true' and True, '5' and 5 and 5.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str) and value in ("True", "False"):
        return value.lower()
    return value.removesuffix(".0") if isinstance(value, str) and _is_number(value) else value


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).removeprefix("-").isdecimal()
