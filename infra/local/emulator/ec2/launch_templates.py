"""Launch templates, with what EC2 and EKS refuse in them, and placement groups."""

from __future__ import annotations

import copy
from typing import Any

from .. import shapes, state
from ..errors import ServiceError
from ..registry import Created, Params, call, operation, resource
from . import common

TEMPLATES = common.store("lt")
PLACEMENT_GROUPS = common.store("pg")

_VERSIONS = state.Store()  # template id -> list of versions, oldest first
_MISSING = "InvalidLaunchTemplateId.NotFound"
_NAME_MISSING = "InvalidLaunchTemplateName.NotFoundException"


def find(launch_template_id: str | None, name: str | None) -> dict[str, Any]:
    """The template with that id or name. Raises EC2's not-found error."""
    if launch_template_id:
        return common.require(TEMPLATES, launch_template_id, _MISSING, "launch template")
    named: list[dict[str, Any]] = [one for one in TEMPLATES.values() if one["LaunchTemplateName"] == name]
    if named:
        return named[0]
    raise ServiceError(_NAME_MISSING, f"The specified launch template, with template name {name}, does not exist.")


def version_of(template: dict[str, Any], version: str | None) -> dict[str, Any]:
    """One version of a template: a number, '$Latest', '$Default' or None (the default)."""
    versions: list[dict[str, Any]] = _VERSIONS[template["LaunchTemplateId"]]
    number = {"$Latest": template["LatestVersionNumber"], "$Default": template["DefaultVersionNumber"]}.get(
        version or "$Default", version
    )
    for one in versions:
        if str(one["VersionNumber"]) == str(number):
            return one
    raise ServiceError(
        "InvalidLaunchTemplateId.VersionNotFound",
        f"Could not find the specified version {version} for the launch template {template['LaunchTemplateId']}.",
    )


@operation("ec2", "CreateLaunchTemplate")
def create_launch_template(params: Params) -> Params:
    name = params["LaunchTemplateName"]
    if any(template["LaunchTemplateName"] == name for template in TEMPLATES.values()):
        raise ServiceError(
            "InvalidLaunchTemplateName.AlreadyExistsException", f"Launch template name {name} already in use."
        )
    template_id = state.hex_id("lt")
    TEMPLATES[template_id] = template = {
        "LaunchTemplateId": template_id,
        "LaunchTemplateName": name,
        "CreateTime": state.now(),
        "CreatedBy": f"arn:aws:iam::{state.account()}:root",
        "DefaultVersionNumber": 1,
        "LatestVersionNumber": 0,
        "Tags": common.new_tags(params, "launch-template"),
    }
    _VERSIONS[template_id] = []
    _add_version(template, params)
    return {"LaunchTemplate": template}


def _add_version(template: dict[str, Any], params: Params) -> dict[str, Any]:
    template["LatestVersionNumber"] += 1
    version = {
        "LaunchTemplateId": template["LaunchTemplateId"],
        "LaunchTemplateName": template["LaunchTemplateName"],
        "VersionNumber": template["LatestVersionNumber"],
        "CreateTime": state.now(),
        "CreatedBy": template["CreatedBy"],
        "LaunchTemplateData": copy.deepcopy(params["LaunchTemplateData"]),
    }
    if "VersionDescription" in params:
        version["VersionDescription"] = params["VersionDescription"]
    _VERSIONS[template["LaunchTemplateId"]].append(version)
    return version


@operation("ec2", "CreateLaunchTemplateVersion")
def create_launch_template_version(params: Params) -> Params:
    template = find(params.get("LaunchTemplateId"), params.get("LaunchTemplateName"))
    return {"LaunchTemplateVersion": _shown(template, _add_version(template, params))}


@operation("ec2", "ModifyLaunchTemplate")
def modify_launch_template(params: Params) -> Params:
    template = find(params.get("LaunchTemplateId"), params.get("LaunchTemplateName"))
    template["DefaultVersionNumber"] = version_of(template, params["DefaultVersion"])["VersionNumber"]
    return {"LaunchTemplate": template}


