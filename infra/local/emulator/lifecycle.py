"""CloudFormation's rules on top of ministack's engine: what is created, changed in place, replaced, or left alone.

ministack's engine already orders resources, keeps a replaced resource until the update has succeeded, rolls back and honours
the retain policies. This module gives it our resource types and replacement rules, refuses properties that would be
dropped, tells the transcript who acts, and keeps resources that did not change out of the events.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ministack.services.cloudformation import _stack_events, _stacks, changesets, handlers, provisioners, stacks

from . import registry, transcript
from .errors import ServiceError
from .registry import TYPES, Params, ResourceType
from .stock import STOCK_TYPES

# Types that CloudFormation itself owns; ministack's handlers for them stay as they are.
_ENGINE_TYPES = (
    "AWS::CDK::Metadata",
    "AWS::CloudFormation::CustomResource",
    "AWS::CloudFormation::Stack",
    "AWS::CloudFormation::WaitCondition",
    "AWS::CloudFormation::WaitConditionHandle",
)


def install() -> None:
    """Give ministack's CloudFormation engine these types and rules."""
    table = {name: provisioners._RESOURCE_HANDLERS[name] for name in (*_ENGINE_TYPES, *STOCK_TYPES)}
    table |= {name: _handlers(name, kind) for name, kind in TYPES.items()}
    provisioners._RESOURCE_HANDLERS.clear()  # a type that is not on our lists is refused, not half done
    provisioners._RESOURCE_HANDLERS.update(table)
    for name, kind in TYPES.items():
        provisioners._CUSTOM_NAME_REPLACEMENT.pop(name, None)
        if kind.tags:
            provisioners._STACK_TAG_PROPERTY[name] = (_tag_property(name), kind.tags)
        else:
            provisioners._STACK_TAG_PROPERTY.pop(name, None)
    recreation = _recreation(provisioners._property_recreation)
    for module in (provisioners, stacks):
        module._property_recreation = recreation
        module._replacing_change = _replacing_change
        module._provision_resource = _provision
        module._update_resource = _update
        module._delete_resource = _delete
    for module in (stacks, changesets, handlers):
        module._add_event = _add_event
        module._deploy_stack_async = _deploy


def _tag_property(type_name: str) -> str:
    return "ResourceTags" if type_name == "AWS::Budgets::Budget" else "Tags"


def _handlers(type_name: str, kind: ResourceType) -> dict[str, Any]:
    """ministack's handler table for one of our types."""

    def create(logical_id: str, props: Params, stack_name: str) -> tuple[str, dict[str, Any]]:
        name = provisioners._physical_name(stack_name, logical_id, max_len=kind.name_length)
        return registry.create(kind, name, props)

    def update(physical_id: str, old: Params, new: Params, _stack_name: str) -> tuple[str, dict[str, Any]]:
        return physical_id, kind.update(physical_id, old, new)

    def delete(physical_id: str, props: Params) -> None:
        try:
            kind.delete(physical_id, props)
        except ServiceError as error:
            if not _is_missing(error):  # CloudFormation takes a resource that is gone already for deleted
                raise

    return {"create": create, "update": update, "delete": delete, "type": type_name}


def _is_missing(error: ServiceError) -> bool:
    return error.status == 404 or "NotFound" in error.code or error.code.endswith(".Unknown")


# ---- what replaces ----------------------------------------------------------------------------------------------


