"""What every EC2 resource shares: tags at creation, Describe with filters, and tagging by id."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from typing import Any

from .. import registry, shapes, state
from ..errors import ServiceError

_stores: dict[str, state.Store] = {}  # id prefix -> store


def store(prefix: str) -> state.Store:
    """The store of resources whose ids start with `prefix`; makes them taggable."""
    return _stores.setdefault(prefix, state.Store())


def require(kept: state.Store, key: str | None, code: str, what: str) -> dict[str, Any]:
    """The stored resource, or the error that EC2 gives for an id it does not know."""
    found: dict[str, Any] | None = kept.get(key) if key else None
    if found is None:
        raise ServiceError(code, f"The {what} ID '{key}' does not exist")
    return found


def new_tags(params: dict[str, Any], resource_type: str) -> list[dict[str, str]]:
    """The tags that TagSpecifications carries for one resource type."""
    specs = params.get("TagSpecifications") or []
    return [dict(tag) for spec in specs if spec.get("ResourceType") == resource_type for tag in spec.get("Tags", [])]


def tag_specification(props: dict[str, Any], resource_type: str) -> list[dict[str, Any]] | None:
    """CloudFormation Tags as TagSpecifications; None where there are none."""
    tags = shapes.tag_list(props.get("Tags"))
    return [{"ResourceType": resource_type, "Tags": tags}] if tags else None


def retag(resource_id: str, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Bring a resource's tags from the old to the new Tags property, as CloudFormation does."""
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        registry.call("ec2", "DeleteTags", {"Resources": [resource_id], "Tags": [{"Key": key} for key in gone]})
    if fresh:
        registry.call("ec2", "CreateTags", {"Resources": [resource_id], "Tags": shapes.tag_list(fresh)})


# ---- Describe ---------------------------------------------------------------------------------------------------


def describe(
    name: str, result: str, kept: state.Store, *, ids: str, id_field: str, missing: str
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Register `name` as a Describe operation over a store.

    result: output member. ids: input member that lists ids. id_field: the id's member in each resource. missing: error
    code for an unknown id.
    """

    def run(params: dict[str, Any]) -> dict[str, Any]:
        found = list(kept.values())
        wanted = params.get(ids)
        if wanted:
            known = {item[id_field] for item in found}
            unknown = [one for one in wanted if one not in known]
            if unknown:
                raise ServiceError(missing, f"The ID '{unknown[0]}' does not exist")
            found = [item for item in found if item[id_field] in wanted]
        filters = params.get("Filters") or params.get("Filter") or []
        return {result: [item for item in found if all(matches(item, one) for one in filters)]}

    registry.operation("ec2", name)(run)
    return run


def matches(item: dict[str, Any], condition: dict[str, Any]) -> bool:
    """Whether a resource passes one {Name, Values} filter. Names are the API's: kebab-case members, dots into nested ones."""
    name, values = condition["Name"], condition.get("Values", [])
    if name == "tag-key":
        actual: list[str] = [tag["Key"] for tag in item.get("Tags", [])]
    elif name.startswith("tag:"):
        actual = [tag["Value"] for tag in item.get("Tags", []) if tag["Key"] == name[4:]]
    else:
        actual = [_text(value) for value in _members(item, name.split("."))]
    return any(fnmatch.fnmatchcase(one, pattern) for one in actual for pattern in values)


def _members(node: Any, path: list[str]) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _members(item, path)
        return
    if not path:
        yield node
        return
    for key, value in node.items() if isinstance(node, dict) else ():
        if key.lower().removesuffix("s") == path[0].replace("-", "").removesuffix("s"):
            yield from _members(value, path[1:])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- tagging by id ----------------------------------------------------------------------------------------------


def owned(resource_id: str) -> dict[str, Any] | None:
    """The resource of this module family with that id, whatever its kind; None where ministack keeps it."""
    kept = _stores.get(resource_id.rpartition("-")[0])
    return kept.get(resource_id) if kept is not None else None


@registry.operation("ec2", "CreateTags")
def create_tags(params: dict[str, Any]) -> None:
    for item in _all_owned(params["Resources"]):
        fresh = {tag["Key"]: tag.get("Value", "") for tag in params["Tags"]}
        kept = [tag for tag in item.get("Tags", []) if tag["Key"] not in fresh]
        item["Tags"] = kept + [{"Key": key, "Value": value} for key, value in fresh.items()]


@registry.operation("ec2", "DeleteTags")
def delete_tags(params: dict[str, Any]) -> None:
    gone = {tag["Key"] for tag in params.get("Tags") or []}
    for item in _all_owned(params["Resources"]):
        item["Tags"] = [tag for tag in item.get("Tags", []) if gone and tag["Key"] not in gone]


def _all_owned(ids: list[str]) -> list[dict[str, Any]]:
    found = []
    for one in ids:
        item = owned(one)
        if item is None:
            raise ServiceError("InvalidID", f"The ID '{one}' is not valid")
        found.append(item)
    return found


@registry.operation("ec2", "DescribeTags")
def describe_tags(params: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {"ResourceId": resource_id, "ResourceType": _RESOURCE_TYPES.get(prefix, prefix), **tag}
        for prefix, kept in _stores.items()
        for resource_id, item in kept.items()
        for tag in item.get("Tags", [])
    ]
    return {"Tags": [row for row in rows if all(matches(row, one) for one in params.get("Filters", []))]}


_RESOURCE_TYPES = {
    "vpc": "vpc",
    "subnet": "subnet",
    "rtb": "route-table",
    "igw": "internet-gateway",
    "eipalloc": "elastic-ip",
    "nat": "natgateway",
    "vpce": "vpc-endpoint",
    "sg": "security-group",
    "sgr": "security-group-rule",
    "pg": "placement-group",
    "lt": "launch-template",
    "fl": "vpc-flow-log",
}
