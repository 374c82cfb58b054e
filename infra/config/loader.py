"""File → Environment, or every fault of the file at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticUndefined

from infra.catalog import CATALOG, Catalog
from infra.config.documents import Key, dotted, is_file, line_of, parse, read
from infra.config.environment import Environment
from infra.config.faults import EnvironmentFault, Finding, addressed, cut
from infra.config.pins import UNRESOLVED, Pins, load_pins, pins_path
from infra.config.rules import check
from infra.config.shapes import clause

ENVIRONMENTS = Path("environments")
Judge = Callable[[Environment, Pins], Iterable[Finding]]


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
        if is_file(candidate):
            return candidate
    known = sorted(file.stem for file in (root / ENVIRONMENTS).glob("*.yaml") if not file.stem.endswith(".lock"))
    raise EnvironmentFault(
        cut(name_or_path) or "''",
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


def load_named(
    env: str, root: Path, *, lock: Path | None = None, pins: Pins | None = None, further: Judge | None = None
) -> Loaded:
    """`load` for what a person calls ENV; commands in messages then name it as it was typed.

    `pins`, or the lock file `lock`, stand in for the lock file beside the environment. Raises EnvironmentFault.
    """

    def told(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(replace(item, why=addressed(item.why, env), fix=addressed(item.fix, env)) for item in findings)

    try:
        path = locate(env, root)
        if lock is not None and not is_file(lock):
            raise EnvironmentFault(str(lock), (_no_lock(lock),))
        loaded = load(path, pins=load_pins(lock) if lock else pins, further=further)
    except EnvironmentFault as fault:
        raise EnvironmentFault(fault.path, told(fault.findings)) from fault
    return replace(loaded, warnings=told(loaded.warnings))


def _no_lock(lock: Path) -> Finding:
    return Finding(
        rule="file.lock",
        key="pins",
        value=str(lock),
        why="there is no such file",
        fix="Name a file that `moerl lock` wrote, or leave the option out.",
    )


def load(path: Path, catalog: Catalog = CATALOG, *, pins: Pins | None = None, further: Judge | None = None) -> Loaded:
    """Read, type and judge one environment file; `pins` default to the lock file beside it.

    `further` judges what passed every rule, for checks that this package may not import.

    Raises EnvironmentFault carrying every finding when at least one is a fault.
    """
    pins = load_pins(pins_path(path)) if pins is None else pins
    return load_text(read(path), str(path), catalog, pins=pins, further=further, stem=path.stem)


def load_text(
    text: str,
    path: str,
    catalog: Catalog = CATALOG,
    *,
    pins: Pins = UNRESOLVED,
    further: Judge | None = None,
    stem: str | None = None,
) -> Loaded:
    """`load` for text already read; `path` only names it in messages, `stem` is the file's name without its suffix."""
    parsed = parse(text, path)
    environment, findings, whole = _typed(parsed.value)
    if environment is not None:
        judged = check(environment, catalog, pins)
        if further is not None and whole and not any(finding.severity == "fault" for finding in judged):
            judged += further(environment, pins)
        findings += [*judged, *_misnamed(environment, stem)]
    located = tuple(replace(finding, line=line_of(parsed.lines, finding.key)) for finding in findings)
    everything = (*parsed.faults, *located)
    if environment is None or any(finding.severity == "fault" for finding in everything):
        raise EnvironmentFault(path, everything)
    return Loaded(path, environment, pins, everything)


def _misnamed(environment: Environment, stem: str | None) -> Iterator[Finding]:
    """A copied file that still has the name of the first one, whose stacks a deploy of the copy would change."""
    name = environment.__dict__.get("name")
    if stem is not None and name is not None and stem != name:
        yield Finding(
            rule="file.name",
            severity="warning",
            key="name",
            value=name,
            why=f"the file is called {cut(stem)}, and every file with the name {name} owns the same stacks, cluster and"
            " buckets: a deploy of this one changes them",
            fix=f"Write a name of its own in a copy, or call the file {name}.yaml.",
        )


