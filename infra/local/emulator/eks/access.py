"""Access entries with their policies, and Pod Identity associations."""

from __future__ import annotations

from typing import Any

from .. import shapes, state
from ..registry import Created, Params, begun, call, operation, resource
from . import common
from .common import ACCESS_ENTRIES, ASSOCIATIONS, invalid

_POLICY_PREFIX = "arn:aws:eks::aws:cluster-access-policy/"
_POLICIES = state.Store()  # (cluster, principal ARN) -> {policy ARN: access scope}


def _entry(cluster_name: str, principal: str) -> dict[str, Any]:
    common.cluster(cluster_name)
    found: dict[str, Any] | None = ACCESS_ENTRIES.get((cluster_name, principal))
    if found is None:
        raise common.not_found(f"The specified principalArn could not be found: {principal}.")
    return found


@operation("eks", "CreateAccessEntry")
def create_access_entry(params: Params) -> Params:
    cluster, principal = common.cluster(params["clusterName"]), params["principalArn"]
    if cluster["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
        raise invalid("The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP]")
    if (cluster["name"], principal) in ACCESS_ENTRIES:
        raise common.in_use("The specified access entry resource is already in use on this cluster.")
    kind = params.get("type", "STANDARD")
    if kind != "STANDARD" and params.get("kubernetesGroups"):
        raise invalid(f"Kubernetes groups cannot be specified for access entry type {kind}")
    entry = {
        "clusterName": cluster["name"],
        "principalArn": principal,
        "kubernetesGroups": list(params.get("kubernetesGroups", [])),
        "accessEntryArn": state.arn("eks", f"access-entry/{cluster['name']}/{principal.split(':')[-1]}"),
        "createdAt": state.now(),
        "modifiedAt": state.now(),
        "tags": dict(params.get("tags", {})),
        "username": params.get("username", principal),
        "type": kind,
    }
    ACCESS_ENTRIES[cluster["name"], principal] = entry
    _POLICIES[cluster["name"], principal] = {}
    return {"accessEntry": entry}


@operation("eks", "DescribeAccessEntry")
def describe_access_entry(params: Params) -> Params:
    return {"accessEntry": _entry(params["clusterName"], params["principalArn"])}


@operation("eks", "ListAccessEntries")
def list_access_entries(params: Params) -> Params:
    return {"accessEntries": [one["principalArn"] for one in common.of_cluster(ACCESS_ENTRIES, params["clusterName"])]}


@operation("eks", "UpdateAccessEntry")
def update_access_entry(params: Params) -> Params:
    entry = _entry(params["clusterName"], params["principalArn"])
    entry |= {key: params[key] for key in ("kubernetesGroups", "username") if key in params}
    entry["modifiedAt"] = state.now()
    return {"accessEntry": entry}


@operation("eks", "DeleteAccessEntry")
def delete_access_entry(params: Params) -> None:
    entry = _entry(params["clusterName"], params["principalArn"])
    ACCESS_ENTRIES.pop((entry["clusterName"], entry["principalArn"]))
    _POLICIES.pop((entry["clusterName"], entry["principalArn"]))


@operation("eks", "AssociateAccessPolicy")
def associate_access_policy(params: Params) -> Params:
    entry = _entry(params["clusterName"], params["principalArn"])
    if entry["type"] != "STANDARD":
        raise invalid(f"Access policies cannot be associated with an access entry of type {entry['type']}")
    if not params["policyArn"].startswith(_POLICY_PREFIX):
        raise invalid(f"The policyArn parameter format is not valid: {params['policyArn']}")
    _POLICIES[entry["clusterName"], entry["principalArn"]][params["policyArn"]] = params["accessScope"]
    shown = {"policyArn": params["policyArn"], "accessScope": params["accessScope"]}
    return {**_key(entry), "associatedAccessPolicy": shown}


def _key(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("clusterName", "principalArn")}


@operation("eks", "DisassociateAccessPolicy")
def disassociate_access_policy(params: Params) -> None:
    entry = _entry(params["clusterName"], params["principalArn"])
    policies = _POLICIES[entry["clusterName"], entry["principalArn"]]
    if policies.pop(params["policyArn"], None) is None:
        raise common.not_found(f"The policy {params['policyArn']} is not associated with {entry['principalArn']}")


@operation("eks", "ListAssociatedAccessPolicies")
def list_associated_access_policies(params: Params) -> Params:
    entry = _entry(params["clusterName"], params["principalArn"])
    policies = _POLICIES[entry["clusterName"], entry["principalArn"]]
    rows = [{"policyArn": arn, "accessScope": scope} for arn, scope in policies.items()]
    return {**_key(entry), "associatedAccessPolicies": rows}


def _entry_create(_name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key not in ("Tags", "AccessPolicies")}
    sent = shapes.to_api("eks", "CreateAccessEntryRequest", own)
    entry = call("eks", "CreateAccessEntry", {**sent, "tags": shapes.tag_map(props.get("Tags"))})["accessEntry"]
    physical_id = f"{entry['principalArn']}|{entry['clusterName']}"
    begun(physical_id)
    for policy in _policies(props).values():
        call("eks", "AssociateAccessPolicy", {**_key(entry), **policy})
    return physical_id, {"AccessEntryArn": entry["accessEntryArn"]}


def _policies(props: Params) -> dict[str, dict[str, Any]]:
    wanted = [shapes.to_api("eks", "AssociateAccessPolicyRequest", one) for one in props.get("AccessPolicies") or []]
    return {one["policyArn"]: one for one in wanted}


def _entry_update(_id: str, old: Params, new: Params) -> dict[str, Any]:
    key = {"clusterName": new["ClusterName"], "principalArn": new["PrincipalArn"]}
    before, after = _policies(old), _policies(new)
    for arn in before.keys() - after.keys():
        call("eks", "DisassociateAccessPolicy", {**key, "policyArn": arn})
    for arn, policy in after.items():
        if before.get(arn) != policy:
            call("eks", "AssociateAccessPolicy", {**key, **policy})
    changed = shapes.changed(old, new) & {"KubernetesGroups", "Username"}
    if changed:
        groups = {"kubernetesGroups": new.get("KubernetesGroups", [])} if "KubernetesGroups" in changed else {}
        user = {"username": new.get("Username", new["PrincipalArn"])} if "Username" in changed else {}
        call("eks", "UpdateAccessEntry", {**key, **groups, **user})
    entry = _entry(*key.values())
    common.retag(entry["accessEntryArn"], old, new)
    return {"AccessEntryArn": entry["accessEntryArn"]}


def _entry_delete(physical_id: str, _props: Params) -> None:
    principal, _, cluster_name = physical_id.partition("|")
    call("eks", "DeleteAccessEntry", {"clusterName": cluster_name, "principalArn": principal})


resource(
    "AWS::EKS::AccessEntry",
    create=_entry_create,
    update=_entry_update,
    delete=_entry_delete,
    properties="ClusterName PrincipalArn Type KubernetesGroups Username AccessPolicies Tags",
    replaces="ClusterName PrincipalArn Type",
)


# ---- Pod Identity associations ----------------------------------------------------------------------------------


def _association(cluster_name: str, association_id: str) -> dict[str, Any]:
    common.cluster(cluster_name)
    found: dict[str, Any] | None = ASSOCIATIONS.get((cluster_name, association_id))
    if found is None:
        raise common.not_found(f"No association with associationID: {association_id}")
    return found


def associate(params: Params, *, owner: str | None = None) -> dict[str, Any]:
    """Create an association, owned by the add-on `owner` (an ARN) where one is given."""
    cluster = common.cluster(params["clusterName"])
    account = (params["namespace"], params["serviceAccount"])
    for other in common.of_cluster(ASSOCIATIONS, cluster["name"]):
        if (other["namespace"], other["serviceAccount"]) == account:
            raise common.in_use(f"Association already exists: {other['associationId']}")
    association_id = state.hex_id("a")
    names = ("namespace", "serviceAccount", "roleArn", "disableSessionTags", "targetRoleArn", "policy")
    association: dict[str, Any] = {
        "clusterName": cluster["name"],
        "associationId": association_id,
        "associationArn": state.arn("eks", f"podidentityassociation/{cluster['name']}/{association_id}"),
        "createdAt": state.now(),
        "modifiedAt": state.now(),
        "tags": dict(params.get("tags", {})),
        "disableSessionTags": False,
        **{name: params[name] for name in names if name in params},
    }
    if owner is not None:
        association["ownerArn"] = owner
    ASSOCIATIONS[cluster["name"], association_id] = association
    return association


def forget(cluster_name: str, arn: str) -> None:
    """Remove the association with that ARN."""
    ASSOCIATIONS.pop((cluster_name, arn.rpartition("/")[2]), None)


@operation("eks", "CreatePodIdentityAssociation")
def create_pod_identity_association(params: Params) -> Params:
    return {"association": associate(params)}


@operation("eks", "DescribePodIdentityAssociation")
def describe_pod_identity_association(params: Params) -> Params:
    return {"association": _association(params["clusterName"], params["associationId"])}


@operation("eks", "ListPodIdentityAssociations")
def list_pod_identity_associations(params: Params) -> Params:
    found = common.of_cluster(ASSOCIATIONS, params["clusterName"])
    for name in ("namespace", "serviceAccount"):
        if name in params:
            found = [one for one in found if one[name] == params[name]]
    names = ("clusterName", "namespace", "serviceAccount", "associationArn", "associationId", "ownerArn")
    return {"associations": [{name: one[name] for name in names if name in one} for one in found]}


@operation("eks", "UpdatePodIdentityAssociation")
def update_pod_identity_association(params: Params) -> Params:
    association = _association(params["clusterName"], params["associationId"])
    names = ("roleArn", "disableSessionTags", "targetRoleArn", "policy")
    association |= {name: params[name] for name in names if name in params}
    association["modifiedAt"] = state.now()
    return {"association": association}


@operation("eks", "DeletePodIdentityAssociation")
def delete_pod_identity_association(params: Params) -> Params:
    association = _association(params["clusterName"], params["associationId"])
    if association.get("ownerArn"):
        raise invalid(f"Association {association['associationId']} is managed by {association['ownerArn']}")
    forget(association["clusterName"], association["associationArn"])
    return {"association": association}


def _association_create(_name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key != "Tags"}
    sent = shapes.to_api("eks", "CreatePodIdentityAssociationRequest", own)
    sent["tags"] = shapes.tag_map(props.get("Tags"))
    made = call("eks", "CreatePodIdentityAssociation", sent)["association"]
    return made["associationArn"], _association_attributes(made)


def _association_attributes(association: dict[str, Any]) -> dict[str, Any]:
    return {"AssociationArn": association["associationArn"], "AssociationId": association["associationId"]}


def _association_update(arn: str, old: Params, new: Params) -> dict[str, Any]:
    key = {"clusterName": new["ClusterName"], "associationId": arn.rpartition("/")[2]}
    differs = shapes.changed(old, new) & {"RoleArn", "DisableSessionTags", "TargetRoleArn", "Policy"}
    if differs:
        own = {name: new[name] for name in differs if name in new}
        call(
            "eks",
            "UpdatePodIdentityAssociation",
            {**key, **shapes.to_api("eks", "UpdatePodIdentityAssociationRequest", own)},
        )
    common.retag(arn, old, new)
    return _association_attributes(_association(*key.values()))


def _association_delete(arn: str, props: Params) -> None:
    key = {"clusterName": props["ClusterName"], "associationId": arn.rpartition("/")[2]}
    call("eks", "DeletePodIdentityAssociation", key)


resource(
    "AWS::EKS::PodIdentityAssociation",
    create=_association_create,
    update=_association_update,
    delete=_association_delete,
    properties="ClusterName Namespace ServiceAccount RoleArn DisableSessionTags TargetRoleArn Tags",
    replaces="ClusterName Namespace ServiceAccount",
)
