"""What pydantic found wrong with a value, in the words of this package: a full clause, without types of Python."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from pydantic_core import ErrorDetails

from infra.config.forms import WORDS

_NOUNS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "datetime_type": "a time such as 2026-12-07T11:30:00Z",
    "datetime_parsing": "a time such as 2026-12-07T11:30:00Z",
    "datetime_from_date_parsing": "a time such as 2026-12-07T11:30:00Z",
}


def clause(details: Sequence[ErrorDetails]) -> str:
    """Why one value does not fit: `details` are what each kind of value that may stand there says of it."""
    special = next((said for detail in details if (said := _said(detail)) is not None), None)
    if special is not None:
        return special
    nouns = dict.fromkeys(noun for detail in details if (noun := _noun(detail)) is not None)
    if not nouns:
        message = details[0]["msg"]
        text = message[:1].lower() + message[1:]
        return f"does not fit: {text if text.isprintable() else repr(text)[1:-1]}"
    if list(nouns) == ["text"] and isinstance(details[0]["input"], int | float | date):
        return "is not text: YAML reads it as another kind of value unless it stands in quotes"
    *others, last = nouns
    return f"is not {', '.join(others)}{' or ' if others else ''}{last}"


def _noun(detail: ErrorDetails) -> str | None:
    if detail["type"] == "literal_error":
        return str(detail["ctx"]["expected"])
    if detail["type"] == "string_pattern_mismatch":
        return WORDS.get(detail["ctx"]["pattern"])
    return _NOUNS.get(detail["type"])


def _said(detail: ErrorDetails) -> str | None:
    """What one complaint says that needs no other beside it."""
    kind, about = detail["type"], detail.get("ctx", {})
    match kind:
        case "finite_number":
            return "is not a finite number"
        case "greater_than_equal":
            return f"is below {about['ge']}"
        case "greater_than":
            return f"is not above {about['gt']}"
        case "less_than_equal":
            return f"is above {about['le']:g}" if isinstance(about["le"], float) else f"is above {about['le']}"
        case "too_short":
            return "is an empty list"
        case "string_too_long":
            return f"has more than {about['max_length']} characters"
        case "string_too_short":
            return f"has fewer than {about['min_length']} characters"
        case "timezone_aware":
            return "has no time zone: a Z at its end means UTC"
        case "union_tag_invalid":
            return f"is not one of {about['expected_tags']}"
        case _:
            return None