@operation("ec2", "DeleteLaunchTemplate")
def delete_launch_template(params: Params) -> Params:
    template = find(params.get("LaunchTemplateId"), params.get("LaunchTemplateName"))
    _VERSIONS.pop(template["LaunchTemplateId"])
    TEMPLATES.pop(template["LaunchTemplateId"])
    return {"LaunchTemplate": template}


@operation("ec2", "DescribeLaunchTemplates")
def describe_launch_templates(params: Params) -> Params:
    if params.get("LaunchTemplateIds"):
        found = [find(one, None) for one in params["LaunchTemplateIds"]]
    elif params.get("LaunchTemplateNames"):
        found = [find(None, one) for one in params["LaunchTemplateNames"]]
    else:
        found = list(TEMPLATES.values())
    filters = params.get("Filters", [])
    return {"LaunchTemplates": [item for item in found if all(common.matches(item, one) for one in filters)]}


def _shown(template: dict[str, Any], version: dict[str, Any]) -> dict[str, Any]:
    return {**version, "DefaultVersion": version["VersionNumber"] == template["DefaultVersionNumber"]}


@operation("ec2", "DescribeLaunchTemplateVersions")
def describe_launch_template_versions(params: Params) -> Params:
    template = find(params.get("LaunchTemplateId"), params.get("LaunchTemplateName"))
    if params.get("Versions"):
        versions = [version_of(template, one) for one in params["Versions"]]
    else:
        versions = list(reversed(_VERSIONS[template["LaunchTemplateId"]]))
    return {"LaunchTemplateVersions": [_shown(template, one) for one in versions]}


def interface_problems(data: dict[str, Any]) -> list[str]:
    """Why EC2 would refuse to launch from this launch template data: its interface layout. Empty when it would not."""
    interfaces = data.get("NetworkInterfaces") or []
    problems = []
    if interfaces and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
        problems.append(
            "Network interfaces and an instance-level security groups may not be specified on the same request"
        )
    seen: set[tuple[int, int]] = set()
    for interface in interfaces:
        card, device = interface.get("NetworkCardIndex", 0), interface.get("DeviceIndex", 0)
        where = f"network card {card}, device {device}"
        if (card, device) in seen:
            problems.append(f"Each network interface requires a unique device index: {where} is used twice")
        seen.add((card, device))
        if device > 1:
            problems.append(f"device index {device} on network card {card} is above 1, the most that EFA layouts take")
        if (card, device) == (0, 0) and interface.get("InterfaceType") == "efa-only":
            problems.append("The primary network interface (network card 0, device 0) cannot be of type efa-only")
    if interfaces and (0, 0) not in seen:
        problems.append("A primary network interface (network card 0, device 0) is required")
    return problems


# ---- CloudFormation: launch template ----------------------------------------------------------------------------


def _template_data(props: Params) -> dict[str, Any]:
    data: dict[str, Any] = shapes.to_api("ec2", "RequestLaunchTemplateData", props["LaunchTemplateData"])
    return data


def _template_create(name: str, props: Params) -> Created:
    sent = {
        "LaunchTemplateName": props.get("LaunchTemplateName", name),
        "LaunchTemplateData": _template_data(props),
        "VersionDescription": props.get("VersionDescription"),
        "TagSpecifications": props.get("TagSpecifications"),
    }
    template_id = call("ec2", "CreateLaunchTemplate", sent)["LaunchTemplate"]["LaunchTemplateId"]
    return template_id, _template_attributes(template_id)


def _template_attributes(template_id: str) -> dict[str, Any]:
    template = TEMPLATES[template_id]
    numbers = {key: str(template[key]) for key in ("DefaultVersionNumber", "LatestVersionNumber")}
    return {"LaunchTemplateId": template_id, **numbers}


