"""The emulator's own HTTP paths, all under /_moerl/.

GET /_moerl/health -> {"status", "account", "region", "ministack"}
GET /_moerl/types -> {CloudFormation type: [top-level property that reaches service state]}
GET, DELETE /_moerl/transcript -> the transcript; DELETE empties it.
POST /_moerl/nodegroups/{cluster}/{node group}/health {"code"?, "message"?} -> give the node group a capacity error.
DELETE /_moerl/nodegroups/{cluster}/{node group}/health -> clear it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import ministack.app
from ministack.core.responses import get_account_id, get_region

from . import gateway, guard, transcript
from .eks import nodegroups
from .errors import ServiceError
from .registry import TYPES
from .stock import STOCK_TYPES

_HEALTH = re.compile(r"/_moerl/nodegroups/(?P<cluster>[^/]+)/(?P<name>[^/]+)/health")

# EKS reports a launch failure of any kind under this code, with EC2's own code in the message.
_DEFAULT_ISSUE = {
    "code": "AsgInstanceLaunchFailures",
    "message": "Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient "
    "capacity in the Availability Zone you requested. Launching EC2 instance failed.",
}

AsgiApp = Callable[[dict[str, Any], Any, Any], Awaitable[None]]


def application() -> AsgiApp:
    """ministack's ASGI application with the control paths in front."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/_moerl/"):
            gateway.raw_path.set(scope.get("raw_path", b"").decode("latin-1").partition("?")[0])
            await ministack.app.app(scope, receive, send)
            return
        status, document = _answer(scope["method"], scope["path"], await _body(receive))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(document, default=str).encode()})

    return app


async def _body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _answer(method: str, path: str, body: bytes) -> tuple[int, Any]:
    if (method, path) == ("GET", "/_moerl/health"):
        where = {"account": get_account_id(), "region": get_region()}
        return 200, {"status": "ok", **where, "ministack": guard.PINNED_VERSION}
    if (method, path) == ("GET", "/_moerl/transcript"):
        return 200, transcript.entries()
    if (method, path) == ("DELETE", "/_moerl/transcript"):
        transcript.clear()
        return 200, []
    if (method, path) == ("GET", "/_moerl/types"):
        own = {name: kind.properties for name, kind in TYPES.items()}
        return 200, {name: sorted(properties) for name, properties in (own | STOCK_TYPES).items()}
    found = _HEALTH.fullmatch(path)
    if found is None or method not in ("POST", "DELETE"):
        return 404, {"message": f"no control path {method} {path}"}
    try:
        issue = {**_DEFAULT_ISSUE, **json.loads(body or b"{}")} if method == "POST" else None
        nodegroups.report_health(found["cluster"], found["name"], issue)
    except ServiceError as error:
        return error.status, {"message": error.message}
    return 200, {"issue": issue}
