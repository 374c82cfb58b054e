"""Managed node groups, each with the Auto Scaling group that EKS keeps behind it."""

from __future__ import annotations

from typing import Any

from .. import autoscaling, registry, state
from ..registry import Params, call, operation
from . import common, nodegroup_rules
from .common import NODEGROUPS, invalid


def nodegroup(cluster_name: str, name: str) -> dict[str, Any]:
    """That node group. Raises ResourceNotFoundException."""
    common.cluster(cluster_name)
    found: dict[str, Any] | None = NODEGROUPS.get((cluster_name, name))
    if found is None:
        raise common.not_found(f"No node group found for name: {name}.")
    return found


@operation("eks", "CreateNodegroup")
def create_nodegroup(params: Params) -> Params:
    cluster = common.cluster(params["clusterName"])
    name = params["nodegroupName"]
    if (cluster["name"], name) in NODEGROUPS:
        raise common.in_use(f"NodeGroup already exists with name {name} and cluster name {cluster['name']}")
    subnets = nodegroup_rules.check_subnets(params["subnets"])
    shown, data = (
        nodegroup_rules.resolve_template(params["launchTemplate"]) if "launchTemplate" in params else (None, None)
    )
    nodegroup_rules.check_template(params, data)
    scaling = {"minSize": 1, "maxSize": 2, **params.get("scalingConfig", {})}
    scaling.setdefault("desiredSize", scaling["minSize"])
    nodegroup_rules.check_sizes(scaling)
    custom = bool(data and data.get("ImageId"))
    group: dict[str, Any] = {
        "nodegroupName": name,
        "nodegroupArn": state.arn("eks", f"nodegroup/{cluster['name']}/{name}/{state.hex_id('ng')[3:]}"),
        "clusterName": cluster["name"],
        "createdAt": state.now(),
        "modifiedAt": state.now(),
        "status": "ACTIVE",
        "capacityType": params.get("capacityType", "ON_DEMAND"),
        "scalingConfig": scaling,
        "subnets": list(params["subnets"]),
        "amiType": params.get("amiType", "CUSTOM" if custom else "AL2023_x86_64_STANDARD"),
        "nodeRole": params["nodeRole"],
        "labels": dict(params.get("labels", {})),
        "taints": list(params.get("taints", [])),
        "updateConfig": params.get("updateConfig", {"maxUnavailable": 1}),
        "nodeRepairConfig": params.get("nodeRepairConfig", {"enabled": False}),
        "health": {"issues": []},
        "tags": dict(params.get("tags", {})),
    }
    if not custom:
        group["version"] = params.get("version", cluster["version"])
        group["releaseVersion"] = params.get("releaseVersion", f"{group['version']}.0-emulator")
    if shown is not None:
        group["launchTemplate"] = shown
    if shown is None or params.get("instanceTypes"):
        group["instanceTypes"] = list(params.get("instanceTypes", ["t3.medium"]))
    if shown is None:
        group["diskSize"] = params.get("diskSize", 20)
    if "warmPoolConfig" in params:
        group["warmPoolConfig"] = params["warmPoolConfig"]
    group["resources"] = {"autoScalingGroups": [{"name": autoscaling.create_for_nodegroup(group, subnets)}]}
    NODEGROUPS[cluster["name"], name] = group
    _admit_node_role(cluster, group["nodeRole"])
    return {"nodegroup": group}


