"""Safe YAML → plain values with the line of every key. What a person cannot have meant is refused before it costs time:
tags, aliases that multiply, endless nesting, numbers of thousands of digits, a key written twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import category

import yaml

from infra.config.faults import EnvironmentFault, Finding

Key = tuple[str | int, ...]

MAX_CHARACTERS = 1_000_000
MAX_VALUES = 20_000
"""Counted once for each place where an alias puts it."""
MAX_DEPTH = 40
MAX_NUMBER_CHARACTERS = 40
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_CONVERTED = {*_NUMBERS, "tag:yaml.org,2002:timestamp"}


class Document(NamedTuple):
    value: Any
    lines: Mapping[str, int]
    """By dotted key; the whole document is "".
    """
    faults: tuple[Finding, ...]
    """Keys that are written twice: YAML itself keeps the last in silence."""


def is_file(path: Path) -> bool:
    """`path.is_file()`, where a name that no file can have is no file.

    Raises EnvironmentFault where a folder on the way may not be read.
    """
    try:
        return path.is_file()
    except PermissionError as error:
        raise EnvironmentFault(str(path), (unreadable(error),)) from error
    except OSError:
        return False


def read(path: Path) -> str:
    """The text of a file. Raises EnvironmentFault where it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EnvironmentFault(str(path), (_fault(f"byte {error.start} is not UTF-8", None),)) from error
    except OSError as error:
        raise EnvironmentFault(str(path), (unreadable(error),)) from error


def unreadable(error: OSError) -> Finding:
    return Finding(
        rule="file.readable",
        key="file",
        value=error.strerror or type(error).__name__,
        why="it cannot be read",
        fix="Name a file that this user may read.",
    )


def parse(text: str, path: str) -> Document:
    """The one document of a text. `path` only names it in messages.

    Raises EnvironmentFault for what is not one plain YAML document of reasonable size.
    """

    def refuse(problem: str, line: int | None) -> EnvironmentFault:
        return EnvironmentFault(path, (_fault(problem, line),))

    if len(text) > MAX_CHARACTERS:
        raise refuse(f"has {len(text)} characters, more than {MAX_CHARACTERS}", None)
    try:
        _check_events(text, refuse)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        lines, faults = _walk(node, path, refuse)
        value = None if node is None else yaml.SafeLoader("").construct_document(node)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise refuse(f"character U+{ord(text[error.position]):04X} does not belong in a text", line) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise refuse(error.problem or "not YAML", mark.line + 1 if mark else None) from error
    return Document(value, lines, faults)


def dotted(key: Key) -> str:
    return ".".join(str(step) for step in key)


def line_of(lines: Mapping[str, int], key: str) -> int | None:
    """Line of the dotted key, or of the nearest parent that stands in the file."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key)


_Refuse = Callable[[str, int | None], EnvironmentFault]


def _check_events(text: str, refuse: _Refuse) -> None:
    """Depth and tags, before anything recursive reads the text."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            raise refuse(f"the tag {event.tag.replace('tag:yaml.org,2002:', '!!')}", line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise refuse(f"is nested more than {MAX_DEPTH} deep", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _walk(node: yaml.Node | None, path: str, refuse: _Refuse) -> tuple[Mapping[str, int], tuple[Finding, ...]]:
    """The line of every key, and keys that are written twice."""
    lines: dict[str, int] = {}
    twice: list[Finding] = []
    unusable: list[Finding] = []
    scalars = yaml.SafeLoader("")
    seen_values = 0

    def visit(value: yaml.Node, at: Key, above: tuple[yaml.Node, ...] = ()) -> None:
        nonlocal seen_values
        line = value.start_mark.line + 1
        lines.setdefault(dotted(at), line)
        seen_values += 1
        if value in above:
            raise refuse(f"{dotted(at)} contains itself", line)
        if seen_values > MAX_VALUES:
            raise refuse(f"holds more than {MAX_VALUES} values, with each alias written out", None)
        if isinstance(value, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, child in value.value:
                key_line = key_node.start_mark.line + 1
                if not isinstance(key_node, yaml.ScalarNode):
                    raise refuse("a key is a list or a mapping", key_line)
                key = str(key_node.value)
                if key in seen:
                    twice.append(_twice(dotted((*at, key)), seen[key], key_line))
                visit_scalar(key_node, (*at, key))
                seen[key] = key_line
                lines[dotted((*at, key))] = key_line
                visit(child, (*at, key), (*above, value))
        elif isinstance(value, yaml.SequenceNode):
            for index, child in enumerate(value.value):
                visit(child, (*at, index), (*above, value))
        elif isinstance(value, yaml.ScalarNode):
            visit_scalar(value, at)

    def visit_scalar(value: yaml.ScalarNode, at: Key) -> None:
        if any(category(letter) in ("Cc", "Cs") and letter not in "\t\n\r" for letter in value.value):
            why = "holds a control character, or half of one beyond U+FFFF"
        elif value.tag not in _CONVERTED:
            return
        elif value.tag in _NUMBERS and len(value.value) > MAX_NUMBER_CHARACTERS:
            why = f"is a number of more than {MAX_NUMBER_CHARACTERS} characters"
        else:
            try:
                scalars.construct_object(value)
            except ValueError as error:
                why = f"looks like a number or a time, and is none: {error}"
            else:
                return
        line = value.start_mark.line + 1
        fix = "Write a shorter number, a time of the calendar, or text in quotes without such characters."
        unusable.append(
            Finding(rule="file.value", key=dotted(at) or "file", value=value.value, why=why, fix=fix, line=line)
        )

    if node is not None:
        visit(node, ())
    if unusable:
        raise EnvironmentFault(path, (*twice, *unusable))
    return lines, tuple(twice)


def _twice(key: str, first: int, second: int) -> Finding:
    return Finding(
        rule="file.duplicate-key",
        key=key,
        value=f"written on lines {first} and {second}",
        why="YAML would keep the last one in silence",
        fix="Keep one of the two.",
        line=second,
    )


def _fault(problem: str, line: int | None) -> Finding:
    return Finding(
        rule="file.yaml",
        key="file",
        value=problem,
        why="it is not one plain YAML document",
        fix="Correct the YAML; tags such as !!python are never loaded.",
        line=line,
    )
