"""Digests from registries, without credentials: OCI images and Helm charts, over https alone.

What a registry says is not believed where it can be computed: an image's digest is that of the manifest's own bytes.
Protocol: OCI Distribution Specification 1.1 (pull, and the Bearer challenge that registries answer with).
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPMessage
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import urlencode, urljoin, urlsplit

import yaml

TIMEOUT_SECONDS = 30
BODY_LIMIT_MIB = 64
"""The largest answer is the index of a chart repository, some 10 MiB."""
CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Lists before single manifests: the digest of a list is good on every architecture."""
REGISTRY_HOSTS: Mapping[str, str] = MappingProxyType({"docker.io": "registry-1.docker.io"})
"""Hosts that serve the registry whose images carry another name."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_SHA256 = re.compile(r"[0-9a-f]{64}")


class RegistryError(Exception):
    """A registry that could not be reached, refused, or answered in no known form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Fetch = Callable[[str, Mapping[str, str]], Response]
"""GET of an https URL with these headers, redirects followed. Raises RegistryError where there is no answer."""


def image_digest(repository: str, tag: str, fetch: Fetch) -> str:
    """`sha256:` and the digest of the manifest that the tag names now; `repository` has the registry's host in front."""
    body = _manifest(repository, tag, fetch)
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def chart_sha256(repository: str, chart: str, version: str, fetch: Fetch) -> str:
    """SHA-256 of the archive of one chart version, from an `oci://` registry or a Helm repository's index."""
    if repository.startswith("oci://"):
        return _chart_in_registry(f"{repository.removeprefix('oci://')}/{chart}", version, fetch)
    return _chart_in_index(repository, chart, version, fetch)


def _chart_in_registry(repository: str, version: str, fetch: Fetch) -> str:
    manifest = _json(_manifest(repository, version, fetch), f"{repository}:{version}")
    layers = manifest.get("layers")
    found = [layer for layer in layers or () if layer.get("mediaType") == CHART_LAYER]
    if len(found) != 1:
        raise RegistryError(f"{repository}:{version} holds {len(found)} charts, expected one")
    return _hex(str(found[0].get("digest", "")), f"{repository}:{version}")


def _chart_in_index(repository: str, chart: str, version: str, fetch: Fetch) -> str:
    url = urljoin(f"{repository.rstrip('/')}/", "index.yaml")
    answer = fetch(_https(url), {})
    if answer.status != 200:
        raise RegistryError(f"{url} answered {answer.status}")
    try:
        entries = yaml.load(answer.body, Loader=_LOADER)["entries"][chart]  # noqa: S506 - either loader is a safe one
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise RegistryError(f"{url} is not the index of a repository with chart {chart}") from error
    found = [entry for entry in entries if str(entry.get("version")) == version]
    if len(found) != 1:
        raise RegistryError(f"{url} lists chart {chart} {version} {len(found)} times, expected once")
    return _hex(str(found[0].get("digest", "")), f"chart {chart} {version} in {url}")


def _manifest(repository: str, tag: str, fetch: Fetch) -> bytes:
    """Bytes of the manifest, asked for once more with an anonymous token where the registry wants one."""
    named, _, path = repository.partition("/")
    host = REGISTRY_HOSTS.get(named, named)
    url = _https(f"https://{host}/v2/{path}/manifests/{tag}")
    headers = {"Accept": ", ".join((*MANIFEST_TYPES, "application/json"))}
    answer = fetch(url, headers)
    if answer.status == 401:
        token = _token(answer.headers.get("www-authenticate", ""), f"repository:{path}:pull", fetch)
        answer = fetch(url, {**headers, "Authorization": f"Bearer {token}"})
    if answer.status != 200:
        raise RegistryError(f"{url} answered {answer.status}")
    said = answer.headers.get("docker-content-digest")
    if said is not None and said != f"sha256:{hashlib.sha256(answer.body).hexdigest()}":
        raise RegistryError(f"{url} sent a manifest that does not have the digest that it names")
    return answer.body


def _token(challenge: str, scope: str, fetch: Fetch) -> str:
    """An anonymous token, from where the challenge says."""
    scheme, _, rest = challenge.partition(" ")
    asked = dict(_CHALLENGE.findall(rest))
    if scheme.lower() != "bearer" or "realm" not in asked:
        raise RegistryError(
            f"a registry wants {challenge or 'credentials'!r} before it answers, not an anonymous token"
        )
    query = {"scope": asked.get("scope", scope), **({"service": asked["service"]} if "service" in asked else {})}
    realm = asked["realm"]
    url = _https(f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(query)}")
    answer = fetch(url, {})
    if answer.status != 200:
        raise RegistryError(f"{url} answered {answer.status}")
    document = _json(answer.body, url)
    token = document.get("token") or document.get("access_token")
    if not isinstance(token, str):
        raise RegistryError(f"{url} answered without a token")
    return token


def _json(body: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise RegistryError(f"{what} is not JSON") from error
    if not isinstance(document, dict):
        raise RegistryError(f"{what} is not a JSON object")
    return document


def _hex(digest: str, what: str) -> str:
    plain = digest.removeprefix("sha256:")
    if not _SHA256.fullmatch(plain):
        raise RegistryError(f"{what} has {digest!r} where a SHA-256 should be")
    return plain


def _https(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise RegistryError(f"{url} is not an https address")
    return url


class HttpsRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to https only, and gives a token to no other host than the one it is for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        _https(newurl)
        onward = super().redirect_request(req, fp, code, msg, headers, newurl)
        if onward is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            onward.remove_header("Authorization")
        return onward


def https_fetch(url: str, headers: Mapping[str, str]) -> Response:
    """The Fetch of the command line."""
    request = urllib.request.Request(_https(url), headers=dict(headers))  # noqa: S310 - https was checked
    opener = urllib.request.build_opener(HttpsRedirects)
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return _response(answer.status, answer.headers, answer, url)
    except urllib.error.HTTPError as refused:
        with refused:
            return _response(refused.code, refused.headers, refused, url)
    except (OSError, HTTPException) as error:
        raise RegistryError(f"{urlsplit(url).hostname} cannot be reached: {error}") from error


def _response(status: int, headers: Message[str, str], body: Any, url: str) -> Response:
    limit = BODY_LIMIT_MIB << 20
    content = body.read(limit + 1)
    if len(content) > limit:
        raise RegistryError(f"{url} answered more than {BODY_LIMIT_MIB} MiB")
    return Response(status=status, headers={key.lower(): value for key, value in headers.items()}, body=content)