def _template_update(template_id: str, old: Params, new: Params) -> dict[str, Any]:
    differs = shapes.changed(old, new)
    if differs & {"LaunchTemplateData", "VersionDescription"}:
        sent = {
            "LaunchTemplateId": template_id,
            "LaunchTemplateData": _template_data(new),
            "VersionDescription": new.get("VersionDescription"),
        }
        call("ec2", "CreateLaunchTemplateVersion", sent)
    if "TagSpecifications" in differs:
        common.retag(template_id, *({"Tags": common.new_tags(one, "launch-template")} for one in (old, new)))
    return _template_attributes(template_id)


resource(
    "AWS::EC2::LaunchTemplate",
    create=_template_create,
    update=_template_update,
    delete=lambda template_id, _props: call("ec2", "DeleteLaunchTemplate", {"LaunchTemplateId": template_id}),
    properties="LaunchTemplateName LaunchTemplateData VersionDescription TagSpecifications",
    replaces="LaunchTemplateName",
    tags=None,
)


# ---- placement groups -------------------------------------------------------------------------------------------

_PG_UNKNOWN = "InvalidPlacementGroup.Unknown"


def placement_group(name: str) -> dict[str, Any]:
    """The placement group of that name. Raises EC2's not-found error."""
    named: list[dict[str, Any]] = [group for group in PLACEMENT_GROUPS.values() if group["GroupName"] == name]
    if named:
        return named[0]
    raise ServiceError(_PG_UNKNOWN, f"The Placement Group '{name}' is unknown.")


@operation("ec2", "CreatePlacementGroup")
def create_placement_group(params: Params) -> Params:
    if any(group["GroupName"] == params["GroupName"] for group in PLACEMENT_GROUPS.values()):
        raise ServiceError(
            "InvalidPlacementGroup.Duplicate", f"The Placement Group '{params['GroupName']}' already exists."
        )
    group_id = state.hex_id("pg")
    fields: Params = {key: params[key] for key in ("PartitionCount", "SpreadLevel") if key in params}
    PLACEMENT_GROUPS[group_id] = group = {
        "GroupId": group_id,
        "GroupArn": state.arn("ec2", f"placement-group/{params['GroupName']}"),
        "GroupName": params["GroupName"],
        "Strategy": params.get("Strategy", "cluster"),
        "State": "available",
        **fields,
        "Tags": common.new_tags(params, "placement-group"),
    }
    return {"PlacementGroup": group}


@operation("ec2", "DescribePlacementGroups")
def describe_placement_groups(params: Params) -> Params:
    found = list(PLACEMENT_GROUPS.values())
    if params.get("GroupNames"):
        found = [placement_group(name) for name in params["GroupNames"]]
    if params.get("GroupIds"):
        found = [common.require(PLACEMENT_GROUPS, one, _PG_UNKNOWN, "placement group") for one in params["GroupIds"]]
    filters = params.get("Filters", [])
    return {"PlacementGroups": [item for item in found if all(common.matches(item, one) for one in filters)]}


@operation("ec2", "DeletePlacementGroup")
def delete_placement_group(params: Params) -> None:
    PLACEMENT_GROUPS.pop(placement_group(params["GroupName"])["GroupId"])


def _placement_group_create(name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key != "Tags"}
    sent = {
        "GroupName": name,
        **shapes.to_api("ec2", "CreatePlacementGroupRequest", own),
        "TagSpecifications": common.tag_specification(props, "placement-group"),
    }
    group = call("ec2", "CreatePlacementGroup", sent)["PlacementGroup"]
    return name, {"GroupName": name, "GroupId": group["GroupId"]}


resource(
    "AWS::EC2::PlacementGroup",
    create=_placement_group_create,
    delete=lambda name, _props: call("ec2", "DeletePlacementGroup", {"GroupName": name}),
    properties="Strategy PartitionCount SpreadLevel Tags",
    replaces="Strategy PartitionCount SpreadLevel Tags",
    # Stack tags stay away: EC2 cannot retag a group through CloudFormation, and a changed stack tag must not replace it.
    tags=None,
)
