"""The two tables that services fill: API operations, and CloudFormation resource types built on them.

A CloudFormation handler never touches service state: it calls the same operations that a client would, through `call`,
so what a deploy does and what a client sees cannot drift apart, and the transcript sees both.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.validate import ParamValidator

from . import transcript, wire
from .errors import ServiceError

Params = dict[str, Any]
Operation = Callable[[Params], Params | None]
Created = tuple[str, dict[str, Any]]  # physical id, attributes for Fn::GetAtt

_operations: dict[tuple[str, str], Operation] = {}


def operation(service: str, name: str) -> Callable[[Operation], Operation]:
    """Register the implementation of one API operation. The service model must know the name."""
    wire.service_model(service).operation_model(name)

    def register(function: Operation) -> Operation:
        _operations[service, name] = function
        return function

    return register


def implements(service: str, name: str) -> bool:
    return (service, name) in _operations


def call(service: str, name: str, params: Mapping[str, Any]) -> Params:
    """Run an API operation with the checks that the wire would make. Raises ServiceError as AWS replies."""
    shape = wire.service_model(service).operation_model(name).input_shape
    sent = {key: value for key, value in params.items() if value is not None}
    report = ParamValidator().validate(sent, shape) if shape is not None else None
    if report is not None and report.has_errors():
        error = ServiceError("ValidationException", report.generate_report())
        transcript.record(service, name, sent, error.code)
        raise error
    try:
        result = _operations[service, name](sent) or {}
    except ServiceError as error:
        transcript.record(service, name, sent, error.code)
        raise
    transcript.record(service, name, sent)
    return result


@contextlib.contextmanager
def by_service(principal: str) -> Iterator[None]:
    """Calls made inside are an AWS service's own doing (a principal such as 'eks.amazonaws.com'): not in the transcript."""
    with transcript.caused_by(transcript.Origin(kind=principal)):
        yield


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One CloudFormation type.

    create(name, properties) -> (physical id, attributes), where `name` is the generated physical name. update(physical id, old
    properties, new properties) -> attributes, called for in-place changes only. delete(physical id, properties).
    properties: the top-level properties that reach service state; any other one in a template is refused.
    replaces: property paths ('A' or 'A/B') whose change replaces the resource (CloudFormation registry schema).
    tags: shape of the Tags property that takes stack tags, or None.
    """

    create: Callable[[str, Params], Created]
    update: Callable[[str, Params, Params], dict[str, Any]]
    delete: Callable[[str, Params], None]
    properties: frozenset[str]
    replaces: frozenset[str] = frozenset()
    tags: str | None = "list"
    name_length: int = 128


TYPES: dict[str, ResourceType] = {}

_begun: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("moerl_begun", default=None)


def begun(physical_id: str) -> None:
    """A create handler of several calls says after the first that the resource exists: if a later one fails, it is deleted."""
    started = _begun.get()
    if started is not None:
        started.append(physical_id)


def create(kind: ResourceType, name: str, props: Params) -> Created:
    """Create a resource of a type, or nothing: what was begun is deleted before an error goes on."""
    started: list[str] = []
    token = _begun.set(started)
    try:
        return kind.create(name, props)
    except Exception:
        for physical_id in started:
            kind.delete(physical_id, props)
        raise
    finally:
        _begun.reset(token)


def resource(type_name: str, **fields: Any) -> None:
    """Register a CloudFormation type; `properties` and `replaces` may be space-separated strings."""
    for key in ("properties", "replaces"):
        if isinstance(fields.get(key), str):
            fields[key] = frozenset(fields[key].split())
    fields.setdefault("update", _no_update)
    TYPES[type_name] = ResourceType(**fields)


def _no_update(physical_id: str, _old: Params, _new: Params) -> dict[str, Any]:
    raise ValueError(f"{physical_id}: every property of this type replaces the resource, so nothing can update it")
