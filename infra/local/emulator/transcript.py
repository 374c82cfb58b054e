"""What CloudFormation and API clients did to EKS, EC2 and Auto Scaling, in order.

Each entry: {"service", "operation", "parameters", "origin": "cloudformation" | "client", "stack", "logical_id"}, and
"error" with the code when the call was refused. Reads are not recorded.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

RECORDED_SERVICES = frozenset({"autoscaling", "ec2", "eks"})
_READS = ("Describe", "Get", "List")


@dataclass(frozen=True, slots=True)
class Origin:
    """Who causes the calls made now: a client, or CloudFormation for one resource of one stack."""

    kind: str = "client"
    stack: str | None = None
    logical_id: str | None = None


_CLIENT = Origin()
_origin: contextvars.ContextVar[Origin] = contextvars.ContextVar("moerl_origin", default=_CLIENT)
_entries: list[dict[str, Any]] = []


@contextlib.contextmanager
def caused_by(origin: Origin) -> Iterator[None]:
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def record(service: str, operation: str, parameters: Mapping[str, Any], error: str | None = None) -> None:
    if service not in RECORDED_SERVICES or operation.startswith(_READS):
        return
    origin = _origin.get()
    if origin.kind not in ("client", "cloudformation"):  # a service's own follow-up, such as EKS making a group
        return
    entry: dict[str, Any] = {
        "service": service,
        "operation": operation,
        "parameters": copy.deepcopy(dict(parameters)),
        "origin": origin.kind,
        "stack": origin.stack,
        "logical_id": origin.logical_id,
    }
    if error is not None:
        entry["error"] = error
    _entries.append(entry)


def entries() -> list[dict[str, Any]]:
    return list(_entries)


def clear() -> None:
    _entries.clear()
