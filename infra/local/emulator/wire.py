"""Requests in, replies out, for any service: driven by botocore's own service models, so no field is spelt twice.

A request is decoded by walking the operation's input shape, a reply by walking its output shape. Protocols: json,
rest-json, query, ec2.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode
from xml.sax.saxutils import escape

import botocore.session
from botocore.awsrequest import HeadersDict as CaseInsensitiveDict
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from .errors import ServiceError

Reply = tuple[int, dict[str, str], bytes]


@functools.cache
def _session() -> botocore.session.Session:
    return botocore.session.Session()


@functools.cache
def service_model(service: str) -> ServiceModel:
    """botocore's model of a service, by its boto3 client name."""
    return _session().get_service_model(service)


def protocol(model: ServiceModel) -> str:
    return str(model.resolved_protocol)  # the one that boto3 speaks, where the service takes several


# ---- requests ---------------------------------------------------------------------------------------------------


def parse_request(
    model: ServiceModel, method: str, path: str, headers: Mapping[str, str], body: bytes, query: Mapping[str, list[str]]
) -> tuple[str, dict[str, Any]]:
    """(operation name, parameters) of an HTTP request. Raises ServiceError when the model has no such operation."""
    kind = protocol(model)
    if kind == "json":
        name = headers.get("x-amz-target", "").rpartition(".")[2]
        return _known(model, name), json.loads(body or b"{}")
    if kind == "rest-json":
        return _parse_rest(model, method, path, body, query)
    form = {key: values[-1] for key, values in query.items()}
    form |= {key: values[-1] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
    name = _known(model, form.get("Action", ""))
    shape = model.operation_model(name).input_shape
    if shape is None:
        return name, {}
    return name, _from_form(shape, _form_tree(form), ec2=kind == "ec2") or {}


def _known(model: ServiceModel, name: str) -> str:
    if name not in model.operation_names:
        raise ServiceError("InvalidAction", f"{model.service_name} has no operation {name!r}")
    return name


def _parse_rest(
    model: ServiceModel, method: str, path: str, body: bytes, query: Mapping[str, list[str]]
) -> tuple[str, dict[str, Any]]:
    for verb, pattern, name in _rest_routes(model.service_name):
        found = pattern.fullmatch(path) if verb == method else None
        if found is None:
            continue
        shape = model.operation_model(name).input_shape
        params: dict[str, Any] = json.loads(body) if body else {}
        if shape is not None:
            params = _rename_body(shape, params)
            params |= _from_uri(shape, found.groupdict(), query)
        return name, params
    raise ServiceError("UnknownOperationException", f"{model.service_name}: no operation at {method} {path}", 404)


@functools.cache
def _rest_routes(service: str) -> list[tuple[str, re.Pattern[str], str]]:
    routes = []
    model = service_model(service)
    for name in model.operation_names:
        http = model.operation_model(name).http
        uri = http["requestUri"].partition("?")[0]
        pattern = "".join(_uri_part(part) for part in re.split(r"(\{[^}]+\})", uri))
        routes.append((http["method"], re.compile(pattern), name))
    # A literal path beats a template of the same length: /addons/supported-versions before /addons/{name}.
    return sorted(routes, key=lambda route: route[1].pattern.count("(?P<"))


def _uri_part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    name = part.strip("{}")
    return f"(?P<{name.rstrip('+')}>.+)" if name.endswith("+") else f"(?P<{name}>[^/]+)"


def _rename_body(shape: StructureShape, body: dict[str, Any]) -> dict[str, Any]:
    names = {member.serialization.get("name", key): key for key, member in shape.members.items()}
    return {names.get(key, key): value for key, value in body.items()}


def _from_uri(shape: StructureShape, uri: Mapping[str, str], query: Mapping[str, list[str]]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for key, member in shape.members.items():
        location = member.serialization.get("location")
        name = member.serialization.get("name", key)
        if location == "uri" and name in uri:
            params[key] = _scalar(member, unquote(uri[name]))
        elif location == "querystring" and name in query:
            values = query[name]
            params[key] = list(values) if isinstance(member, ListShape) else _scalar(member, values[-1])
    return params


def _form_tree(form: Mapping[str, str]) -> dict[str, Any]:
    """{'A.1.B': 'x'} as {'A': {'1': {'B': 'x'}}}."""
    tree: dict[str, Any] = {}
    for dotted, value in form.items():
        node = tree
        *parents, leaf = dotted.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def _from_form(shape: Shape, node: Any, *, ec2: bool) -> Any:
    if isinstance(shape, StructureShape):
        members = {key: node.get(_form_name(key, member, ec2=ec2)) for key, member in shape.members.items()}
        return {
            key: _from_form(shape.members[key], value, ec2=ec2) for key, value in members.items() if value is not None
        }
    if isinstance(shape, ListShape):
        return [_from_form(shape.member, item, ec2=ec2) for item in _form_items(shape, node, ec2=ec2)]
    if isinstance(shape, MapShape):
        entries = node.get("entry", node)
        return {entry["key"]: _from_form(shape.value, entry["value"], ec2=ec2) for entry in _numbered(entries)}
    return _scalar(shape, node)


def _form_name(key: str, member: Shape, *, ec2: bool) -> str:
    serialization = member.serialization
    if not ec2:
        if isinstance(member, ListShape) and serialization.get("flattened"):
            return str(member.member.serialization.get("name", serialization.get("name", key)))
        return str(serialization.get("name", key))
    name = str(serialization.get("queryName") or serialization.get("name") or key)
    return name if "queryName" in serialization else name[0].upper() + name[1:]


def _form_items(shape: ListShape, node: Any, *, ec2: bool) -> Iterator[Any]:
    if not isinstance(node, dict):  # an empty list travels as 'Name='
        return
    if not ec2 and not shape.serialization.get("flattened"):
        node = node.get(shape.member.serialization.get("name", "member"), node)
    yield from _numbered(node)


def _numbered(node: Mapping[str, Any]) -> Iterator[Any]:
    for key in sorted(node, key=int):
        yield node[key]


def _scalar(shape: Shape, value: Any) -> Any:
    if shape.type_name in ("integer", "long"):
        return int(value)
    if shape.type_name in ("float", "double"):
        return float(value)
    if shape.type_name == "boolean":
        return str(value).lower() == "true"
    return value


# ---- the client's side, for calls inside the process -----------------------------------------------------------


def serialize_request(
    model: ServiceModel, operation: str, params: Mapping[str, Any]
) -> tuple[str, str, dict[str, str], bytes, dict[str, list[str]]]:
    """(method, path, headers, body, query) as boto3 would send the call."""
    kind = protocol(model)
    request = create_serializer(kind).serialize_to_request(dict(params), model.operation_model(operation))
    path, _, text = request["url_path"].partition("?")
    query = {key: [str(value)] for key, value in (request.get("query_string") or {}).items()}
    query |= parse_qs(text, keep_blank_values=True)
    headers = {key.lower(): str(value) for key, value in request["headers"].items()}
    body = request["body"]
    if isinstance(body, dict):
        body = urlencode(body)
    return request["method"], unquote(path), headers, body.encode() if isinstance(body, str) else body, query


def parse_reply(
    model: ServiceModel, operation: str, status: int, headers: Mapping[str, str], body: Any
) -> dict[str, Any]:
    """The reply as boto3 would return it. Raises ServiceError for an error reply."""
    raw = body.encode() if isinstance(body, str) else bytes(body or b"")
    reply = {"status_code": status, "headers": CaseInsensitiveDict(headers), "body": raw, "context": {}}
    shape = model.operation_model(operation).output_shape
    parsed: dict[str, Any] = create_parser(protocol(model)).parse(reply, shape)
    if status >= 300:
        error = parsed.get("Error", {})
        raise ServiceError(error.get("Code", str(status)), error.get("Message", raw.decode(errors="replace")), status)
    return parsed


# ---- replies ----------------------------------------------------------------------------------------------------


def render_reply(model: ServiceModel, operation: str, result: Mapping[str, Any]) -> Reply:
    """The HTTP reply (status, headers, body) of an operation. Members that the output shape lacks raise KeyError,
    because a reader could never see them."""
    op = model.operation_model(operation)
    kind = protocol(model)
    if kind in ("json", "rest-json"):
        document = _to_json(op.output_shape, result) if op.output_shape is not None else {}
        content_type = "application/json" if kind == "rest-json" else f"application/x-amz-json-{_json_version(model)}"
        return 200, {"Content-Type": content_type}, json.dumps(document).encode()
    return 200, {"Content-Type": "text/xml"}, _to_xml_document(op, result, ec2=kind == "ec2").encode()


def render_error(model: ServiceModel, error: ServiceError) -> Reply:
    kind = protocol(model)
    if kind in ("json", "rest-json"):
        body = json.dumps({"__type": error.code, "message": error.message}).encode()
        return error.status, {"Content-Type": "application/json", "x-amzn-errortype": error.code}, body
    inner = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
    request = uuid.uuid4()
    if kind == "ec2":
        text = f"<Response><Errors>{inner}</Errors><RequestID>{request}</RequestID></Response>"
    else:
        text = f"<ErrorResponse>{inner}<RequestId>{request}</RequestId></ErrorResponse>"
    return error.status, {"Content-Type": "text/xml"}, text.encode()


def _json_version(model: ServiceModel) -> str:
    return str(model.metadata.get("jsonVersion", "1.1"))


def _to_json(shape: Shape, value: Any) -> Any:
    if isinstance(shape, StructureShape):
        return {
            _member(shape, key).serialization.get("name", key): _to_json(_member(shape, key), item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(shape, ListShape):
        return [_to_json(shape.member, item) for item in value]
    if isinstance(shape, MapShape):
        return {key: _to_json(shape.value, item) for key, item in value.items()}
    if shape.type_name == "timestamp":
        return value.timestamp()
    return value


def _member(shape: StructureShape, key: str) -> Shape:
    if key not in shape.members:
        raise KeyError(f"{shape.name} has no member {key!r}: the value could never be read back")
    return shape.members[key]


def _to_xml_document(op: OperationModel, result: Mapping[str, Any], *, ec2: bool) -> str:
    namespace = f"http://ec2.amazonaws.com/doc/{op.service_model.api_version}/"
    shape = op.output_shape
    inner = _to_xml(shape, result, ec2=ec2) if shape is not None else "<return>true</return>"
    if ec2:
        return (
            f'<{op.name}Response xmlns="{namespace}"><requestId>{uuid.uuid4()}</requestId>{inner}</{op.name}Response>'
        )
    wrapper = shape.serialization.get("resultWrapper", f"{op.name}Result") if shape is not None else None
    wrapped = f"<{wrapper}>{inner}</{wrapper}>" if wrapper else ""
    metadata = f"<ResponseMetadata><RequestId>{uuid.uuid4()}</RequestId></ResponseMetadata>"
    return f"<{op.name}Response>{wrapped}{metadata}</{op.name}Response>"


def _to_xml(shape: Shape, value: Any, *, ec2: bool) -> str:
    if isinstance(shape, StructureShape):
        return "".join(
            _to_element(_member(shape, key), key, item, ec2=ec2) for key, item in value.items() if item is not None
        )
    if isinstance(shape, ListShape):
        tag = shape.member.serialization.get("name", "item" if ec2 else "member")
        return "".join(f"<{tag}>{_to_xml(shape.member, item, ec2=ec2)}</{tag}>" for item in value)
    if shape.type_name == "boolean":
        return str(bool(value)).lower()
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return escape(str(value))


def _to_element(shape: Shape, key: str, value: Any, *, ec2: bool) -> str:
    tag = shape.serialization.get("name", key)
    return f"<{tag}>{_to_xml(shape, value, ec2=ec2)}</{tag}>"
