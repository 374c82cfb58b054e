"""CloudWatch dashboards with tags, which ministack's lack."""

from __future__ import annotations

import json
from typing import Any

from . import shapes, state
from .alarms import TAGS
from .errors import ServiceError
from .registry import Created, Params, call, operation, resource

DASHBOARDS = state.Store()  # name -> {DashboardArn, DashboardBody, DashboardName, LastModified, Size}


def _arn(name: str) -> str:
    return state.arn("cloudwatch", f"dashboard/{name}", regional=False)


def _found(name: str) -> Params:
    found: Params | None = DASHBOARDS.get(name)
    if found is None:
        raise ServiceError("ResourceNotFound", f"Dashboard {name} does not exist", 404)
    return found


@operation("cloudwatch", "PutDashboard")
def put_dashboard(params: Params) -> Params:
    name, body = params["DashboardName"], params["DashboardBody"]
    try:
        json.loads(body)
    except ValueError as error:
        raise ServiceError("InvalidParameterInput", f"The dashboard body is invalid: {error}") from error
    TAGS.setdefault(_arn(name), shapes.tag_map(params.get("Tags")))
    DASHBOARDS[name] = {
        "DashboardArn": _arn(name),
        "DashboardBody": body,
        "DashboardName": name,
        "LastModified": state.now(),
        "Size": len(body.encode()),
    }
    return {"DashboardValidationMessages": []}


@operation("cloudwatch", "GetDashboard")
def get_dashboard(params: Params) -> Params:
    found = _found(params["DashboardName"])
    return {key: found[key] for key in ("DashboardArn", "DashboardBody", "DashboardName")}


@operation("cloudwatch", "ListDashboards")
def list_dashboards(params: Params) -> Params:
    prefix = params.get("DashboardNamePrefix", "")
    entries = [one for name, one in DASHBOARDS.items() if name.startswith(prefix)]
    return {
        "DashboardEntries": [{key: value for key, value in one.items() if key != "DashboardBody"} for one in entries]
    }


@operation("cloudwatch", "DeleteDashboards")
def delete_dashboards(params: Params) -> Params:
    for name in params["DashboardNames"]:
        _found(name)
    for name in params["DashboardNames"]:
        TAGS.pop(DASHBOARDS.pop(name)["DashboardArn"])
    return {}


def _create(name: str, props: Params) -> Created:
    name = props.get("DashboardName", name)
    if name in DASHBOARDS:
        raise ServiceError("AlreadyExists", f"{name} already exists")
    call("cloudwatch", "PutDashboard", {"DashboardName": name, "DashboardBody": props["DashboardBody"]})
    if props.get("Tags"):
        call("cloudwatch", "TagResource", {"ResourceARN": _arn(name), "Tags": props["Tags"]})
    return name, {}


def _update(name: str, old: Params, new: Params) -> dict[str, Any]:
    if old["DashboardBody"] != new["DashboardBody"]:
        call("cloudwatch", "PutDashboard", {"DashboardName": name, "DashboardBody": new["DashboardBody"]})
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        call("cloudwatch", "UntagResource", {"ResourceARN": _arn(name), "TagKeys": gone})
    if fresh:
        call("cloudwatch", "TagResource", {"ResourceARN": _arn(name), "Tags": shapes.tag_list(fresh)})
    return {}


resource(
    "AWS::CloudWatch::Dashboard",
    create=_create,
    update=_update,
    delete=lambda name, _props: call("cloudwatch", "DeleteDashboards", {"DashboardNames": [name]}),
    properties="DashboardName DashboardBody Tags",
    replaces="DashboardName",
    name_length=255,
)
