"""The HTTP side: requests for operations registered here are served here, every other one goes on to ministack."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ministack import app
from ministack.core import router

from . import registry, state, wire
from .errors import ServiceError

Handler = Callable[[str, str, dict[str, str], bytes, dict[str, list[str]]], Awaitable[Any]]

# Services whose unregistered operations ministack must not answer: its state knows none of our resources.
OWN_SERVICES = frozenset({"eks", "fsx", "imagebuilder"})
SHARED_SERVICES = frozenset({"autoscaling", "cloudwatch", "codebuild", "ec2"})
_MINISTACK_NAMES = {"cloudwatch": "monitoring"}

# The request path as it was sent: the decoded one cannot tell a slash in a parameter from a separator.
raw_path: contextvars.ContextVar[str] = contextvars.ContextVar("moerl_raw_path", default="")


def install() -> None:
    """Put the registered operations in front of ministack's."""
    router.SERVICE_PATTERNS["fsx"] = {"target_prefixes": ["AWSSimbaAPIService"]}
    router.SERVICE_PATTERNS["imagebuilder"] = {"host_patterns": [r"imagebuilder\."]}
    for service in OWN_SERVICES | SHARED_SERVICES:
        key = _MINISTACK_NAMES.get(service, service)
        app.SERVICE_HANDLERS[key] = _front(service, app.SERVICE_HANDLERS.get(key))


def _front(service: str, behind: Handler | None) -> Handler:
    model = wire.service_model(service)

    async def handle(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, list[str]]
    ) -> wire.Reply:
        if service == "cloudwatch" and "x-amz-target" not in headers and behind is not None:
            other_protocol: wire.Reply = await behind(method, path, headers, body, query)
            return other_protocol
        try:
            name, params = wire.parse_request(model, method, raw_path.get() or path, headers, body, query)
            if registry.implements(service, name):
                return wire.render_reply(model, name, registry.call(service, name, params))
            if service in OWN_SERVICES or behind is None:
                raise ServiceError("NotImplementedException", f"the emulator does not implement {service}:{name}", 501)
        except ServiceError as error:
            return wire.render_error(model, error)
        reply: wire.Reply = await behind(method, path, headers, body, query)
        return reply

    return handle


def call_ministack(service: str, name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Run an operation of a service that ministack keeps, inside the process, over the real request format.

    Raises ServiceError with ministack's code and message.
    """
    model = wire.service_model(service)
    method, path, headers, body, query = wire.serialize_request(model, name, params)
    headers |= {
        "host": "127.0.0.1",
        "authorization": f"Credential=testing/20260101/{state.region()}/{service}/aws4_request",
    }
    handler = app.SERVICE_HANDLERS[_MINISTACK_NAMES.get(service, service)]
    status, reply_headers, reply_body = _finish(handler(method, path, headers, body, query))
    return wire.parse_reply(model, name, status, reply_headers, reply_body)


def _finish(coroutine: Any) -> Any:
    """The result of a handler that never waits. CloudFormation handlers run on the event loop, so they cannot await."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("a service handler waited inside a CloudFormation handler")
