"""The strict schema check finds what an API server with strict field validation would refuse."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest

from k8s.checks.schema import CustomResources, builtin_faults, next_minor, schema_faults, strict
from k8s.checks.tree import tree
from k8s.manifest import ManifestFile, obj
from k8s.schemas import Resolved

WIDGET = {
    "type": "object",
    "properties": {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "format": "int32", "minimum": 1},
                "port": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
                "note": {"type": "string", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
                "empty": {"type": "object"},
                "one": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "pod": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                },
            },
        },
    },
}
GOOD: dict[str, Any] = {
    "apiVersion": "example.com/v1",
    "kind": "Widget",
    "metadata": {"name": "w", "labels": {"a": "b"}},
    "spec": {
        "size": 1,
        "port": "http",
        "note": None,
        "free": {"any": [1]},
        "labels": {"a": "b"},
        "parts": [{"name": "x"}],
        "one": {"a": "x"},
        "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"x": 1}},
    },
}


def errors(item: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema_rs.Draft202012Validator(strict(WIDGET)).iter_errors(item)]


def test_a_good_custom_resource_passes() -> None:
    assert errors(GOOD) == []
    assert errors(GOOD | {"spec": {"size": 1, "port": 8080}}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.sizee", 1),
        ("spec.size", 0),
        ("spec.size", "1"),
        ("spec.size", None),
        ("spec.port", 1.5),
        ("spec.labels", {"a": 1}),
        ("spec.parts", [{"nam": "x"}]),
        ("spec.empty", {"x": 1}),
        ("spec.one", {"a": "x", "b": "y"}),
        ("spec.one", {"a": "x", "c": "y"}),
        ("spec.pod", {"speck": {}}),
        ("specs", {}),
    ],
)
def test_a_wrong_custom_resource_is_refused(path: str, value: object) -> None:
    broken = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    holder = broken
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    assert errors(broken)


def definition(folder: Path) -> Resolved:
    path = folder / "widget.yaml"
    path.write_text(
        "spec:\n  versions:\n    - {name: v1, served: true, schema: {openAPIV3Schema: {type: object, properties: "
        "{spec: {type: object, properties: {size: {type: integer}}}}}}}\n",
        encoding="utf-8",
    )
    return Resolved(files={"example.com/Widget": path}, missing={"example.com/Gadget": "no network"})


def faults(folder: Path, *objects: dict[str, Any]) -> tuple[list[str], tuple[str, ...]]:
    found, skipped = schema_faults(
        tree([ManifestFile(name="0100-x.yaml", objects=objects)]), "1.35", CustomResources(resolved=definition(folder))
    )
    return [fault.why for fault in found], skipped


def pod(**spec: Any) -> dict[str, Any]:
    return obj("v1", "Pod", "p", namespace="rl", spec={"containers": [{"name": "c", "image": "i"}], **spec})


def test_built_in_kinds_are_checked_strictly(tmp_path: Path) -> None:
    assert faults(tmp_path, pod()) == ([], ())
    assert faults(tmp_path, pod(hostNetwrk=True))[0]
    assert faults(tmp_path, pod(terminationGracePeriodSeconds="10"))[0]
    assert faults(tmp_path, obj("policy/v1beta1", "PodDisruptionBudget", "p", namespace="rl", spec={}))[0]


def test_a_custom_resource_is_checked_against_its_definition(tmp_path: Path) -> None:
    assert faults(tmp_path, obj("example.com/v1", "Widget", "w", namespace="rl", spec={"size": 1})) == ([], ())
    assert faults(tmp_path, obj("example.com/v1", "Widget", "w", namespace="rl", spec={"size": "1"}))[0]
    assert faults(tmp_path, obj("example.com/v2", "Widget", "w", namespace="rl", spec={"size": 1}))[0] == [
        "version v2 of example.com/Widget is not served, only v1"
    ]


def test_a_kind_that_nobody_locked_is_a_fault_and_not_a_skip(tmp_path: Path) -> None:
    found, skipped = faults(tmp_path, obj("other.example.com/v1", "Thing", "t", namespace="rl", spec={}))
    assert "has no locked schema" in found[0]
    assert skipped == ()


def test_a_kind_whose_schema_cannot_be_had_is_skipped_by_name(tmp_path: Path) -> None:
    found, skipped = faults(tmp_path, obj("example.com/v1", "Gadget", "g", namespace="rl", spec={"anything": 1}))
    assert found == []
    assert skipped == ("example.com/Gadget: no network",)


def test_pod_templates_are_checked_inside_custom_resources_that_take_anything(tmp_path: Path) -> None:
    template = {"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i", "imagePullPolcy": "Never"}]}}
    job = obj("batch/v1", "Job", "g", namespace="rl", spec={"parallelism": 1, "template": template})
    found, _ = faults(tmp_path, job)
    assert len(found) == 2
    assert all("imagePullPolcy" in why for why in found)


@pytest.mark.parametrize("version", ["1.35.9", "1.99", "9.9"])
def test_a_version_without_schemas_is_not_checked_as_another_one(version: str) -> None:
    with pytest.raises(kubernetes_validate.utils.VersionNotSupportedError):
        list(builtin_faults(pod(), version))


@pytest.mark.parametrize(
    "item",
    [
        pod(),
        pod(hostNetwrk=True),
        obj("rbac.authorization.k8s.io/v1", "ClusterRole", "r", rules=[{"verbs": ["get"], "resources": ["nodes"]}]),
        obj("rbac.authorization.k8s.io/v1", "ClusterRole", "r", rules=[{"resources": "nodes"}]),
        obj("networking.k8s.io/v1", "NetworkPolicy", "n", namespace="rl", spec={"podSelector": {}, "ingres": []}),
        obj("policy/v1", "PodDisruptionBudget", "p", namespace="rl", spec={"maxUnavailable": 1.5}),
        obj("policy/v1", "PodDisruptionBudget", "p", namespace="rl", spec={"maxUnavailable": "10%"}),
    ],
)
def test_the_verdict_is_that_of_kubernetes_validate(item: dict[str, Any]) -> None:
    try:
        kubernetes_validate.validate(item, "1.35", strict=True)
        passes = True
    except kubernetes_validate.ValidationError:
        passes = False
    assert (not list(builtin_faults(item, "1.35"))) is passes


def test_a_field_that_only_a_later_version_has_is_refused_in_the_earlier_one() -> None:
    assert next_minor("1.35") == "1.36"
    assert list(builtin_faults(pod(), "1.31")) == list(builtin_faults(pod(), next_minor("1.31"))) == []
    limits = pod(resources={"limits": {"cpu": "1"}})
    assert list(builtin_faults(limits, "1.31"))
    assert not list(builtin_faults(limits, next_minor("1.31")))
