"""Strict schema check of every object, as an API server with fieldValidation=Strict would: built-in kinds against the
published OpenAPI of a Kubernetes version, custom resources against their CustomResourceDefinition.

Needs the `dev` extra. It runs no CEL rule and no webhook, and knows neither quantities nor enumerations of built-in kinds:
`k8s.checks.check` looks at those.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema_rs
import kubernetes_validate.utils as kubernetes_validate  # type: ignore[import-untyped]

from k8s.checks.tree import Tree, where
from k8s.manifest import Object
from k8s.schemas import Resolved, served_schemas

PRESERVE, INT_OR_STRING, EMBEDDED = (
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-int-or-string",
    "x-kubernetes-embedded-resource",
)
_API_GROUP = re.compile(r"^([^./]*)(?:\.[^/]*)?/")
_WITH_SCHEMAS = ("properties", "patternProperties")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFault:
    where: str
    """namespace/Kind/name, and the path inside it."""
    why: str


@dataclass(slots=True, kw_only=True)
class CustomResources:
    """Validators of custom resources, each compiled when the first object needs it."""

    resolved: Resolved
    _compiled: dict[str, Any] = field(default_factory=dict)

    def knows(self, group_kind: str) -> bool:
        return group_kind in self.resolved.files or group_kind in self.resolved.missing

    def faults(self, item: Object) -> Iterator[str]:
        """What is wrong with a custom resource whose schema is resolved."""
        group, _, version = item["apiVersion"].partition("/")
        group_kind = f"{group}/{item['kind']}"
        key = f"{group_kind}/{version}"
        if key not in self._compiled:
            served = served_schemas(self.resolved.files[group_kind])
            for name, schema in served.items():
                compiled = jsonschema_rs.Draft202012Validator(strict(schema))
                self._compiled[f"{group_kind}/{name}"] = compiled
            if version not in served:
                yield f"version {version} of {group_kind} is not served, only {', '.join(sorted(served))}"
                return
        for error in self._compiled[key].iter_errors(item):
            yield f"{'.'.join(str(step) for step in error.instance_path)}: {error.message}"


def schema_faults(
    tree: Tree, kubernetes_version: str, custom: CustomResources
) -> tuple[tuple[SchemaFault, ...], tuple[str, ...]]:
    """(faults, skipped): every object, and every pod template as a Pod. `skipped` has `GROUP/KIND: reason` of each kind of
    custom resource in the tree whose schema could not be had; a kind that nobody locked is a fault, not a skip."""
    found: list[SchemaFault] = []
    skipped: set[str] = set()
    for item in tree.objects:
        group = item["apiVersion"].partition("/")[0]
        group_kind = f"{group}/{item['kind']}"
        if group_kind in custom.resolved.missing:
            skipped.add(f"{group_kind}: {custom.resolved.missing[group_kind]}")
        elif custom.knows(group_kind):
            found += [SchemaFault(where=where(item), why=why) for why in custom.faults(item)]
        else:
            found += [SchemaFault(where=where(item), why=why) for why in builtin_faults(item, kubernetes_version)]
    for pods in tree.pods:
        metadata = {"name": "pod", **pods.template.get("metadata", {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pods.spec}
        found += [SchemaFault(where=pods.where, why=why) for why in builtin_faults(pod, kubernetes_version)]
    return tuple(found), tuple(sorted(skipped))


def builtin_faults(item: Object, kubernetes_version: str) -> Iterator[str]:
    """What is wrong with an object of a built-in kind in that version; unknown kinds and removed versions too.

    Raises VersionNotSupportedError for a Kubernetes version whose schemas kubernetes-validate does not have (its own
    `validate` would take an older one in silence).
    """
    validator = _builtin(item["apiVersion"], item["kind"], kubernetes_version)
    if validator is None:
        yield f"{item['apiVersion']} {item['kind']} is no kind of Kubernetes {kubernetes_version} and has no locked schema"
        return
    for error in validator.iter_errors(item):
        yield f"{'.'.join(str(step) for step in error.instance_path)}: {error.message}"


@cache
def _builtin(api_version: str, kind: str, kubernetes_version: str) -> Any:
    """Validator of a built-in kind, None where there is no such kind. The schemas are kubernetes-validate's; compiled once,
    they take a tenth of a millisecond an object, where its own `validate` reads them anew each time."""
    name = _API_GROUP.sub(r"\1-", api_version)
    try:
        schema = _schema(kubernetes_version, f"{kind.lower()}-{name}")
    except FileNotFoundError:
        return None
    return jsonschema_rs.Draft202012Validator(schema, registry=_definitions(kubernetes_version))


@cache
def _definitions(kubernetes_version: str) -> Any:
    shared = _schema(kubernetes_version, "_definitions")
    return jsonschema_rs.Registry([(shared["$id"], shared)])


def _schema(kubernetes_version: str, name: str) -> Any:
    folder = f"kubernetes-json-schema/v{kubernetes_version}.0-local-strict"
    return kubernetes_validate.schema_contents(f"{folder}/{name}.json", kubernetes_version)


def next_minor(kubernetes_version: str) -> str:
    """The minor version after this one, to which the control plane is upgraded next."""
    major, _, minor = kubernetes_version.partition(".")
    return f"{major}.{int(minor) + 1}"


def strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The openAPIV3Schema of a custom resource as a JSON schema that refuses unknown fields.

    An object without declared properties takes none, as the API server prunes them all; `metadata` of the resource itself is
    the exception, and so is all that preserves unknown fields.
    """
    root = _strict(schema)
    root["properties"] |= {key: {"type": "string"} for key in ("apiVersion", "kind")} | {"metadata": {"type": "object"}}
    return root


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        key: copy.copy(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-")
        and key not in ("description", "default", "nullable", "example", "format")
    }
    for key in _WITH_SCHEMAS:
        if key in out:
            out[key] = {name: _strict(inner) for name, inner in out[key].items()}
    if isinstance(out.get("items"), Mapping):
        out["items"] = _strict(out["items"])
    if isinstance(out.get("additionalProperties"), Mapping):
        out["additionalProperties"] = _strict(out["additionalProperties"])
    # Branches only narrow what the schema around them has declared, so they must not refuse its other properties.
    if schema.get("type") == "object" and "additionalProperties" not in out and not schema.get(PRESERVE):
        out["additionalProperties"] = False
    if schema.get(EMBEDDED):
        out.setdefault("properties", {})
        out["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata") if key not in out["properties"]}
    if schema.get(INT_OR_STRING):
        out.pop("type", None)
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("nullable") and "type" in out:
        out["type"] = [out["type"], "null"]
    return out
