"""Readers for EKS."""

from __future__ import annotations

from typing import Any

from .base import Actual, Properties, Reader, Source, pascal, tag_list, tag_map

_FREE_KEYS = frozenset({"labels", "tags"})


def cluster(source: Source, physical_id: str, _props: Properties) -> Actual:
    raw = source.client("eks").describe_cluster(name=physical_id)["cluster"]
    found = pascal(raw, _FREE_KEYS)
    enabled = [kind for setup in raw["logging"]["clusterLogging"] if setup["enabled"] for kind in setup["types"]]
    found["Logging"] = {"ClusterLogging": {"EnabledTypes": [{"Type": kind} for kind in enabled]}}
    found["Tags"] = tag_list(raw["tags"])
    keys = [item["provider"]["keyArn"] for item in raw.get("encryptionConfig", [])]
    attributes = {
        "Arn": raw["arn"],
        "Id": raw["name"],
        "Endpoint": raw["endpoint"],
        "CertificateAuthorityData": raw["certificateAuthority"]["data"],
        "ClusterSecurityGroupId": raw["resourcesVpcConfig"]["clusterSecurityGroupId"],
        "EncryptionConfigKeyArn": keys[0] if keys else "",
        "OpenIdConnectIssuerUrl": raw["identity"]["oidc"]["issuer"],
    }
    return Actual(found, attributes)


def nodegroup(source: Source, physical_id: str, _props: Properties) -> Actual:
    cluster_name, _, name = physical_id.partition("/")
    raw = source.client("eks").describe_nodegroup(clusterName=cluster_name, nodegroupName=name)["nodegroup"]
    found = {**pascal(raw, _FREE_KEYS), "Labels": raw["labels"], "Tags": tag_map(raw["tags"])}
    attributes = {"Arn": raw["nodegroupArn"], "Id": physical_id, "ClusterName": cluster_name, "NodegroupName": name}
    return Actual(found, attributes)


def addon(source: Source, physical_id: str, _props: Properties) -> Actual:
    eks = source.client("eks")
    cluster_name, _, name = physical_id.partition("|")
    raw = eks.describe_addon(clusterName=cluster_name, addonName=name)["addon"]
    found = {**pascal(raw, _FREE_KEYS), "Tags": tag_list(raw["tags"])}
    found["PodIdentityAssociations"] = [
        {
            key: item
            for key, item in _association(eks, cluster_name, arn).items()
            if key in ("ServiceAccount", "RoleArn")
        }
        for arn in raw.get("podIdentityAssociations", [])
    ]
    return Actual(found, {"Arn": raw["addonArn"]})


def _association(eks: Any, cluster_name: str, arn: str) -> Properties:
    reply = eks.describe_pod_identity_association(clusterName=cluster_name, associationId=arn.rpartition("/")[2])
    found: Properties = pascal(reply["association"], _FREE_KEYS)
    return found


def access_entry(source: Source, physical_id: str, _props: Properties) -> Actual:
    principal, _, cluster_name = physical_id.partition("|")
    key = {"clusterName": cluster_name, "principalArn": principal}
    raw = source.client("eks").describe_access_entry(**key)["accessEntry"]
    policies = source.client("eks").list_associated_access_policies(**key)["associatedAccessPolicies"]
    found = {**pascal(raw, _FREE_KEYS), "AccessPolicies": pascal(policies), "Tags": tag_list(raw["tags"])}
    return Actual(found, {"AccessEntryArn": raw["accessEntryArn"]})


def pod_identity_association(source: Source, physical_id: str, props: Properties) -> Actual:
    found = _association(source.client("eks"), props["ClusterName"], physical_id)
    attributes = {name: found[name] for name in ("AssociationArn", "AssociationId")}
    return Actual({**found, "Tags": tag_list(found["Tags"])}, attributes)


READERS: dict[str, Reader] = {
    "AWS::EKS::AccessEntry": access_entry,
    "AWS::EKS::Addon": addon,
    "AWS::EKS::Cluster": cluster,
    "AWS::EKS::Nodegroup": nodegroup,
    "AWS::EKS::PodIdentityAssociation": pod_identity_association,
}
