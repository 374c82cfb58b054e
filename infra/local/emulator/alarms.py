"""CloudWatch metric alarms with metric math, which ministack's lack. No alarm ever changes state here."""

from __future__ import annotations

from typing import Any

from . import gateway, shapes, state
from .errors import ServiceError
from .registry import Created, Params, call, operation, resource

ALARMS = state.Store()  # name -> MetricAlarm
TAGS = state.Store()  # alarm ARN -> {key: value}


@operation("cloudwatch", "PutMetricAlarm")
def put_metric_alarm(params: Params) -> None:
    if ("MetricName" in params) == ("Metrics" in params):
        raise ServiceError("ValidationError", "An alarm needs either MetricName or Metrics")
    name = params["AlarmName"]
    arn = state.arn("cloudwatch", f"alarm:{name}")
    if arn not in TAGS:
        TAGS[arn] = shapes.tag_map(params.get("Tags"))
    before = ALARMS.get(name, {})
    ALARMS[name] = {
        "AlarmArn": arn,
        "ActionsEnabled": True,
        "AlarmActions": [],
        "OKActions": [],
        "InsufficientDataActions": [],
        "Dimensions": [],
        "StateValue": before.get("StateValue", "INSUFFICIENT_DATA"),
        "StateReason": before.get("StateReason", "Unchecked: Initial alarm creation"),
        "StateUpdatedTimestamp": before.get("StateUpdatedTimestamp", state.now()),
        "AlarmConfigurationUpdatedTimestamp": state.now(),
        **{key: value for key, value in params.items() if key != "Tags"},
    }


@operation("cloudwatch", "DescribeAlarms")
def describe_alarms(params: Params) -> Params:
    found = list(ALARMS.values())
    if params.get("AlarmNames"):
        found = [one for one in found if one["AlarmName"] in params["AlarmNames"]]
    if params.get("AlarmNamePrefix"):
        found = [one for one in found if one["AlarmName"].startswith(params["AlarmNamePrefix"])]
    if params.get("StateValue"):
        found = [one for one in found if one["StateValue"] == params["StateValue"]]
    return {"MetricAlarms": found, "CompositeAlarms": []}


@operation("cloudwatch", "DeleteAlarms")
def delete_alarms(params: Params) -> None:
    for name in params["AlarmNames"]:
        if name not in ALARMS:
            raise ServiceError("ResourceNotFound", f"alarm {name} does not exist", 404)
        TAGS.pop(ALARMS.pop(name)["AlarmArn"])


def _tags(params: Params) -> dict[str, str]:
    found: dict[str, str] | None = TAGS.get(params["ResourceARN"])
    if found is None:
        raise ServiceError("ResourceNotFoundException", f"{params['ResourceARN']} does not exist", 404)
    return found


@operation("cloudwatch", "TagResource")
def tag_resource(params: Params) -> None:
    _tags(params).update(shapes.tag_map(params["Tags"]))


@operation("cloudwatch", "UntagResource")
def untag_resource(params: Params) -> None:
    for key in params["TagKeys"]:
        _tags(params).pop(key, None)


@operation("cloudwatch", "ListTagsForResource")
def list_tags(params: Params) -> Params:
    if params["ResourceARN"] not in TAGS:
        return gateway.call_ministack("cloudwatch", "ListTagsForResource", params)
    return {"Tags": shapes.tag_list(_tags(params))}


def _put(name: str, props: Params) -> dict[str, Any]:
    sent = shapes.to_api("cloudwatch", "PutMetricAlarmInput", {**props, "AlarmName": name})
    call("cloudwatch", "PutMetricAlarm", sent)
    return {"Arn": ALARMS[name]["AlarmArn"]}


def _create(name: str, props: Params) -> Created:
    name = props.get("AlarmName", name)
    if name in ALARMS:
        raise ServiceError("AlreadyExists", f"{name} already exists")
    return name, _put(name, props)


def _update(name: str, old: Params, new: Params) -> dict[str, Any]:
    if shapes.changed(old, new) - {"Tags"}:
        _put(name, {key: value for key, value in new.items() if key != "Tags"})
    arn = ALARMS[name]["AlarmArn"]
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        call("cloudwatch", "UntagResource", {"ResourceARN": arn, "TagKeys": gone})
    if fresh:
        call("cloudwatch", "TagResource", {"ResourceARN": arn, "Tags": shapes.tag_list(fresh)})
    return {"Arn": arn}


resource(
    "AWS::CloudWatch::Alarm",
    create=_create,
    update=_update,
    delete=lambda name, _props: call("cloudwatch", "DeleteAlarms", {"AlarmNames": [name]}),
    properties="ActionsEnabled AlarmActions AlarmDescription AlarmName ComparisonOperator DatapointsToAlarm Dimensions"
    " EvaluateLowSampleCountPercentile EvaluationPeriods ExtendedStatistic InsufficientDataActions MetricName Metrics"
    " Namespace OKActions Period Statistic Tags Threshold ThresholdMetricId TreatMissingData Unit",
    replaces="AlarmName",
    name_length=255,
)
