"""Synthesized stacks as the policy rules see them, and how a rule reports what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.config.faults import Finding
from infra.config.plan import Plan

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One stack: its CloudFormation name, its template, and whether it has termination protection."""

    name: str
    template: Mapping[str, Any]
    protected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of a template."""

    stack: str
    logical_id: str
    type: str
    body: Mapping[str, Any]
    """The resource with its attributes, such as DeletionPolicy."""

    @property
    def properties(self) -> Properties:
        found: Properties = self.body.get("Properties", {})
        return found

    def finding(self, rule: str, path: str, value: object, why: str, fix: str) -> Finding:
        """A fault at `path` below the resource, for example `AccessConfig.AuthenticationMode`."""
        return Finding(
            rule=f"policy.{rule}", key=f"{self.stack}/{self.logical_id}.{path}", value=value, why=why, fix=fix
        )


Rule = Callable[[Stack, Plan], Iterator[Finding]]


def resources(stack: Stack, *types: str) -> Iterator[Resource]:
    """The stack's resources of the given CloudFormation types; of all types when none is given."""
    for logical_id, body in stack.template.get("Resources", {}).items():
        if not types or body["Type"] in types:
            yield Resource(stack=stack.name, logical_id=logical_id, type=body["Type"], body=body)


def as_list(value: Any) -> list[Any]:
    """IAM and CloudFormation write one element bare."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def refers_to(value: Any, logical_id: str) -> bool:
    """Whether an intrinsic function names the resource (Ref or Fn::GetAtt), at any depth."""
    if isinstance(value, Mapping):
        if value.get("Ref") == logical_id or as_list(value.get("Fn::GetAtt"))[:1] == [logical_id]:
            return True
        return any(refers_to(item, logical_id) for item in value.values())
    if isinstance(value, list | tuple):
        return any(refers_to(item, logical_id) for item in value)
    return False
