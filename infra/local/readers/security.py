"""Readers for IAM and KMS."""

from __future__ import annotations

import json
from typing import Any

from .base import Actual, Properties, Reader, Source, one, tag_list


def role(source: Source, physical_id: str, props: Properties) -> Actual:
    iam = source.client("iam")
    raw = iam.get_role(RoleName=physical_id)["Role"]
    attached = iam.list_attached_role_policies(RoleName=physical_id)["AttachedPolicies"]
    # AWS::IAM::Policy and ManagedPolicy resources add to the same role; those are read as resources of their own.
    declared = {policy["PolicyName"] for policy in props.get("Policies") or []}
    inline = [
        {
            "PolicyName": name,
            "PolicyDocument": iam.get_role_policy(RoleName=physical_id, PolicyName=name)["PolicyDocument"],
        }
        for name in iam.list_role_policies(RoleName=physical_id)["PolicyNames"]
        if name in declared
    ]
    found = {
        **raw,
        "ManagedPolicyArns": [
            one["PolicyArn"] for one in attached if one["PolicyArn"] not in _added_by_others(source, props)
        ],
        "Policies": inline,
        "PermissionsBoundary": raw.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn"),
        "Tags": tag_list(raw.get("Tags")),
    }
    return Actual(found, {"Arn": raw["Arn"], "RoleId": raw["RoleId"]})


def _added_by_others(source: Source, props: Properties) -> frozenset[str]:
    return source.owned - set(props.get("ManagedPolicyArns") or [])


def inline_policy(source: Source, _physical_id: str, props: Properties) -> Actual:
    """An inline policy has no id: it must be on every role that the template names."""
    iam = source.client("iam")
    name = props["PolicyName"]
    documents = [
        iam.get_role_policy(RoleName=one, PolicyName=name)["PolicyDocument"] for one in props.get("Roles") or []
    ]
    same = all(document == documents[0] for document in documents)
    shown = documents[0] if documents and same else documents
    return Actual({"PolicyName": name, "Roles": props.get("Roles"), "PolicyDocument": shown})


def managed_policy(source: Source, physical_id: str, _props: Properties) -> Actual:
    iam = source.client("iam")
    raw = iam.get_policy(PolicyArn=physical_id)["Policy"]
    version = iam.get_policy_version(PolicyArn=physical_id, VersionId=raw["DefaultVersionId"])["PolicyVersion"]
    entities = iam.list_entities_for_policy(PolicyArn=physical_id)
    found = {
        **raw,
        "ManagedPolicyName": raw["PolicyName"],
        "PolicyDocument": version["Document"],
        "Roles": [one["RoleName"] for one in entities["PolicyRoles"]],
    }
    return Actual(found, {"PolicyArn": physical_id, "PolicyId": raw["PolicyId"]})


def instance_profile(source: Source, physical_id: str, _props: Properties) -> Actual:
    raw = source.client("iam").get_instance_profile(InstanceProfileName=physical_id)["InstanceProfile"]
    return Actual({**raw, "Roles": [one["RoleName"] for one in raw["Roles"]]}, {"Arn": raw["Arn"]})


def key(source: Source, physical_id: str, _props: Properties) -> Actual:
    kms = source.client("kms")
    raw = kms.describe_key(KeyId=physical_id)["KeyMetadata"]
    policy = kms.get_key_policy(KeyId=physical_id, PolicyName="default")["Policy"]
    rotation = kms.get_key_rotation_status(KeyId=physical_id)
    found = {
        **raw,
        "KeyPolicy": json.loads(policy),
        "EnableKeyRotation": rotation["KeyRotationEnabled"],
        "RotationPeriodInDays": rotation.get("RotationPeriodInDays"),
        "Tags": tag_list(kms.list_resource_tags(KeyId=physical_id)["Tags"], "TagKey", "TagValue"),
    }
    return Actual(found, {"Arn": raw["Arn"], "KeyId": raw["KeyId"]})


def alias(source: Source, physical_id: str, props: Properties) -> Actual:
    rows: list[dict[str, Any]] = source.client("kms").list_aliases()["Aliases"]
    found = one([row for row in rows if row["AliasName"] == physical_id], physical_id)
    target = found["TargetKeyId"]
    if str(props.get("TargetKeyId", "")).startswith("arn:"):
        target = source.client("kms").describe_key(KeyId=target)["KeyMetadata"]["Arn"]
    return Actual({**found, "TargetKeyId": target})


READERS: dict[str, Reader] = {
    "AWS::IAM::InstanceProfile": instance_profile,
    "AWS::IAM::ManagedPolicy": managed_policy,
    "AWS::IAM::Policy": inline_policy,
    "AWS::IAM::Role": role,
    "AWS::KMS::Alias": alias,
    "AWS::KMS::Key": key,
}
