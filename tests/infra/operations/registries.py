"""Registries that answer from Python, in the form of the OCI Distribution Specification and of Helm's index."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from infra.operations.registry import CHART_LAYER, RegistryError, Response

TOKEN = "anonymous-pull"  # noqa: S105 - what the made-up registry hands out


def manifest(**fields: object) -> bytes:
    return json.dumps({"schemaVersion": 2, **fields}).encode()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def chart_manifest(digest: str) -> bytes:
    return manifest(layers=[{"mediaType": CHART_LAYER, "digest": digest, "size": 1}])


def packets(references: Mapping[str, str]) -> bytes:
    """References as Git's smart HTTP lists them, one packet each."""
    lines = (f"{commit} {name}\n".encode() for name, commit in references.items())
    return b"".join(f"{len(line) + 4:04x}".encode() + line for line in lines)


def advertised(references: Mapping[str, str]) -> bytes:
    """The whole answer of a server that keeps these references."""
    service = b"# service=git-upload-pack\n"
    return f"{len(service) + 4:04x}".encode() + service + b"0000" + packets(references) + b"0000"


@dataclass
class Registries:
    """Manifests by `HOST/PATH:TAG`, chart indexes and other answers by URL. `guarded` hosts want a token from `realm`
    first."""

    manifests: dict[str, bytes] = field(default_factory=dict)
    indexes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    guarded: frozenset[str] = frozenset()
    realm: str = "https://auth.example.com/token"
    claimed_digest: str | None = None
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def fetch(self, url: str, headers: Mapping[str, str]) -> Response:
        self.calls.append((url, dict(headers)))
        parts = urlsplit(url)
        if parts.scheme != "https":
            raise AssertionError(f"asked {url}")
        if url.startswith(self.realm):
            return _answer(200, json.dumps({"token": TOKEN}).encode())
        if url in self.pages:
            return _answer(200, self.pages[url])
        if url in self.indexes:
            return _answer(200, yaml.safe_dump(self.indexes[url]).encode())
        path, _, tag = parts.path.removeprefix("/v2/").rpartition("/manifests/")
        if parts.hostname in self.guarded and headers.get("Authorization") != f"Bearer {TOKEN}":
            wanted = f'Bearer realm="{self.realm}",service="{parts.hostname}",scope="repository:{path}:pull"'
            return _answer(401, b"", {"www-authenticate": wanted})
        body = self.manifests.get(f"{parts.hostname}/{path}:{tag}")
        if body is None:
            return _answer(404, b"")
        return _answer(200, body, {"docker-content-digest": self.claimed_digest or f"sha256:{sha256(body)}"})

    def asked_for_token(self) -> dict[str, list[str]]:
        """Query of the token request."""
        (url,) = (url for url, _ in self.calls if url.startswith(self.realm))
        return parse_qs(urlsplit(url).query)


def unreachable(url: str, _headers: Mapping[str, str]) -> Response:
    raise RegistryError(f"{urlsplit(url).hostname} cannot be reached: no route")


def _answer(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status=status, headers=headers or {}, body=body)