class _Typed(NamedTuple):
    environment: Environment | None
    """Where the shape allows one."""
    faults: list[Finding]
    whole: bool
    """Whether nothing that a rule may read was taken out."""


def _typed(document: Any) -> _Typed:
    """The Environment where the shape allows one, and the shape's faults.

    A file with an unknown key, a badly written value or a missing one is still judged by the rules that read none of
    these: the reader then sees every fault in one run, and none about a value that merely stood in.
    """
    if not isinstance(document, dict):
        return _Typed(None, [_no_mapping(document)], False)
    try:
        return _Typed(Environment.model_validate(document), [], True)
    except ValidationError as error:
        wrong = _by_key(error.errors(), document)
    faults = [_shape_fault(key, details) for key, details in wrong.items()]
    for narrow in (_itself, _list_around):
        holes = {key: narrow(key, document) for key in wrong}
        try:
            environment = Environment.model_validate(_without(document, holes.values()))
        except ValidationError:
            continue
        whole = True
        for key, hole in holes.items():
            item_alone = wrong[key][0]["type"] == "extra_forbidden" or _is_scalar_item(hole)
            if not item_alone:
                whole = False
                _forget(environment, hole)
        return _Typed(environment, faults, whole)
    return _Typed(None, faults, False)


def _no_mapping(document: Any) -> Finding:
    return Finding(
        rule="file.mapping",
        key="file",
        value=_brief(document),
        why="an environment is a mapping of keys",
        fix=f"Write at least {', '.join(_required(Environment))}, or copy a file from environments/.",
    )


def _itself(key: Key, document: Any) -> Key:
    """The key, or the nearest one above that is no item of a list: taking one out would move the others."""
    return key if isinstance(key[-1], str) else _list_around(key, document)


def _list_around(key: Key, _document: Any) -> Key:
    """The key, or the outermost list that holds it."""
    return tuple(takewhile(lambda step: isinstance(step, str), key))


def _is_scalar_item(key: Key) -> bool:
    """Whether the key is an item of a mapping of plain values, whose items rules judge one by one."""
    return bool(key) and any(
        get_origin(field.annotation) is dict and not _models_in(field.annotation)
        for model in _models_at(key[:-2])
        if len(key) > 1 and (field := model.model_fields.get(str(key[-2]))) is not None
    )


def _forget(environment: Environment, key: Key) -> None:
    """Takes the value at the key out of the Environment (the whole mapping where it is an item of one), so that a rule
    which reads it stops there (`registry.findings`)."""
    holder: Any = environment
    last: tuple[BaseModel, str] | None = None
    for step in key:
        if isinstance(holder, BaseModel):
            last = (holder, str(step))
        holder = getattr(holder, str(step), None) if isinstance(holder, BaseModel) else _get(holder, step)
    if last is not None:
        last[0].__dict__.pop(last[1], None)


def _by_key(details: Iterable[ErrorDetails], document: Any) -> dict[Key, list[ErrorDetails]]:
    """What is wrong at each key, without the complaints of union branches that the writer plainly did not mean."""
    wrong: dict[Key, list[ErrorDetails]] = {}
    for detail in details:
        wrong.setdefault(_file_key(detail["loc"], document), []).append(detail)

    def meant(key: Key) -> bool:
        """Not the branches for one value, where a mapping is written and another branch speaks of what is in it."""
        branches = all(detail["type"] in {"int_type", "literal_error", "string_type"} for detail in wrong[key])
        inside = any(len(other) > len(key) and other[: len(key)] == key for other in wrong)
        return not (branches and inside and isinstance(wrong[key][0]["input"], dict))

    return {key: _of_the_key(details) for key, details in wrong.items() if meant(key)}


