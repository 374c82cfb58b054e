"""What EKS resources share: stores, errors, the update log and tagging by ARN."""

from __future__ import annotations

import json
import uuid
from typing import Any

from .. import registry, shapes, state
from ..errors import ServiceError
from ..registry import Params, operation

CLUSTERS = state.Store()  # name -> Cluster
NODEGROUPS = state.Store()  # (cluster, node group) -> Nodegroup
ADDONS = state.Store()  # (cluster, add-on) -> Addon
ACCESS_ENTRIES = state.Store()  # (cluster, principal ARN) -> AccessEntry
ASSOCIATIONS = state.Store()  # (cluster, association id) -> PodIdentityAssociation
_UPDATES = state.Store()  # (cluster, update id) -> {"update", "nodegroup", "addon"}


def cluster(name: str) -> dict[str, Any]:
    """The cluster of that name. Raises ResourceNotFoundException."""
    found: dict[str, Any] | None = CLUSTERS.get(name)
    if found is None:
        raise not_found(f"No cluster found for name: {name}.")
    return found


def not_found(message: str) -> ServiceError:
    return ServiceError("ResourceNotFoundException", message, 404)


def in_use(message: str) -> ServiceError:
    return ServiceError("ResourceInUseException", message, 409)


def invalid(message: str) -> ServiceError:
    return ServiceError("InvalidParameterException", message, 400)


def of_cluster(kept: state.Store, name: str) -> list[dict[str, Any]]:
    """Every resource of one cluster in a store keyed by (cluster, ...)."""
    cluster(name)
    return [item for key, item in kept.items() if key[0] == name]


# ---- updates ----------------------------------------------------------------------------------------------------


def finished_update(
    cluster_name: str, kind: str, params: dict[str, Any], *, nodegroup: str | None = None, addon: str | None = None
) -> dict[str, Any]:
    """Log an update that is already done (the emulator has no nodes to wait for) and return it as the API does."""
    update = {
        "id": str(uuid.uuid4()),
        "status": "Successful",
        "type": kind,
        "params": [{"type": key, "value": _text(value)} for key, value in params.items()],
        "createdAt": state.now(),
        "errors": [],
    }
    _UPDATES[cluster_name, update["id"]] = {"update": update, "nodegroup": nodegroup, "addon": addon}
    return {"update": update}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@operation("eks", "DescribeUpdate")
def describe_update(params: Params) -> Params:
    cluster(params["name"])
    entry = _UPDATES.get((params["name"], params["updateId"]))
    if entry is None:
        raise not_found(f"No update found for ID: {params['updateId']}")
    return {"update": entry["update"]}


@operation("eks", "ListUpdates")
def list_updates(params: Params) -> Params:
    name, nodegroup, addon = params["name"], params.get("nodegroupName"), params.get("addonName")
    entries = of_cluster(_UPDATES, name)
    mine = [one for one in entries if (one["nodegroup"], one["addon"]) == (nodegroup, addon)]
    return {"updateIds": [one["update"]["id"] for one in mine]}


# ---- tags -------------------------------------------------------------------------------------------------------

_ARN_FIELDS = (
    (CLUSTERS, "arn"),
    (NODEGROUPS, "nodegroupArn"),
    (ADDONS, "addonArn"),
    (ACCESS_ENTRIES, "accessEntryArn"),
    (ASSOCIATIONS, "associationArn"),
)


def _tags_of(arn: str) -> dict[str, str]:
    for kept, field in _ARN_FIELDS:
        for item in kept.values():
            if item[field] == arn:
                tags: dict[str, str] = item["tags"]
                return tags
    raise not_found(f"Resource not found for ARN {arn}")


@operation("eks", "TagResource")
def tag_resource(params: Params) -> None:
    _tags_of(params["resourceArn"]).update(params["tags"])


@operation("eks", "UntagResource")
def untag_resource(params: Params) -> None:
    tags = _tags_of(params["resourceArn"])
    for key in params["tagKeys"]:
        tags.pop(key, None)


@operation("eks", "ListTagsForResource")
def list_tags(params: Params) -> Params:
    return {"tags": dict(_tags_of(params["resourceArn"]))}


def retag(arn: str, old: Params, new: Params) -> None:
    """Bring tags from the old to the new Tags property through the tagging API."""
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        registry.call("eks", "UntagResource", {"resourceArn": arn, "tagKeys": gone})
    if fresh:
        registry.call("eks", "TagResource", {"resourceArn": arn, "tags": fresh})
