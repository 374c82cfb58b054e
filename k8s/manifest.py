"""Objects as plain dicts, files as ordered lists of them, and the one place where cdk8s turns both into YAML.

Charts are pure functions from the Plan to dicts. Typed cdk8s classes are not used: they drop patches in silence, cut long
names, and check none of what the CRD schemas check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.config.pool_plan import LABEL_DOMAIN

Object = dict[str, Any]
NAME_LIMIT = 63
CLUSTER_SCOPED = frozenset(
    {
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterQueue",
        "ResourceFlavor",
        "Topology",
        "WorkloadPriorityClass",
        "PriorityClass",
        "PersistentVolume",
        "StorageClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file. Names begin with four digits, and files are applied in their order; `jobs/` files are run by hand."""

    name: str
    objects: tuple[Object, ...]


def obj(
    api_version: str,
    kind: str,
    name: str,
    *,
    namespace: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> Object:
    """One Kubernetes object; `fields` are its further top-level keys (`spec`, `data`, `rules`, ...).

    Raises ValueError for a name that Kubernetes would cut or refuse, and for a namespace on a cluster-scoped kind.
    """
    if len(name) > NAME_LIMIT or not name.replace("-", "").replace(".", "").isalnum() or name != name.lower():
        raise ValueError(f"{kind} {name!r}: a name has at most {NAME_LIMIT} of a-z, 0-9 and -")
    if (kind in CLUSTER_SCOPED) == (namespace is not None):
        raise ValueError(f"{kind} {name!r}: {'has no namespace' if namespace else 'needs a namespace'}")
    metadata: Object = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = {"app.kubernetes.io/managed-by": "moerl", **(labels or {})}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def component(name: str) -> dict[str, str]:
    """Labels that select the pods of one component."""
    return {f"{LABEL_DOMAIN}/component": name}


def to_yaml(objects: Iterable[Object]) -> str:
    """A YAML stream. Same objects, same bytes."""
    # It starts Node when it is imported: seconds that checks of the objects need not pay.
    import cdk8s

    app = cdk8s.App()
    chart = cdk8s.Chart(app, "chart", disable_resource_name_hashes=True)
    for index, item in enumerate(objects):
        body = _plain(item)
        made = cdk8s.ApiObject(
            chart,
            f"o{index}",
            api_version=body["apiVersion"],
            kind=body["kind"],
            metadata=cdk8s.ApiObjectMetadata(name=body["metadata"]["name"]),
        )
        made.add_json_patch(*(cdk8s.JsonPatch.add(f"/{key}", value) for key, value in body.items()))
    return str(app.synth_yaml())


def _plain(value: Any) -> Any:
    """Lists for tuples and no None: jsii knows no tuple and writes null for a None inside a list."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value if item is not None]
    return value