def _of_the_key(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Complaints about a mapping's key alone, where there are any; a number that is none before what else it is not."""
    of_key = [detail for detail in details if detail["loc"][-1:] == ("[key]",)]
    return of_key or sorted(details, key=lambda detail: detail["type"] != "finite_number")


def _without(document: Any, keys: Iterable[Key]) -> Any:
    """The document without the faulty values."""
    pruned = _copy(document)
    for key in keys:
        if not key:
            continue
        *parents, last = key
        holder: Any = pruned
        for step in parents:
            holder = _get(holder, step)
        if isinstance(holder, dict):
            holder.pop(_written(holder, last), None)
            example = _example_value(key)
            if example is not None:
                holder[last] = example
    return pruned


def _copy(value: Any) -> Any:
    """Of its own at every place: an alias puts one mapping at several."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _example_value(key: Key) -> Any:
    """What stands in for a required key until `_forget`; None where it may be left out."""
    for model in _models_at(key[:-1]):
        field = model.model_fields.get(str(key[-1]))
        if field is not None and field.is_required() and field.examples:
            return field.examples[0]
    return None


def _written(holder: Any, step: str | int) -> Any:
    """The key of a mapping that a step names: YAML also has keys that are no text."""
    return step if step in holder else next((key for key in holder if str(key) == str(step)), step)


def _has(holder: Any, step: str | int) -> bool:
    if isinstance(holder, dict):
        return _written(holder, step) in holder
    return isinstance(holder, list | tuple) and isinstance(step, int) and step < len(holder)


def _get(holder: Any, step: str | int) -> Any:
    """The value at one step of a key, None where there is none."""
    if not _has(holder, step):
        return None
    return holder[_written(holder, step)] if isinstance(holder, dict) else holder[step]


def _shape_fault(key: Key, details: list[ErrorDetails]) -> Finding:
    kind, value = details[0]["type"], details[0]["input"]
    fix = _example(key)
    match kind:
        case "extra_forbidden":
            known = _fields_at(key[:-1])
            if str(key[-1]) in known:
                why, fix = f"does not go with this kind of {key[-2]}", "Remove it, or choose another kind."
            else:
                why = "is not a key of this file"
                fix = f"Remove it, or write one of: {', '.join(known)}." if known else "Remove it."
        case "missing":
            why, value = "is required", None
        case "union_tag_not_found":
            key, why, value = (*key, "type"), "is required", None
        case "union_tag_invalid":
            key, why, value = (*key, "type"), clause(details), value["type"]
        case _:
            why = clause(details)
            if details[0]["loc"][-1:] == ("[key]",):
                value, fix = key[-1], "Write another key."
    rule = f"file.{kind.replace('_', '-')}"
    return Finding(rule=rule, key=dotted(key) or "file", value=_brief(value), why=why, fix=fix)


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
    """What to write at the key, from the model: an example, the default, or what a mapping there must have."""
    for at in (key, key[:-1]):
        for model in _models_at(at[:-1]) if at else ():
            field = model.model_fields.get(str(at[-1]))
            if field is None:
                continue
            if field.examples:
                return f"Write for example `{at[-1]}: {_inline(field.examples[0])}`."
            if field.default is None or (at != key and not field.is_required()):
                return "Correct it, or leave the key out."
            inner = _models_in(field.annotation)
            if isinstance(field.default, BaseModel):
                return f"Write a mapping of {', '.join(inner[0].model_fields)}, or leave the key out."
            if field.default is not PydanticUndefined:
                return f"Write a value such as the default, `{at[-1]}: {_inline(field.default)}`, or leave the key out."
            if len(inner) == 1 and get_origin(field.annotation) is not dict and _required(inner[0]):
                return f"Write a mapping with at least {', '.join(_required(inner[0]))}."
            break
    return "See the shipped files under environments/ for its form."


def _required(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if field.is_required()]


def _inline(value: Any) -> str:
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    plain = list(plain) if isinstance(plain, tuple) else plain
    return yaml.safe_dump(plain, default_flow_style=True, width=200).removesuffix("...\n").strip()
