"""A small reading of two AWS languages, so that tests can send an event through rules and metric filters.

EventBridge patterns: exact values, prefix, wildcard, anything-but. CloudWatch Logs JSON filter patterns: comparisons of
strings with `=`, a trailing `*`, joined by one kind of `&&` or `||` in each pair of parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from .resources import Template, properties

COMPARISON = re.compile(r'\(?\s*\$\.(?P<path>[\w.\-\[\]]+)\s*=\s*"(?P<value>[^"]*)"\s*\)?')


def counted(template: Template, event: Mapping[str, Any]) -> set[str]:
    """Names of the metrics that count the event: some rule passes it to the log, and the metric's filter matches."""
    if not any(passes(rule["EventPattern"], event) for rule in properties(template, "AWS::Events::Rule")):
        return set()
    return {
        found["MetricTransformations"][0]["MetricName"]
        for found in properties(template, "AWS::Logs::MetricFilter")
        if selects(flat(found["FilterPattern"]), event)
    }


def passes(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    for key, wanted in pattern.items():
        value = event.get(key)
        if isinstance(wanted, Mapping):
            if not isinstance(value, Mapping) or not passes(wanted, value):
                return False
        elif not any(_matches(one, value) for one in wanted):
            return False
    return True


def selects(pattern: str, event: Mapping[str, Any]) -> bool:
    body = pattern.strip().removeprefix("{").removesuffix("}")
    text = COMPARISON.sub(lambda found: f" {fnmatchcase(str(_at(event, found['path'])), found['value'])} ", body)
    text = text.replace("&&", "and").replace("||", "or")
    assert re.fullmatch(r"(True|False|and|or|[\s()])+", text), f"not understood: {pattern}"
    return bool(eval(text, {}))  # noqa: S307 - nothing but True, False, and, or and parentheses is left


def flat(value: Any) -> str:
    """A joined string with each reference to another stack written as that stack's name."""
    if isinstance(value, str):
        return value
    if "Fn::GetStackOutput" in value:
        return str(value["Fn::GetStackOutput"]["StackName"])
    return "".join(flat(part) for part in value["Fn::Join"][1])


def _matches(wanted: Any, value: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return bool(wanted == value)
    ((operator, operand),) = wanted.items()
    if operator == "anything-but":
        return not _matches(operand, value)
    if operator == "prefix":
        return str(value).startswith(flat(operand))
    if operator == "wildcard":
        return fnmatchcase(str(value), operand)
    raise AssertionError(f"not understood: {wanted}")


def _at(event: Any, path: str) -> Any:
    for step in re.findall(r"[\w\-]+|\[\d+\]", path):
        try:
            event = event[int(step[1:-1])] if step.startswith("[") else event[step]
        except (KeyError, IndexError, TypeError):
            return ""
    return event
