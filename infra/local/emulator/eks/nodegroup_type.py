"""AWS::EKS::Nodegroup: which EKS calls a property change makes."""

from __future__ import annotations

from typing import Any

from .. import shapes
from ..registry import Created, Params, call, resource
from . import common
from .nodegroups import nodegroup

_VERSION_PROPERTIES = frozenset({"Version", "ReleaseVersion"})
_CONFIG_PROPERTIES = frozenset(
    {"ScalingConfig", "Labels", "Taints", "UpdateConfig", "NodeRepairConfig", "WarmPoolConfig"}
)


def _create(name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key not in ("Tags", "ForceUpdateEnabled")}
    sent = shapes.to_api("eks", "CreateNodegroupRequest", {"NodegroupName": name, **own})
    sent["tags"] = shapes.tag_map(props.get("Tags"))
    group = call("eks", "CreateNodegroup", sent)["nodegroup"]
    return f"{group['clusterName']}/{group['nodegroupName']}", _attributes(group)


def _attributes(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "Arn": group["nodegroupArn"],
        "Id": f"{group['clusterName']}/{group['nodegroupName']}",
        "ClusterName": group["clusterName"],
        "NodegroupName": group["nodegroupName"],
    }


def _update(physical_id: str, old: Params, new: Params) -> dict[str, Any]:
    cluster_name, _, name = physical_id.partition("/")
    target = {"clusterName": cluster_name, "nodegroupName": name}
    differs = shapes.changed(old, new) - {"ForceUpdateEnabled"}
    versions = differs & _VERSION_PROPERTIES
    if versions and differs - _VERSION_PROPERTIES:
        raise ValueError(
            "Version and ReleaseVersion updates cannot be combined with other updates: "
            f"{', '.join(sorted(differs))} (deploy the version change on its own)"
        )
    config = _config(differs, old, new)
    if config:
        call("eks", "UpdateNodegroupConfig", {**target, **config})
    if versions or "LaunchTemplate" in differs:
        names = [one for one in ("Version", "ReleaseVersion", "LaunchTemplate") if one in differs and one in new]
        sent = shapes.to_api("eks", "UpdateNodegroupVersionRequest", {one: new[one] for one in names})
        force = {"force": True} if shapes.is_true(new.get("ForceUpdateEnabled", False)) else {}
        call("eks", "UpdateNodegroupVersion", {**target, **sent, **force})
    group = nodegroup(cluster_name, name)
    if "Tags" in differs:
        common.retag(group["nodegroupArn"], old, new)
    return _attributes(group)


def _config(differs: set[str], old: Params, new: Params) -> dict[str, Any]:
    changed = {name: new[name] for name in differs & _CONFIG_PROPERTIES if name in new}
    plain = {name: value for name, value in changed.items() if name not in ("Labels", "Taints")}
    sent: dict[str, Any] = shapes.to_api("eks", "UpdateNodegroupConfigRequest", plain)
    for name, fallback in (("UpdateConfig", {"maxUnavailable": 1}), ("NodeRepairConfig", {"enabled": False})):
        if name in differs and name not in new:
            sent[name[0].lower() + name[1:]] = fallback
    if "Labels" in differs:
        before, after = old.get("Labels") or {}, new.get("Labels") or {}
        fresh = {key: str(value) for key, value in after.items() if before.get(key) != value}
        gone = sorted(before.keys() - after.keys())
        sent["labels"] = {"addOrUpdateLabels": fresh} | ({"removeLabels": gone} if gone else {})
    if "Taints" in differs:
        sent["taints"] = _taint_changes(
            *(shapes.to_api("eks", "taintsList", one.get("Taints") or []) for one in (old, new))
        )
    return sent


def _taint_changes(old: list[Params], new: list[Params]) -> Params:
    kept = {(taint.get("key"), taint.get("effect")) for taint in new}
    gone = [taint for taint in old if (taint.get("key"), taint.get("effect")) not in kept]
    fresh = [taint for taint in new if taint not in old]
    return {"addOrUpdateTaints": fresh} | ({"removeTaints": gone} if gone else {})


def _delete(physical_id: str, _props: Params) -> None:
    cluster_name, _, name = physical_id.partition("/")
    call("eks", "DeleteNodegroup", {"clusterName": cluster_name, "nodegroupName": name})


_REPLACES = "AmiType CapacityType ClusterName DiskSize InstanceTypes NodegroupName NodeRole Subnets"

resource(
    "AWS::EKS::Nodegroup",
    create=_create,
    update=_update,
    delete=_delete,
    properties=f"{_REPLACES} LaunchTemplate ReleaseVersion Version ScalingConfig UpdateConfig NodeRepairConfig"
    " WarmPoolConfig Labels Taints Tags ForceUpdateEnabled",
    replaces=_REPLACES,
    tags="map",
    name_length=63,
)
