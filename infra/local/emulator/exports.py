"""Exports that another stack imports cannot change or go, and two stacks cannot export one name; ministack checks neither."""

from __future__ import annotations

from typing import Any

from ministack.services.cloudformation import _exports, _stacks, handlers, stacks

_stock_resolve = stacks._resolve_stack_outputs


def install() -> None:
    stacks._resolve_stack_outputs = _resolve_checked


def _resolve_checked(
    outputs: Any, conditions: Any, resources: Any, parameters: Any, mappings: Any, stack_name: str, stack_id: str
) -> tuple[list[dict[str, Any]], dict[str, dict[str, str]]]:
    """A stack's outputs and exports. Raises ValueError as CloudFormation fails the update, which then rolls back."""
    resolved: tuple[list[dict[str, Any]], dict[str, dict[str, str]]] = _stock_resolve(
        outputs, conditions, resources, parameters, mappings, stack_name, stack_id
    )
    _, new = resolved
    for name in new:
        owner = _exports.get(name, {}).get("StackId", stack_id)
        if owner != stack_id:
            raise ValueError(f"Export with name {name} is already exported by stack {owner.split('/')[1]}")
    for output in _stacks[stack_name].get("Outputs", []):
        name = output.get("ExportName")
        if name is None:
            continue
        users = importers(name, stack_name)
        if users and name not in new:
            raise ValueError(f"Export {name} cannot be deleted as it is in use by {', '.join(users)}")
        if users and new[name]["Value"] != output["OutputValue"]:
            raise ValueError(f"Export {name} cannot be updated as it is in use by {', '.join(users)}")
    return resolved


def importers(export: str, exporter: str) -> list[str]:
    """Names of the other live stacks that import an export."""
    return sorted(
        name
        for name, stack in _stacks.items()
        if name != exporter
        and stack.get("StackStatus") != "DELETE_COMPLETE"
        and export in handlers._imported_export_names(stack, name)
    )
