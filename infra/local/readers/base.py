"""What a reader is: a function from a deployed resource to the CloudFormation properties that its service shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

Properties = dict[str, Any]


class NotThereError(LookupError):
    """The service does not know the resource that CloudFormation says it created."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where readers look.

    client: boto3 client by service name. account, region: of the deployment. owned: physical ids of every deployed resource,
    so that what another resource added (a rule, an attached policy) is not counted against this one.
    """

    client: Callable[[str], Any]
    account: str
    region: str
    owned: frozenset[str]


@dataclass(frozen=True, slots=True)
class Actual:
    """properties: in CloudFormation's shape. attributes: what Fn::GetAtt gives."""

    properties: Properties
    attributes: Properties = field(default_factory=dict)


# (source, physical id, the template's properties) -> what the service shows. The template's properties only help to find
# a resource that has no id of its own, such as an inline policy.
Reader = Callable[[Source, str, Properties], Actual]


def one(items: list[Any], what: str) -> Any:
    """The only item. Raises NotThereError otherwise."""
    if len(items) != 1:
        raise NotThereError(f"{what}: {len(items)} found")
    return items[0]


def optional(call: Callable[..., Any], *codes: str, **parameters: Any) -> Any:
    """The reply, or an empty one when the service says with one of `codes` that nothing is configured."""
    try:
        return call(**parameters)
    except ClientError as error:
        if error.response["Error"]["Code"] in codes:
            return {}
        raise


def pascal(value: Any, free: frozenset[str] = frozenset()) -> Any:
    """camelCase keys as CloudFormation writes them, at every depth; below a key in `free` the keys are the user's own."""
    if isinstance(value, Mapping):
        return {
            key[:1].upper() + key[1:]: dict(item) if key in free else pascal(item, free) for key, item in value.items()
        }
    return [pascal(item, free) for item in value] if isinstance(value, list) else value


def tag_list(tags: Any, key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """Tags as CloudFormation lists them, without the ones that AWS adds itself."""
    pairs = tags.items() if isinstance(tags, Mapping) else [(tag[key], tag[value]) for tag in tags or []]
    return [{"Key": name, "Value": text} for name, text in pairs if not name.startswith("aws:")]


def tag_map(tags: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tag_list(tags)}


def renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> Properties:
    """values with the keys in `names` renamed and those not in it kept."""
    return {names.get(key, key): item for key, item in values.items()}
