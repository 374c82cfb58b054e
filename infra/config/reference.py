"""docs/environment.md, written from the models: `python -m infra.config.reference > docs/environment.md`."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from infra.config.environment import Environment

HEADER = """# The environment file

Written from the models by `python -m infra.config.reference`. Unknown keys are refused. Rules beyond types and ranges are
in `infra/config/rules/`; `moerl validate ENV` runs them all at once.

| key | type | default | meaning |
|---|---|---|---|
"""


def reference() -> str:
    """The whole page."""
    lines: dict[str, list[str]] = {}
    for key, kind, default, meaning in _rows("", Environment):
        if key not in lines:
            lines[key] = [kind, default, meaning]
        elif kind not in lines[key][0].split(" or "):  # the same key in another branch of a union
            lines[key][0] += f" or {kind}"
    return HEADER + "\n".join(f"| `{key}` | {' | '.join(cells)} |" for key, cells in lines.items()) + "\n"


def _rows(prefix: str, model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning) of a model's fields, depth first."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        nested = list(dict.fromkeys(_models(field.annotation)))
        meaning = " ".join((field.description or "").split())
        yield key, _type(field.annotation, field.metadata), _default(field), meaning
        holder = _holder(key, field.annotation)
        for inner in nested:
            yield from _rows(holder, inner)


def _holder(key: str, annotation: Any) -> str:
    if get_origin(annotation) is dict:
        return f"{key}.NAME."
    return f"{key}[]." if get_origin(annotation) is tuple else f"{key}."


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _type(annotation: Any, metadata: list[Any] | None = None) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], list(arguments[1:]))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in arguments if part is not NoneType))
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    names = {
        "str": "text",
        "int": "number",
        "float": "number",
        "bool": "true or false",
        "AwareDatetime": "time with zone",
    }
    named = names.get(getattr(annotation, "__name__", ""), "text")
    return named + _range(metadata or [])


def _range(metadata: list[Any]) -> str:
    bounds = {}
    for item in metadata:
        for bound in [item, *getattr(item, "metadata", [])]:
            for word, sign in (("ge", ">="), ("gt", ">"), ("le", "<=")):
                value = getattr(bound, word, None)
                if value is not None:
                    bounds[sign] = value
    return "".join(f", {sign} {value}" for sign, value in bounds.items())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else (field.default_factory or (lambda: None))()  # type: ignore[call-arg]
    if value is None:
        return "-"
    if isinstance(value, BaseModel):
        return "see below"
    plain = list(value) if isinstance(value, tuple) else value
    return f"`{yaml.safe_dump(plain, default_flow_style=True).removesuffix('...').strip().removesuffix('...').strip()}`"


if __name__ == "__main__":
    print(reference(), end="")
