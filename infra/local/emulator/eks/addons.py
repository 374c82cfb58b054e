"""Add-ons, and canned DescribeAddonVersions data."""

from __future__ import annotations

import json
from typing import Any

from .. import registry, shapes, state
from ..registry import Created, Params, call, operation, resource
from . import access, common
from .common import ADDONS, invalid

CANNED_BY = "moerl emulator (canned data, not AWS)"

# Names are real, versions are not: a version from here must be recognisable anywhere it turns up.
_CANNED_VERSION = "v1.0.0-eksbuild.1-emulator"
_CANNED_ADDONS = {
    "amazon-cloudwatch-observability": "observability",
    "aws-ebs-csi-driver": "storage",
    "aws-fsx-csi-driver": "storage",
    "aws-mountpoint-s3-csi-driver": "storage",
    "coredns": "networking",
    "eks-node-monitoring-agent": "observability",
    "eks-pod-identity-agent": "security",
    "kube-proxy": "networking",
    "metrics-server": "observability",
    "snapshot-controller": "storage",
    "vpc-cni": "networking",
}
_CLUSTER_VERSIONS = tuple(f"1.{minor}" for minor in range(31, 38))


@operation("eks", "DescribeAddonVersions")
def describe_addon_versions(params: Params) -> Params:
    wanted = params.get("addonName")
    versions = [one for one in _CLUSTER_VERSIONS if params.get("kubernetesVersion") in (None, one)]
    return {
        "addons": [
            {
                "addonName": name,
                "type": kind,
                "publisher": CANNED_BY,
                "owner": CANNED_BY,
                "addonVersions": [
                    {
                        "addonVersion": _CANNED_VERSION,
                        "architecture": ["amd64", "arm64"],
                        "computeTypes": ["ec2"],
                        "compatibilities": [
                            {"clusterVersion": one, "platformVersions": ["*"], "defaultVersion": True}
                            for one in versions
                        ],
                        "requiresConfiguration": False,
                        "requiresIamPermissions": False,
                    }
                ],
            }
            for name, kind in _CANNED_ADDONS.items()
            if wanted in (None, name)
        ]
    }


def _addon(cluster_name: str, name: str) -> dict[str, Any]:
    common.cluster(cluster_name)
    found: dict[str, Any] | None = ADDONS.get((cluster_name, name))
    if found is None:
        raise common.not_found(f"No addon: {name} found in cluster: {cluster_name}")
    return found


@operation("eks", "CreateAddon")
def create_addon(params: Params) -> Params:
    cluster, name = common.cluster(params["clusterName"]), params["addonName"]
    if (cluster["name"], name) in ADDONS:
        raise common.in_use(f"Addon already exists: {name}")
    if name not in _CANNED_ADDONS:
        raise invalid(f"Addon specified is not supported: {name}. The emulator knows {', '.join(_CANNED_ADDONS)}")
    _check_configuration(params)
    addon: dict[str, Any] = {
        "addonName": name,
        "clusterName": cluster["name"],
        "status": "ACTIVE",
        "addonVersion": params.get("addonVersion", _CANNED_VERSION),
        "health": {"issues": []},
        "addonArn": state.arn("eks", f"addon/{cluster['name']}/{name}/{state.hex_id('a')[2:]}"),
        "createdAt": state.now(),
        "modifiedAt": state.now(),
        "owner": CANNED_BY,
        "publisher": CANNED_BY,
        "tags": dict(params.get("tags", {})),
    }
    for key in ("serviceAccountRoleArn", "configurationValues", "namespaceConfig"):
        if key in params:
            addon[key] = params[key]
    _bind(addon, params.get("podIdentityAssociations", []))
    ADDONS[cluster["name"], name] = addon
    return {"addon": addon}


def _check_configuration(params: Params) -> None:
    if "configurationValues" in params:
        try:
            json.loads(params["configurationValues"])
        except ValueError as error:
            raise invalid(f"ConfigurationValue provided in request is not valid JSON: {error}") from error


