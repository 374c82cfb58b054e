"""Auto Scaling groups behind managed node groups. No instance is ever launched: desired capacity is only a number."""

from __future__ import annotations

import uuid
from typing import Any

from . import state
from .errors import ServiceError
from .registry import Params, operation

_GROUPS = state.Store()  # name -> AutoScalingGroup
_TAGS = state.Store()  # name -> list of TagDescription
_ACTIVITIES = state.Store()  # name -> list of Activity, newest first


def create_for_nodegroup(nodegroup: dict[str, Any], subnets: list[dict[str, Any]]) -> str:
    """Make the group that EKS makes for a node group; returns its name."""
    name = f"eks-{nodegroup['nodegroupName']}-{uuid.uuid4()}"
    _GROUPS[name] = {
        "AutoScalingGroupName": name,
        "AutoScalingGroupARN": state.arn("autoscaling", f"autoScalingGroup:{uuid.uuid4()}:autoScalingGroupName/{name}"),
        "MinSize": 0,
        "MaxSize": 0,
        "DesiredCapacity": 0,
        "DefaultCooldown": 300,
        "AvailabilityZones": sorted({subnet["AvailabilityZone"] for subnet in subnets}),
        "VPCZoneIdentifier": ",".join(subnet["SubnetId"] for subnet in subnets),
        "HealthCheckType": "EC2",
        "HealthCheckGracePeriod": 15,
        "Instances": [],
        "CreatedTime": state.now(),
        "CapacityRebalance": nodegroup["capacityType"] == "SPOT",
    }
    own = {
        "eks:cluster-name": nodegroup["clusterName"],
        "eks:nodegroup-name": nodegroup["nodegroupName"],
        f"kubernetes.io/cluster/{nodegroup['clusterName']}": "owned",
        f"k8s.io/cluster-autoscaler/{nodegroup['clusterName']}": "owned",
        "k8s.io/cluster-autoscaler/enabled": "true",
    }
    _TAGS[name] = [_tag(name, key, value, propagate=True) for key, value in own.items()]
    _ACTIVITIES[name] = []
    _resize(name, nodegroup["scalingConfig"])
    return name


def resize_for_nodegroup(nodegroup: dict[str, Any]) -> None:
    _resize(_name_of(nodegroup), nodegroup["scalingConfig"])


def _resize(name: str, scaling: dict[str, int]) -> None:
    _GROUPS[name] |= {
        "MinSize": scaling["minSize"],
        "MaxSize": scaling["maxSize"],
        "DesiredCapacity": scaling["desiredSize"],
    }


def delete_for_nodegroup(nodegroup: dict[str, Any]) -> None:
    name = _name_of(nodegroup)
    for kept in (_GROUPS, _TAGS, _ACTIVITIES):
        kept.pop(name)


def _name_of(nodegroup: dict[str, Any]) -> str:
    return str(nodegroup["resources"]["autoScalingGroups"][0]["name"])


def report_launch_failure(name: str, message: str | None) -> None:
    """Put a failed launch at the head of the group's activities; None records a successful one."""
    _ACTIVITIES[name].insert(
        0,
        {
            "ActivityId": str(uuid.uuid4()),
            "AutoScalingGroupName": name,
            "Description": "Launching a new EC2 instance.",
            "Cause": f"At {state.now().isoformat()} an instance was started in response to a difference between desired "
            "and actual capacity",
            "StartTime": state.now(),
            "EndTime": state.now(),
            "StatusCode": "Failed" if message else "Successful",
            "StatusMessage": message or "",
            "Progress": 100,
        },
    )


def _tag(name: str, key: str, value: str, *, propagate: bool) -> dict[str, Any]:
    return {
        "ResourceId": name,
        "ResourceType": "auto-scaling-group",
        "Key": key,
        "Value": value,
        "PropagateAtLaunch": propagate,
    }


def _group(name: str) -> dict[str, Any]:
    found: dict[str, Any] | None = _GROUPS.get(name)
    if found is None:
        raise ServiceError("ValidationError", f"AutoScalingGroup name not found - AutoScalingGroup {name} not found")
    return found


@operation("autoscaling", "DescribeAutoScalingGroups")
def describe_groups(params: Params) -> Params:
    wanted = params.get("AutoScalingGroupNames")
    found = [group for name, group in _GROUPS.items() if not wanted or name in wanted]
    shown = [{**group, "Tags": list(_TAGS[group["AutoScalingGroupName"]])} for group in found]
    return {"AutoScalingGroups": [one for one in shown if _passes(one, params.get("Filters", []))]}


def _passes(group: dict[str, Any], filters: list[dict[str, Any]]) -> bool:
    for condition in filters:
        name, values = condition["Name"], condition.get("Values", [])
        if name == "tag-key":
            actual = {tag["Key"] for tag in group["Tags"]}
        elif name.startswith("tag:"):
            actual = {tag["Value"] for tag in group["Tags"] if tag["Key"] == name[4:]}
        else:
            raise ServiceError("ValidationError", f"the emulator does not implement the filter {name}")
        if not actual & set(values):
            return False
    return True


@operation("autoscaling", "CreateOrUpdateTags")
def create_or_update_tags(params: Params) -> None:
    for tag in params["Tags"]:
        name = tag["ResourceId"]
        _group(name)
        kept = [one for one in _TAGS[name] if one["Key"] != tag["Key"]]
        fresh = _tag(name, tag["Key"], tag.get("Value", ""), propagate=tag.get("PropagateAtLaunch", False))
        _TAGS[name] = [*kept, fresh]


@operation("autoscaling", "DeleteTags")
def delete_tags(params: Params) -> None:
    for tag in params["Tags"]:
        _group(tag["ResourceId"])
        _TAGS[tag["ResourceId"]] = [one for one in _TAGS[tag["ResourceId"]] if one["Key"] != tag["Key"]]


_TAG_FILTERS = {"auto-scaling-group": "ResourceId", "key": "Key", "value": "Value"}


@operation("autoscaling", "DescribeTags")
def describe_tags(params: Params) -> Params:
    tags = [tag for kept in _TAGS.values() for tag in kept]
    for condition in params.get("Filters", []):
        if condition["Name"] not in _TAG_FILTERS:
            raise ServiceError("ValidationError", f"the emulator does not implement the filter {condition['Name']}")
        tags = [tag for tag in tags if tag[_TAG_FILTERS[condition["Name"]]] in condition.get("Values", [])]
    return {"Tags": tags}


@operation("autoscaling", "DescribeScalingActivities")
def describe_scaling_activities(params: Params) -> Params:
    if "AutoScalingGroupName" in params:
        _group(params["AutoScalingGroupName"])
        return {"Activities": list(_ACTIVITIES[params["AutoScalingGroupName"]])}
    return {"Activities": [one for kept in _ACTIVITIES.values() for one in kept]}


@operation("autoscaling", "SetDesiredCapacity")
def set_desired_capacity(params: Params) -> None:
    group, wanted = _group(params["AutoScalingGroupName"]), params["DesiredCapacity"]
    if not group["MinSize"] <= wanted <= group["MaxSize"]:
        raise ServiceError(
            "ValidationError",
            f"New SetDesiredCapacity value {wanted} is outside [{group['MinSize']}, {group['MaxSize']}] "
            f"for the AutoScalingGroup {group['AutoScalingGroupName']}.",
        )
    group["DesiredCapacity"] = wanted
