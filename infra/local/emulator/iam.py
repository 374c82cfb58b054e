"""IAM roles and instance profiles over ministack's IAM API."""

from __future__ import annotations

import json
from typing import Any

from . import shapes
from .gateway import call_ministack
from .registry import Created, Params, begun, resource


def _call(name: str, **params: Any) -> dict[str, Any]:
    return call_ministack("iam", name, {key: value for key, value in params.items() if value is not None})


def _text(document: Any) -> str:
    return document if isinstance(document, str) else json.dumps(document)


def _role_create(name: str, props: Params) -> Created:
    name = props.get("RoleName", name)
    role = _call(
        "CreateRole",
        RoleName=name,
        AssumeRolePolicyDocument=_text(props["AssumeRolePolicyDocument"]),
        Path=props.get("Path"),
        Description=props.get("Description"),
        MaxSessionDuration=int(props["MaxSessionDuration"]) if "MaxSessionDuration" in props else None,
        PermissionsBoundary=props.get("PermissionsBoundary"),
        Tags=shapes.tag_list(props.get("Tags")) or None,
    )["Role"]
    begun(name)
    _permissions(name, {}, props)
    return name, _role_attributes(role)


def _role_attributes(role: dict[str, Any]) -> dict[str, Any]:
    return {"Arn": role["Arn"], "RoleId": role["RoleId"]}


def _inline(props: Params) -> dict[str, str]:
    return {one["PolicyName"]: _text(one["PolicyDocument"]) for one in props.get("Policies") or []}


def _permissions(name: str, old: Params, new: Params) -> None:
    """Bring inline and attached policies from the old to the new properties; what others added stays."""
    before, after = _inline(old), _inline(new)
    for policy in before.keys() - after.keys():
        _call("DeleteRolePolicy", RoleName=name, PolicyName=policy)
    for policy, document in after.items():
        if before.get(policy) != document:
            _call("PutRolePolicy", RoleName=name, PolicyName=policy, PolicyDocument=document)
    attached, wanted = (one.get("ManagedPolicyArns") or [] for one in (old, new))
    for arn in attached:
        if arn not in wanted:
            _call("DetachRolePolicy", RoleName=name, PolicyArn=arn)
    for arn in wanted:
        if arn not in attached:
            _call("AttachRolePolicy", RoleName=name, PolicyArn=arn)


def _role_update(name: str, old: Params, new: Params) -> dict[str, Any]:
    differs = shapes.changed(old, new)
    if "AssumeRolePolicyDocument" in differs:
        document = _text(new["AssumeRolePolicyDocument"])
        _call("UpdateAssumeRolePolicy", RoleName=name, PolicyDocument=document)
    if differs & {"Description", "MaxSessionDuration"}:
        duration = int(new.get("MaxSessionDuration", 3600))
        _call("UpdateRole", RoleName=name, Description=new.get("Description", ""), MaxSessionDuration=duration)
    if "PermissionsBoundary" in differs:
        if "PermissionsBoundary" in new:
            _call("PutRolePermissionsBoundary", RoleName=name, PermissionsBoundary=new["PermissionsBoundary"])
        else:
            _call("DeleteRolePermissionsBoundary", RoleName=name)
    _permissions(name, old, new)
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        _call("UntagRole", RoleName=name, TagKeys=gone)
    if fresh:
        _call("TagRole", RoleName=name, Tags=shapes.tag_list(fresh))
    return _role_attributes(_call("GetRole", RoleName=name)["Role"])


def _role_delete(name: str, props: Params) -> None:
    held = _call("ListRolePolicies", RoleName=name)["PolicyNames"]
    for policy in _inline(props):
        if policy in held:
            _call("DeleteRolePolicy", RoleName=name, PolicyName=policy)
    for row in _call("ListAttachedRolePolicies", RoleName=name)["AttachedPolicies"]:
        if row["PolicyArn"] in (props.get("ManagedPolicyArns") or []):
            _call("DetachRolePolicy", RoleName=name, PolicyArn=row["PolicyArn"])
    _call("DeleteRole", RoleName=name)


resource(
    "AWS::IAM::Role",
    create=_role_create,
    update=_role_update,
    delete=_role_delete,
    properties="AssumeRolePolicyDocument Description ManagedPolicyArns MaxSessionDuration Path PermissionsBoundary Policies"
    " RoleName Tags",
    replaces="Path RoleName",
    name_length=64,
)


def _profile_create(name: str, props: Params) -> Created:
    name = props.get("InstanceProfileName", name)
    sent = {"InstanceProfileName": name, "Path": props.get("Path")}
    profile = _call("CreateInstanceProfile", **sent)["InstanceProfile"]
    begun(name)
    for role in props.get("Roles") or []:
        _call("AddRoleToInstanceProfile", InstanceProfileName=name, RoleName=role)
    return name, {"Arn": profile["Arn"]}


def _profile_update(name: str, old: Params, new: Params) -> dict[str, Any]:
    for role in old.get("Roles") or []:
        if role not in (new.get("Roles") or []):
            _call("RemoveRoleFromInstanceProfile", InstanceProfileName=name, RoleName=role)
    for role in new.get("Roles") or []:
        if role not in (old.get("Roles") or []):
            _call("AddRoleToInstanceProfile", InstanceProfileName=name, RoleName=role)
    return {"Arn": _call("GetInstanceProfile", InstanceProfileName=name)["InstanceProfile"]["Arn"]}


def _profile_delete(name: str, _props: Params) -> None:
    for role in _call("GetInstanceProfile", InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        _call("RemoveRoleFromInstanceProfile", InstanceProfileName=name, RoleName=role["RoleName"])
    _call("DeleteInstanceProfile", InstanceProfileName=name)


resource(
    "AWS::IAM::InstanceProfile",
    create=_profile_create,
    update=_profile_update,
    delete=_profile_delete,
    properties="InstanceProfileName Path Roles",
    replaces="InstanceProfileName Path",
    tags=None,
)