def _admit_node_role(cluster: dict[str, Any], role_arn: str) -> None:
    """EKS gives the node role its access entry, unless there is one."""
    if cluster["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
        return
    if (cluster["name"], role_arn) in common.ACCESS_ENTRIES:
        return
    entry = {"clusterName": cluster["name"], "principalArn": role_arn, "type": "EC2_LINUX"}
    with registry.by_service("eks.amazonaws.com"):
        call("eks", "CreateAccessEntry", entry)


@operation("eks", "DescribeNodegroup")
def describe_nodegroup(params: Params) -> Params:
    return {"nodegroup": nodegroup(params["clusterName"], params["nodegroupName"])}


@operation("eks", "ListNodegroups")
def list_nodegroups(params: Params) -> Params:
    return {"nodegroups": [one["nodegroupName"] for one in common.of_cluster(NODEGROUPS, params["clusterName"])]}


@operation("eks", "UpdateNodegroupConfig")
def update_nodegroup_config(params: Params) -> Params:
    group = nodegroup(params["clusterName"], params["nodegroupName"])
    logged: dict[str, Any] = {}
    if "scalingConfig" in params:
        scaling = {**group["scalingConfig"], **params["scalingConfig"]}
        nodegroup_rules.check_sizes(scaling)
        group["scalingConfig"] = scaling
        autoscaling.resize_for_nodegroup(group)
        logged |= {key[0].upper() + key[1:]: value for key, value in params["scalingConfig"].items()}
    if "labels" in params:
        added, removed = params["labels"].get("addOrUpdateLabels", {}), params["labels"].get("removeLabels", [])
        kept = {key: value for key, value in group["labels"].items() if key not in removed}
        group["labels"] = {**kept, **added}
        logged |= {"LabelsToAdd": added, "LabelsToRemove": removed}
    if "taints" in params:
        added, removed = params["taints"].get("addOrUpdateTaints", []), params["taints"].get("removeTaints", [])
        dropped = {_taint_key(one) for one in (*added, *removed)}
        group["taints"] = [one for one in group["taints"] if _taint_key(one) not in dropped] + list(added)
        logged |= {"TaintsToAdd": added, "TaintsToRemove": removed}
    for key, name in (("updateConfig", "MaxUnavailable"), ("nodeRepairConfig", "NodeRepairConfig")):
        if key in params:
            group[key] = params[key]
            logged[name] = params[key]
    if "warmPoolConfig" in params:
        group["warmPoolConfig"] = params["warmPoolConfig"]
    group["modifiedAt"] = state.now()
    return common.finished_update(group["clusterName"], "ConfigUpdate", logged, nodegroup=group["nodegroupName"])


def _taint_key(taint: dict[str, str]) -> tuple[str | None, str | None]:
    return taint.get("key"), taint.get("effect")


@operation("eks", "UpdateNodegroupVersion")
def update_nodegroup_version(params: Params) -> Params:
    group = nodegroup(params["clusterName"], params["nodegroupName"])
    logged: dict[str, Any] = {}
    if "launchTemplate" in params:
        if "launchTemplate" not in group:
            raise invalid("You cannot add a launch template to a node group that was created without one")
        shown, data = nodegroup_rules.resolve_template(params["launchTemplate"])
        if shown["id"] != group["launchTemplate"]["id"]:
            raise invalid(
                f"You must specify the launch template that the node group was created with "
                f"({group['launchTemplate']['id']}), not {shown['id']}"
            )
        _check_new_template(group, data)
        group["launchTemplate"] = shown
        logged["LaunchTemplateVersion"] = shown["version"]
    cluster_version = common.cluster(params["clusterName"])["version"]
    if "version" in params:
        if _minor(params["version"]) > _minor(cluster_version):
            raise invalid(f"Node group version {params['version']} is above the cluster's {cluster_version}")
        group["version"] = params["version"]
        group["releaseVersion"] = f"{params['version']}.0-emulator"
        logged["Version"] = params["version"]
    if "releaseVersion" in params:
        group["releaseVersion"] = params["releaseVersion"]
        logged["ReleaseVersion"] = params["releaseVersion"]
    if not logged:
        group["releaseVersion"] = f"{group.get('version', cluster_version)}.0-emulator"
    group["modifiedAt"] = state.now()
    return common.finished_update(group["clusterName"], "VersionUpdate", logged, nodegroup=group["nodegroupName"])


def _check_new_template(group: dict[str, Any], data: dict[str, Any]) -> None:
    # A stored group carries defaults that its creator never set; only an explicit pin collides with a custom image.
    asked = {key: value for key, value in group.items() if key not in ("version", "releaseVersion")}
    if (group["amiType"] == "CUSTOM") != bool(data.get("ImageId")):
        raise invalid("You cannot switch a node group between an EKS AMI and a custom image id")
    nodegroup_rules.check_template(asked, data)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


@operation("eks", "DeleteNodegroup")
def delete_nodegroup(params: Params) -> Params:
    group = nodegroup(params["clusterName"], params["nodegroupName"])
    autoscaling.delete_for_nodegroup(group)
    NODEGROUPS.pop((group["clusterName"], group["nodegroupName"]))
    return {"nodegroup": {**group, "status": "DELETING"}}


def report_health(cluster_name: str, name: str, issue: dict[str, str] | None) -> None:
    """Give a node group the health issue {"code", "message"} and a failed scaling activity, or clear it with None."""
    group = nodegroup(cluster_name, name)
    asg = group["resources"]["autoScalingGroups"][0]["name"]
    group["status"] = "DEGRADED" if issue else "ACTIVE"
    group["health"] = {"issues": [{**issue, "resourceIds": [asg]}] if issue else []}
    autoscaling.report_launch_failure(asg, issue["message"] if issue else None)