def _bind(addon: dict[str, Any], wanted: list[dict[str, str]]) -> None:
    """Give the add-on exactly these Pod Identity associations, owned by it."""
    for arn in addon.get("podIdentityAssociations", []):
        access.forget(addon["clusterName"], arn)
    namespace = addon.get("namespaceConfig", {}).get("namespace", "kube-system")
    addon["podIdentityAssociations"] = [
        access.associate({"clusterName": addon["clusterName"], "namespace": namespace, **one}, owner=addon["addonArn"])[
            "associationArn"
        ]
        for one in wanted
    ]


@operation("eks", "DescribeAddon")
def describe_addon(params: Params) -> Params:
    return {"addon": _addon(params["clusterName"], params["addonName"])}


@operation("eks", "ListAddons")
def list_addons(params: Params) -> Params:
    return {"addons": [one["addonName"] for one in common.of_cluster(ADDONS, params["clusterName"])]}


@operation("eks", "UpdateAddon")
def update_addon(params: Params) -> Params:
    addon = _addon(params["clusterName"], params["addonName"])
    _check_configuration(params)
    for key in ("addonVersion", "serviceAccountRoleArn", "configurationValues"):
        if key in params:
            addon[key] = params[key]
    if "podIdentityAssociations" in params:
        _bind(addon, params["podIdentityAssociations"])
    addon["modifiedAt"] = state.now()
    logged = {
        key[0].upper() + key[1:]: value for key, value in params.items() if key not in ("clusterName", "addonName")
    }
    return common.finished_update(addon["clusterName"], "AddonUpdate", logged, addon=addon["addonName"])


@operation("eks", "DeleteAddon")
def delete_addon(params: Params) -> Params:
    addon = _addon(params["clusterName"], params["addonName"])
    _bind(addon, [])
    ADDONS.pop((addon["clusterName"], addon["addonName"]))
    return {"addon": {**addon, "status": "DELETING"}}


# ---- CloudFormation ---------------------------------------------------------------------------------------------


def _create(_name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key not in ("Tags", "PreserveOnDelete")}
    sent = shapes.to_api("eks", "CreateAddonRequest", own)
    addon = registry.call("eks", "CreateAddon", {**sent, "tags": shapes.tag_map(props.get("Tags"))})["addon"]
    return f"{addon['clusterName']}|{addon['addonName']}", {"Arn": addon["addonArn"]}


def _update(physical_id: str, old: Params, new: Params) -> dict[str, Any]:
    cluster_name, _, name = physical_id.partition("|")
    differs = shapes.changed(old, new) - {"PreserveOnDelete", "Tags"}
    if differs - {"ResolveConflicts"}:
        # UpdateAddon clears what it is not sent, so the whole configuration goes along.
        skipped = ("ClusterName", "AddonName", "Tags", "PreserveOnDelete", "NamespaceConfig")
        own = {key: value for key, value in new.items() if key not in skipped}
        if "PodIdentityAssociations" in differs:
            own.setdefault("PodIdentityAssociations", [])
        else:
            own.pop("PodIdentityAssociations", None)
        if "ConfigurationValues" in differs:
            own.setdefault("ConfigurationValues", "{}")
        sent = shapes.to_api("eks", "UpdateAddonRequest", own)
        call("eks", "UpdateAddon", {"clusterName": cluster_name, "addonName": name, **sent})
    addon = _addon(cluster_name, name)
    common.retag(addon["addonArn"], old, new)
    return {"Arn": addon["addonArn"]}


def _delete(physical_id: str, props: Params) -> None:
    cluster_name, _, name = physical_id.partition("|")
    # Preserve keeps the add-on's Kubernetes objects; the add-on itself goes either way.
    preserve = {"preserve": True} if shapes.is_true(props.get("PreserveOnDelete", False)) else {}
    call("eks", "DeleteAddon", {"clusterName": cluster_name, "addonName": name, **preserve})


resource(
    "AWS::EKS::Addon",
    create=_create,
    update=_update,
    delete=_delete,
    properties="ClusterName AddonName AddonVersion ConfigurationValues ResolveConflicts PodIdentityAssociations"
    " PreserveOnDelete ServiceAccountRoleArn NamespaceConfig Tags",
    replaces="ClusterName AddonName NamespaceConfig",
)
