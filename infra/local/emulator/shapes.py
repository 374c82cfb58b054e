"""From CloudFormation property values to API parameters, by the API's own shapes.

A property that the API has no member for is an error, never dropped: an emulator that forgets a property proves nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from botocore.model import ListShape, MapShape, Shape, StructureShape

from . import wire


def to_api(service: str, shape_name: str, value: Any) -> Any:
    """`value` with CloudFormation's key case and string scalars, as parameters of the shape `shape_name`.

    Raises ValueError naming the property that the shape lacks.
    """
    return convert(wire.service_model(service).shape_for(shape_name), value, shape_name)


def convert(shape: Shape, value: Any, where: str) -> Any:
    if isinstance(shape, StructureShape):
        return _structure(shape, value, where)
    if isinstance(shape, ListShape):
        return [convert(shape.member, item, f"{where}[{index}]") for index, item in enumerate(_as_list(value))]
    if isinstance(shape, MapShape):
        return {str(key): convert(shape.value, item, f"{where}.{key}") for key, item in value.items()}
    if shape.type_name in ("integer", "long"):
        return int(value)
    if shape.type_name in ("float", "double"):
        return float(value)
    if shape.type_name == "boolean":
        return is_true(value)
    if isinstance(value, (dict, list)):  # policy documents travel as JSON text
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if shape.type_name == "string" else value


def _structure(shape: StructureShape, value: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected an object, got {value!r}")
    names = {name.lower(): name for name in shape.members}
    result = {}
    for key, item in value.items():
        name = names.get(key.lower())
        if name is None:
            raise ValueError(f"{where}: extraneous key [{key}] is not permitted")
        result[name] = convert(shape.members[name], item, f"{where}.{key}")
    return result


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def is_true(value: Any) -> bool:
    """A template boolean, which may arrive as the string 'true'."""
    return str(value).lower() == "true"


def tag_list(tags: Any) -> list[dict[str, str]]:
    """CloudFormation tags (list of Key/Value, or a map) as an API tag list."""
    if isinstance(tags, Mapping):
        return [{"Key": str(key), "Value": str(value)} for key, value in tags.items()]
    return [{"Key": str(tag["Key"]), "Value": str(tag.get("Value", ""))} for tag in tags or []]


def tag_map(tags: Any) -> dict[str, str]:
    """CloudFormation tags as {key: value}."""
    return {tag["Key"]: tag["Value"] for tag in tag_list(tags)}


def tag_changes(old: Any, new: Any) -> tuple[list[str], dict[str, str]]:
    """(keys to remove, tags to set) between two Tags property values."""
    before, after = tag_map(old), tag_map(new)
    return sorted(before.keys() - after.keys()), {key: item for key, item in after.items() if before.get(key) != item}


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Names of the top-level properties that differ."""
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