def _recreation(stock: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """Classifies a changed top-level property for change sets: 'Always', 'Conditionally' or 'Never' replaces."""

    def classify(type_name: str, name: str) -> str:
        kind = TYPES.get(type_name)
        if kind is None:
            return stock(type_name, name)
        if name in kind.replaces:
            return "Always"
        nested = any(path.startswith(f"{name}/") for path in kind.replaces)
        return "Conditionally" if nested else "Never"

    return classify


_stock_replacing_change = provisioners._replacing_change


def _replacing_change(type_name: str, old: Params, new: Params) -> bool:
    kind = TYPES.get(type_name)
    if kind is None:
        return bool(_stock_replacing_change(type_name, old, new))
    return any(_at(old, path) != _at(new, path) for path in kind.replaces)


def _at(props: Any, path: str) -> Any:
    for name in path.split("/"):
        props = props.get(name) if isinstance(props, Mapping) else None
    if isinstance(props, list) and all(isinstance(item, Mapping) and "Key" in item for item in props):
        # Tags: order is nothing, and CloudFormation's own tags hold the stack id, which never changes.
        return sorted((item["Key"], item.get("Value")) for item in props)
    return props


# ---- acting on a resource ---------------------------------------------------------------------------------------

_stock_provision = provisioners._provision_resource
_stock_update = provisioners._update_resource
_stock_delete = provisioners._delete_resource


def _provision(type_name: str, logical_id: str, props: Params, stack_name: str) -> tuple[str, dict[str, Any]]:
    _release(logical_id, "CREATE_IN_PROGRESS")
    check_properties(type_name, props)
    with _acting(stack_name, logical_id):
        result: tuple[str, dict[str, Any]] = _stock_provision(type_name, logical_id, props, stack_name)
        return result


def _update(
    type_name: str,
    physical_id: str,
    old: Params,
    new: Params,
    stack_name: str,
    logical_id: str | None = None,
    old_attributes: dict[str, Any] | None = None,
) -> tuple[str, dict[str, Any]]:
    if old != new:
        _release(logical_id)
        check_properties(type_name, new)
    with _acting(stack_name, logical_id):
        result: tuple[str, dict[str, Any]] = _stock_update(
            type_name, physical_id, old, new, stack_name, logical_id, old_attributes
        )
        return result


def _delete(
    type_name: str, physical_id: str, props: Params, stack_name: str | None = None, logical_id: str | None = None
) -> None:
    cleanup = _begin_cleanup(type_name, physical_id, stack_name, logical_id)
    try:
        with _acting(stack_name, logical_id):
            _stock_delete(type_name, physical_id, props, stack_name, logical_id)
    except Exception:
        if cleanup is None:
            raise
        # The engine deletes what was replaced before what was removed, whatever depends on which: try again at the end.
        cleanup.deferred.append((type_name, physical_id, props, logical_id))
        return
    if cleanup is not None:
        _stock_add_event(
            cleanup.stack_id, stack_name, logical_id, type_name, "DELETE_COMPLETE", physical_id=physical_id
        )


@contextlib.contextmanager
def _acting(stack_name: str | None, logical_id: str | None) -> Iterator[None]:
    """CloudFormation acts on one resource: the transcript names it, and AWS errors read as CloudFormation reports them."""
    with transcript.caused_by(transcript.Origin("cloudformation", stack_name, logical_id)):
        try:
            yield
        except ServiceError as error:
            message = f'Resource handler returned message: "{error.message}" (Error code: {error.code})'
            raise ValueError(message) from error


def check_properties(type_name: str, props: Params) -> None:
    """Raises ValueError for a property that would not reach the service's state."""
    known = TYPES[type_name].properties if type_name in TYPES else STOCK_TYPES.get(type_name)
    if known is None:
        return
    unknown = sorted(set(props) - known)
    if unknown:
        raise ValueError(
            f"the emulator does not keep {type_name} {', '.join(unknown)}: it would be dropped without a word "
            "(infra/local/emulator)"
        )


# ---- events -----------------------------------------------------------------------------------------------------

_stock_add_event = stacks._add_event
_stock_deploy = stacks._deploy_stack_async


@dataclass(slots=True)
class _Update:
    """A running stack update: events held back until a change shows, and the resources that it creates."""

    stack_id: str
    held: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    deferred: list[tuple[str, str, Params, str | None]] = field(default_factory=list)


_running: contextvars.ContextVar[_Update | None] = contextvars.ContextVar("moerl_update", default=None)


def _add_event(
    stack_id: str, stack_name: str, logical_id: str, type_name: str, status: str, *rest: Any, **fields: Any
) -> None:
    """ministack's event log as AWS writes it: nothing for a resource that does not change, CREATE_* for a new one."""
    update = _running.get()
    if update is None or type_name == "AWS::CloudFormation::Stack":
        _stock_add_event(stack_id, stack_name, logical_id, type_name, status, *rest, **fields)
        return
    if status == "UPDATE_IN_PROGRESS" and not rest and not fields:
        update.held[logical_id] = (stack_id, stack_name, logical_id, type_name)
        return
    if status == "UPDATE_COMPLETE" and logical_id in update.held:
        del update.held[logical_id]
        return
    if logical_id in update.created:
        status = status.replace("UPDATE_", "CREATE_")
    else:
        _release(logical_id)
    update.touched.add(logical_id)
    _stock_add_event(stack_id, stack_name, logical_id, type_name, status, *rest, **fields)


def _release(logical_id: str | None, status: str = "UPDATE_IN_PROGRESS") -> None:
    """A held resource is about to change: write the event that was held."""
    update = _running.get()
    if update is not None and logical_id in update.held:
        update.touched.add(logical_id)
        if status.startswith("CREATE"):
            update.created.add(logical_id)
        _stock_add_event(*update.held.pop(logical_id), status)


def _begin_cleanup(type_name: str, physical_id: str, stack_name: str | None, logical_id: str | None) -> _Update | None:
    """The running update if this deletion is its cleanup, for which the engine writes no events; DELETE_IN_PROGRESS then is."""
    update = _running.get()
    if update is None or stack_name is None or logical_id is None:
        return None
    mine = [event for event in _stack_events.get(update.stack_id, []) if event["LogicalResourceId"] == logical_id]
    if mine and mine[-1]["ResourceStatus"] == "DELETE_IN_PROGRESS":
        return None
    event = (update.stack_id, stack_name, logical_id, type_name)
    _stock_add_event(*event, "DELETE_IN_PROGRESS", physical_id=physical_id)
    return update


def _finish_cleanup(update: _Update, stack_name: str) -> None:
    """Delete what could not be deleted in the engine's order, until nothing more goes; the rest is DELETE_FAILED, as on AWS."""
    pending = update.deferred
    while pending:
        failed = []
        for item in pending:
            type_name, physical_id, props, logical_id = item
            event = (update.stack_id, stack_name, logical_id, type_name)
            try:
                with _acting(stack_name, logical_id):
                    _stock_delete(type_name, physical_id, props, stack_name, logical_id)
            except Exception as error:
                failed.append((item, (*event, "DELETE_FAILED", str(error), physical_id)))
            else:
                _stock_add_event(*event, "DELETE_COMPLETE", physical_id=physical_id)
        if len(failed) == len(pending):
            for _, event_arguments in failed:
                _stock_add_event(*event_arguments)
            return
        pending = [item for item, _ in failed]


async def _deploy(stack_name: str, stack_id: str, *args: Any, **fields: Any) -> None:
    if not fields.get("is_update"):
        await _stock_deploy(stack_name, stack_id, *args, **fields)
        return
    records = (fields.get("previous_stack") or {}).get("_resources", {})
    before = {name: dict(record) for name, record in records.items()}
    update = _Update(stack_id)
    token = _running.set(update)
    try:
        await _stock_deploy(stack_name, stack_id, *args, **fields)
        _finish_cleanup(update, stack_name)
    finally:
        _running.reset(token)
    for name, record in _stacks[stack_name].get("_resources", {}).items():
        if name not in before:
            record["ResourceStatus"] = "CREATE_COMPLETE"
        elif name not in update.touched:  # ListStackResources tells when a resource last changed
            record |= {key: before[name][key] for key in ("ResourceStatus", "Timestamp") if key in before[name]}
