"""AWS::Scheduler::Schedule over ministack's EventBridge Scheduler API. Nothing ever fires before its time."""

from __future__ import annotations

from typing import Any

from . import shapes
from .gateway import call_ministack
from .registry import Created, Params, resource


def _parameters(name: str, props: Params) -> Params:
    sent: Params = shapes.to_api("scheduler", "CreateScheduleInput", {**props, "Name": name})
    return sent


def _create(name: str, props: Params) -> Created:
    name = props.get("Name", name)
    reply = call_ministack("scheduler", "CreateSchedule", _parameters(name, props))
    return name, {"Arn": reply["ScheduleArn"]}


def _update(name: str, _old: Params, new: Params) -> dict[str, Any]:
    return {"Arn": call_ministack("scheduler", "UpdateSchedule", _parameters(name, new))["ScheduleArn"]}


def _delete(name: str, props: Params) -> None:
    group = {"GroupName": props["GroupName"]} if "GroupName" in props else {}
    call_ministack("scheduler", "DeleteSchedule", {"Name": name, **group})


resource(
    "AWS::Scheduler::Schedule",
    create=_create,
    update=_update,
    delete=_delete,
    properties="Description EndDate FlexibleTimeWindow GroupName KmsKeyArn Name ScheduleExpression"
    " ScheduleExpressionTimezone StartDate State Target",
    # GroupName is not in the registry schema's list, but UpdateSchedule cannot move a schedule.
    replaces="Name GroupName",
    tags=None,
    name_length=64,
)
