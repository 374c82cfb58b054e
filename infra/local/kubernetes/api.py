"""A Kubernetes API client over plain HTTPS requests: what the start of a control plane and its tests need, no more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

Object = dict[str, Any]
FIELD_MANAGER = "moerl"
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"


class ApiFault(RuntimeError):
    """The API server refused a request. `status` is the HTTP status, `message` the server's own words."""

    def __init__(self, status: int, message: str, request: str) -> None:
        super().__init__(f"{request}: {status} {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Resource:
    """How the API names a kind: `path` is its group and version, `plural` its name in URLs."""

    path: str
    plural: str
    namespaced: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A stored object and the warnings that came with it."""

    item: Object
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Api:
    """One API server as one user: `certificate` and `key` are files of a client certificate."""

    url: str
    authority: Path
    certificate: Path
    key: Path
    _pool: list[urllib3.PoolManager] = field(default_factory=list, repr=False)
    _resources: dict[tuple[str, str], Resource] = field(default_factory=dict, repr=False)

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        as_user: str | None = None,
    ) -> tuple[Any, tuple[str, ...]]:
        """(decoded answer, warnings). as_user: whom to impersonate.

        Raises ApiFault for a refusal and urllib3's errors where nobody answers.
        """
        if not self._pool:
            self._pool.append(
                urllib3.PoolManager(
                    ca_certs=str(self.authority),
                    cert_file=str(self.certificate),
                    key_file=str(self.key),
                    maxsize=8,
                    retries=False,
                    timeout=30,
                )
            )
        target = f"{self.url}{path}?{urlencode(query)}" if query else f"{self.url}{path}"
        reply = self._pool[0].request(
            method,
            target,
            body=None if body is None else json.dumps(body).encode(),
            headers={
                "Content-Type": content_type,
                "Accept": "application/json",
                **({"Impersonate-User": as_user} if as_user else {}),
            },
        )
        if reply.status >= 300:
            raise ApiFault(reply.status, _message(reply.data), f"{method} {path}")
        warnings = tuple(reply.headers.getlist("Warning"))
        text = reply.data.decode(errors="replace")
        return (json.loads(text) if text.startswith("{") else text), warnings

    def ready(self) -> bool:
        """Whether the server answers and says that it is ready."""
        try:
            self.request("GET", "/readyz")
        except (ApiFault, urllib3.exceptions.HTTPError):
            return False
        return True

    def resource(self, api_version: str, kind: str) -> Resource:
        """Raises LookupError when the server does not serve the kind."""
        known = self._resources.get((api_version, kind))
        if known is None:
            path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                listing, _ = self.request("GET", path)
            except ApiFault as fault:
                raise LookupError(f"the API server does not serve {api_version}: {fault}") from fault
            for entry in listing["resources"]:
                if "/" not in entry["name"]:
                    found = Resource(path, entry["name"], entry["namespaced"])
                    self._resources[api_version, entry["kind"]] = found
            known = self._resources.get((api_version, kind))
        if known is None:
            raise LookupError(f"the API server does not serve {kind} of {api_version}")
        return known

    def path(self, api_version: str, kind: str, namespace: str | None = None, name: str | None = None) -> str:
        """Path of an object, or of all of a kind; without a namespace, of all namespaces."""
        resource = self.resource(api_version, kind)
        parts = [resource.path]
        if resource.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace)}")
        parts.append(resource.plural)
        if name:
            parts.append(quote(name))
        return "/".join(parts)

    def path_of(self, item: Object) -> str:
        metadata = item["metadata"]
        return self.path(item["apiVersion"], item["kind"], metadata.get("namespace"), metadata["name"])

    def apply(self, item: Object, *, dry_run: bool = False) -> Answer:
        """Server-side apply with strict field validation, as `moerl apply` does it: a field that another manager owns with
        another value is a conflict (ApiFault 409)."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return Answer(*self.request("PATCH", self.path_of(item), item, query, _APPLY))

    def create(self, item: Object, *, dry_run: bool = False) -> Answer:
        """A new object, with strict field validation."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        path = self.path(item["apiVersion"], item["kind"], item["metadata"].get("namespace"))
        return Answer(*self.request("POST", path, item, query))

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """None when there is none."""
        try:
            found: Object = self.request("GET", self.path(api_version, kind, namespace, name))[0]
        except ApiFault as fault:
            if fault.status == 404:
                return None
            raise
        return found

    def list(self, api_version: str, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """Objects of a kind, with their apiVersion and kind filled in."""
        query = {"labelSelector": selector} if selector else None
        answer = self.request("GET", self.path(api_version, kind, namespace), query=query)[0]
        return [{"apiVersion": api_version, "kind": kind, **item} for item in answer["items"]]

    def patch(self, item: Object, change: Object, *, subresource: str = "") -> Object:
        """A JSON merge patch."""
        path = self.path_of(item) + (f"/{subresource}" if subresource else "")
        changed: Object = self.request("PATCH", path, change, None, _MERGE)[0]
        return changed

    def delete(self, item: Object, *, grace_seconds: int | None = None) -> None:
        """Asks for the deletion; nothing to do when it is gone."""
        query = None if grace_seconds is None else {"gracePeriodSeconds": str(grace_seconds)}
        try:
            self.request("DELETE", self.path_of(item), query=query)
        except ApiFault as fault:
            if fault.status != 404:
                raise

    def evict(self, pod: Object) -> None:
        """A voluntary eviction, which a disruption budget may refuse (ApiFault 429)."""
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
        body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        self.request("POST", f"{self.path_of(pod)}/eviction", body)


def until(what: str, ask: Callable[[], Any], deadline_seconds: float, pause_seconds: float = 0.2) -> Any:
    """The first true answer of `ask`. Raises TimeoutError at the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {deadline_seconds:g} s")
        time.sleep(pause_seconds)


def serves(api: Api, definitions: Iterable[Object]) -> bool:
    """Whether the API server serves every version of these CustomResourceDefinitions."""
    for item in definitions:
        spec = item["spec"]
        for version in spec["versions"]:
            try:
                if version["served"]:
                    api.resource(f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            except LookupError:
                return False
    return True


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data).get("message", ""))
    except (json.JSONDecodeError, AttributeError):
        return data.decode(errors="replace").strip()
