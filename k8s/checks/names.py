"""Names, labels and namespaces: valid, unique over the whole tree, and there when they are needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.plan import Plan
from k8s.checks.tree import Problem, Tree, key_of, where
from k8s.manifest import NAME_LIMIT

GIVEN_NAMESPACES = frozenset({"kube-system", "default"})
PORT_NAME_LIMIT = 15
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_DNS_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_KEY_NAME = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_RBAC_NAME = re.compile(r"^[^/%]+$")
_VARIABLE = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")


def unique_names(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """cdk8s writes two objects of one name without a word, and the second apply overwrites the first."""
    seen: dict[tuple[str, str, str], str] = {}
    for file in tree.files:
        for item in file.objects:
            key = key_of(item)
            if key in seen:
                yield Problem(
                    where=where(item),
                    value=file.name,
                    why=f"is already in {seen[key]}, and the later one overwrites it",
                    fix="Give each object of a kind its own name.",
                )
            seen.setdefault(key, file.name)


def valid_names(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Objects, containers, ports, volumes and variables have names that the API server takes."""
    for item in tree.objects:
        name = item["metadata"]["name"]
        rbac = item["apiVersion"].startswith("rbac.authorization.k8s.io/")
        if len(name) > NAME_LIMIT or not (_RBAC_NAME if rbac else _DNS_SUBDOMAIN).match(name):
            yield _bad_name(where(item), name)
    for pods in tree.pods:
        named: list[tuple[str, Any]] = [(pods.where, volume.get("name")) for volume in pods.spec.get("volumes", ())]
        for place, container in pods.containers():
            named.append((place, container.get("name")))
            for port in container.get("ports", ()):
                if "name" in port and len(port["name"]) > PORT_NAME_LIMIT:
                    yield _bad_name(place, port["name"], PORT_NAME_LIMIT)
            for variable in container.get("env", ()):
                if not _VARIABLE.match(str(variable.get("name"))):
                    yield _bad_name(place, variable.get("name"))
        for place, name in named:
            if not isinstance(name, str) or len(name) > NAME_LIMIT or not _DNS_LABEL.match(name):
                yield _bad_name(place, name)
        for key in ("volumes", "env", "containers"):
            yield from _repeated(pods.where, pods.spec, key)


def valid_labels(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Label keys and values, annotation keys, in objects and in pod templates."""
    for item in tree.objects:
        yield from _metadata(where(item), item["metadata"])
    for pods in tree.pods:
        if pods.template is not pods.owner:
            yield from _metadata(pods.where, pods.template.get("metadata", {}))


def namespaces_exist(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """An object's namespace is rendered, in the same file or an earlier one, or every cluster has it."""
    made = set(GIVEN_NAMESPACES)
    for file in tree.files:
        made |= {item["metadata"]["name"] for item in file.objects if item["kind"] == "Namespace"}
        for item in file.objects:
            namespace = item["metadata"].get("namespace")
            if namespace is not None and namespace not in made:
                yield Problem(
                    where=where(item),
                    value=namespace,
                    why=f"no file up to {file.name} makes this namespace",
                    fix="Add it to the namespaces chart.",
                )


def _repeated(place: str, spec: Mapping[str, Any], key: str) -> Iterator[Problem]:
    groups = (
        [[entry.get("name") for entry in container.get("env", ())] for container in spec["containers"]]
        if key == "env"
        else [[entry.get("name") for entry in spec.get(key, ())]]
    )
    if key == "containers":
        groups[0] += [entry.get("name") for entry in spec.get("initContainers", ())]
    for names in groups:
        for name in sorted({str(name) for name in names if names.count(name) > 1}):
            yield Problem(
                where=f"{place}.spec.{key}",
                value=name,
                why="is there twice, and server-side apply merges these lists by name",
                fix="Name each one once.",
            )


def _metadata(place: str, metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for kind in ("labels", "annotations"):
        for key, value in (metadata.get(kind) or {}).items():
            prefix, slash, name = key.rpartition("/")
            valid = len(name) <= NAME_LIMIT and bool(_KEY_NAME.match(name))
            valid = valid and (not slash or (len(prefix) <= 253 and bool(_DNS_SUBDOMAIN.match(prefix))))
            if kind == "labels" and isinstance(value, str) and value:
                valid = valid and len(value) <= NAME_LIMIT and bool(_KEY_NAME.match(value))
            if not valid or not isinstance(value, str):
                yield Problem(
                    where=f"{place}.metadata.{kind}",
                    value=f"{key}: {value}",
                    why="is not a valid label" if kind == "labels" else "is not a valid annotation",
                    fix=f"Use at most {NAME_LIMIT} of A-Z, a-z, 0-9, - _ . with letters or digits at both ends, as text.",
                )


def _bad_name(place: str, name: object, limit: int = NAME_LIMIT) -> Problem:
    return Problem(
        where=place,
        value=name,
        why="is not a name that the API server takes",
        fix=f"Use at most {limit} of a-z, 0-9 and -, with letters or digits at both ends.",
    )
