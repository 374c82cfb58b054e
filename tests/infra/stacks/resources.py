"""Reading synthesized templates by type and property: logical ids carry hashes, so tests do not name them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from infra.config.plan import Plan

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = tuple(
    sorted(path.stem for path in (ROOT / "environments").glob("*.yaml") if not path.stem.endswith(".lock"))
)

T = TypeVar("T")
Template = dict[str, Any]
Plans = Callable[..., Plan]
Templates = Callable[[Plan, str], Template]


def of_type(template: Template, kind: str) -> list[dict[str, Any]]:
    """Resources of one CloudFormation type."""
    return [resource for resource in template.get("Resources", {}).values() if resource["Type"] == kind]


def properties(template: Template, kind: str) -> list[dict[str, Any]]:
    """Properties of every resource of one CloudFormation type."""
    return [resource.get("Properties", {}) for resource in of_type(template, kind)]


def by_type(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    """Resources of one CloudFormation type by logical id, for tests about references."""
    return {key: resource for key, resource in template.get("Resources", {}).items() if resource["Type"] == kind}


def only(items: Iterable[T]) -> T:
    """The single item; AssertionError when there are none or several."""
    (item,) = items
    return item
