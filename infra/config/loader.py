"""File → Environment, or every fault of the file at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from infra.catalog import CATALOG, Catalog
from infra.config.environment import Environment
from infra.config.faults import EnvironmentFault, Finding
from infra.config.pins import UNRESOLVED, Pins, load_pins, pins_path
from infra.config.rules import check

Key = tuple[str | int, ...]

ENVIRONMENTS = Path("environments")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that may be rendered, with its warnings."""

    path: str
    environment: Environment
    pins: Pins
    warnings: tuple[Finding, ...]


def locate(name_or_path: str, root: Path) -> Path:
    """The file behind ENV: a path, or a name under `root`/environments.

    Raises EnvironmentFault when neither is a file.
    """
    direct = Path(name_or_path)
    named = root / ENVIRONMENTS / f"{name_or_path}.yaml"
    for candidate in (direct, named):
        if candidate.is_file():
            return candidate
    known = sorted(file.stem for file in (root / ENVIRONMENTS).glob("*.yaml") if not file.stem.endswith(".lock"))
    raise EnvironmentFault(
        name_or_path,
        (
            Finding(
                rule="file.exists",
                key="ENV",
                value=name_or_path,
                why=f"is neither a file nor a name under {ENVIRONMENTS}/",
                fix=f"Write one of {', '.join(known)} or a path to a YAML file."
                if known
                else "Write a path to a file.",
            ),
        ),
    )


def load(path: Path, catalog: Catalog = CATALOG, *, pins: Pins | None = None) -> Loaded:
    """Read, type and judge one environment file; `pins` default to the lock file beside it.

    Raises EnvironmentFault carrying every finding when at least one is a fault.
    """
    pins = load_pins(pins_path(path)) if pins is None else pins
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise EnvironmentFault(str(path), (_not_yaml(f"byte {error.start} is not UTF-8", None),)) from error
    return load_text(text, str(path), catalog, pins=pins)


def load_text(text: str, path: str, catalog: Catalog = CATALOG, *, pins: Pins = UNRESOLVED) -> Loaded:
    """`load` for text already read; `path` only names it in messages."""
    parsed = _parse(text, path)
    environment, findings = _typed(parsed.document)
    if environment is not None:
        findings += check(environment, catalog, pins)
    located = tuple(replace(finding, line=_line(parsed.lines, finding.key)) for finding in findings)
    everything = (*parsed.faults, *located)
    if environment is None or any(finding.severity == "fault" for finding in everything):
        raise EnvironmentFault(path, everything)
    return Loaded(path, environment, pins, everything)


class _Parsed(NamedTuple):
    document: Any
    lines: Mapping[str, int]
    """By dotted key; the whole document is "".
    """
    faults: tuple[Finding, ...]


def _parse(text: str, path: str) -> _Parsed:
    """Safe YAML with the line of every key; a key written twice is a fault (YAML itself keeps the last in silence)."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        fault = _not_yaml(getattr(error, "problem", None) or str(error), mark.line + 1 if mark else None)
        raise EnvironmentFault(path, (fault,)) from error
    lines: dict[str, int] = {}
    faults: list[Finding] = []

    def walk(value: yaml.Node, at: Key, above: tuple[yaml.Node, ...] = ()) -> None:
        lines.setdefault(_dotted(at), value.start_mark.line + 1)
        if value in above:
            fault = _not_yaml(f"{_dotted(at)} contains itself", value.start_mark.line + 1)
            raise EnvironmentFault(path, (fault,))
        if isinstance(value, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key_node, child in value.value:
                key, line = str(key_node.value), key_node.start_mark.line + 1
                if key in seen:
                    faults.append(
                        Finding(
                            rule="file.duplicate-key",
                            key=_dotted((*at, key)),
                            value=f"written on lines {seen[key]} and {line}",
                            why="YAML would keep the last one in silence",
                            fix="Keep one of the two.",
                            line=line,
                        )
                    )
                seen[key] = line
                lines[_dotted((*at, key))] = line
                walk(child, (*at, key), (*above, value))
        elif isinstance(value, yaml.SequenceNode):
            for index, child in enumerate(value.value):
                walk(child, (*at, index), (*above, value))

    if node is not None:
        walk(node, ())
    return _Parsed(document, lines, tuple(faults))


def _not_yaml(problem: str, line: int | None) -> Finding:
    return Finding(
        rule="file.yaml",
        key="file",
        value=problem,
        why="it is not one plain YAML document",
        fix="Correct the YAML; tags such as !!python are never loaded.",
        line=line,
    )


def _typed(document: Any) -> tuple[Environment | None, list[Finding]]:
    """The Environment where the shape allows one, and the shape's faults.

    A file with an unknown key, a badly written value or a missing one is still judged by the rules that read none of
    these: the reader then sees every fault in one run, and none about a value that merely stood in.
    """
    try:
        return Environment.model_validate(document), []
    except ValidationError as error:
        details = _plain(error.errors(), document)
        faults = [_shape_fault(detail, document) for detail in details]
        try:
            environment = Environment.model_validate(_without(document, details))
        except ValidationError:
            return None, faults
        for detail in details:
            _forget(environment, _file_key(detail["loc"], document))
        return environment, faults


def _forget(environment: Environment, key: Key) -> None:
    """Takes the value at the key out of the Environment (the whole list or mapping where it is an item of one), so that
    a rule which reads it stops there (`registry.findings`)."""
    holder: Any = environment
    last: tuple[BaseModel, str] | None = None
    for step in key:
        if isinstance(holder, BaseModel):
            last = (holder, str(step))
        holder = getattr(holder, str(step), None) if isinstance(holder, BaseModel) else _get(holder, step)
    if last is not None:
        last[0].__dict__.pop(last[1], None)


def _plain(details: list[ErrorDetails], document: Any) -> list[ErrorDetails]:
    """Drops the complaints of union branches that the writer plainly did not mean, and repeats of one key."""
    keys = [_file_key(detail["loc"], document) for detail in details]

    def meant(position: int) -> bool:
        key, written = keys[position], details[position]["input"]
        rivals = [other for index, other in enumerate(keys) if index != position]
        if isinstance(written, dict) and details[position]["type"] in {"int_type", "literal_error", "string_type"}:
            return not any(other[: len(key)] == key for other in rivals)
        if details[position]["type"] == "model_type" and not isinstance(written, dict):
            return key not in rivals
        return key not in keys[:position]

    return [detail for position, detail in enumerate(details) if meant(position)]


def _without(document: Any, details: Iterable[ErrorDetails]) -> Any:
    """The document without the faulty values; an item of a list takes its list with it."""
    pruned = yaml.safe_load(yaml.safe_dump(document)) if isinstance(document, dict) else document
    for detail in details:
        key = tuple(takewhile(lambda step: isinstance(step, str), _file_key(detail["loc"], document)))
        if not key:
            continue
        *parents, last = key
        holder: Any = pruned
        for step in parents:
            holder = _get(holder, step)
        if isinstance(holder, dict):
            holder.pop(last, None)
            example = _example_value(key)
            if example is not None:
                holder[last] = example
    return pruned


def _example_value(key: Key) -> Any:
    """What stands in for a required key until `_forget`; None where it may be left out."""
    for model in _models_at(key[:-1]):
        field = model.model_fields.get(str(key[-1]))
        if field is not None and field.is_required() and field.examples:
            return field.examples[0]
    return None


def _has(holder: Any, step: str | int) -> bool:
    if isinstance(holder, dict):
        return step in holder
    return isinstance(holder, list) and isinstance(step, int) and step < len(holder)


def _get(holder: Any, step: str | int) -> Any:
    """The value at one step of a key, None where there is none."""
    return holder[step] if _has(holder, step) else None


def _shape_fault(detail: ErrorDetails, document: Any) -> Finding:
    key = _file_key(detail["loc"], document)
    kind = detail["type"]
    value = None if kind == "missing" else detail["input"]
    if kind == "extra_forbidden":
        known = _fields_at(key[:-1])
        if str(key[-1]) in known:
            why, fix = f"does not go with this kind of {key[-2]}", "Remove it, or choose another kind."
        else:
            why = "is not a key of this file"
            fix = f"Remove it, or write one of: {', '.join(known)}." if known else "Remove it."
    elif kind == "missing":
        why, fix = "is required", _example(key)
    else:
        why, fix = f"does not fit: {_one_line(detail['msg'])}", _example(key)
    return Finding(
        rule=f"file.{kind.replace('_', '-')}", key=_dotted(key) or "file", value=_brief(value), why=why, fix=fix
    )


def _one_line(message: str) -> str:
    """Pydantic's message as part of a sentence; it quotes what was written, whatever that holds."""
    text = message[:1].lower() + message[1:]
    return text if text.isprintable() else repr(text)[1:-1]


def _brief(value: object) -> object:
    """The value where it reads well on one line: a scalar, or a list of scalars."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if any(isinstance(item, dict | list) for item in value) else value
    return value


def _file_key(loc: tuple[str | int, ...], document: Any) -> Key:
    """Pydantic's location without the union branch names that it inserts: only steps that exist in the file, plus a last one."""
    key: list[str | int] = []
    holder = document
    for position, step in enumerate(loc):
        if _has(holder, step):
            key.append(step)
            holder = _get(holder, step)
        elif position == len(loc) - 1 and str(step) in _fields_at(tuple(key)):
            key.append(step)
    return tuple(key)


def _fields_at(key: Key) -> list[str]:
    models = _models_at(key)
    return sorted({name for model in models for name in model.model_fields})


def _models_at(key: Key) -> list[type[BaseModel]]:
    """The models that may stand at `key`; several where the file has a union."""
    models: list[type[BaseModel]] = [Environment]
    for step in key:
        following: list[type[BaseModel]] = []
        for model in models:
            field = model.model_fields.get(str(step))
            following += _models_in(field.annotation if field else None)
        models = following or models
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _example(key: Key) -> str:
    for model in _models_at(key[:-1]):
        field = model.model_fields.get(str(key[-1])) if key else None
        if field is None:
            continue
        if field.examples:
            return f"Write for example `{key[-1]}: {_inline(field.examples[0])}`."
        if field.default is not PydanticUndefined:
            return f"Write a value such as the default, `{key[-1]}: {_inline(field.default)}`, or leave the key out."
    return "See the shipped files under environments/ for its form."


def _inline(value: Any) -> str:
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    plain = list(plain) if isinstance(plain, tuple) else plain
    return yaml.safe_dump(plain, default_flow_style=True, width=200).removesuffix("...\n").strip()


def _dotted(key: Key) -> str:
    return ".".join(str(step) for step in key)


def _line(lines: Mapping[str, int], dotted: str) -> int | None:
    """Line of the key, or of the nearest parent that stands in the file."""
    while dotted and dotted not in lines:
        dotted = dotted.rpartition(".")[0]
    return lines.get(dotted)
