"""Digests from registries: what is computed and not believed, the anonymous token, and https alone."""

from __future__ import annotations

import io
import urllib.request
from email.message import Message
from http.client import HTTPMessage
from typing import Any

import pytest

from infra.operations import registry
from infra.operations.registry import (
    HttpsRedirects,
    RegistryError,
    Response,
    chart_sha256,
    https_fetch,
    image_digest,
)

from .registries import TOKEN, Registries, chart_manifest, manifest, sha256

LIST = manifest(manifests=[])
SHA = "ab" * 32
INDEX = "https://charts.example.com/stable/index.yaml"


def test_an_image_digest_is_that_of_the_manifests_own_bytes() -> None:
    known = Registries({"quay.io/kuberay/operator:v1.5.0": LIST})
    assert image_digest("quay.io/kuberay/operator", "v1.5.0", known.fetch) == f"sha256:{sha256(LIST)}"
    ((url, headers),) = known.calls
    assert url == "https://quay.io/v2/kuberay/operator/manifests/v1.5.0"
    kinds = headers["Accept"].split(", ")
    assert kinds.index("application/vnd.oci.image.index.v1+json") < kinds.index(
        "application/vnd.oci.image.manifest.v1+json"
    )
    assert "Authorization" not in headers


def test_a_digest_that_the_registry_names_for_other_bytes_is_refused() -> None:
    known = Registries({"quay.io/a/b:1": LIST}, claimed_digest=f"sha256:{SHA}")
    with pytest.raises(RegistryError, match="does not have the digest"):
        image_digest("quay.io/a/b", "1", known.fetch)


@pytest.mark.parametrize("realm", ["https://auth.example.com/token", "https://auth.example.com/proxy_auth?account=x"])
def test_a_challenge_is_met_with_an_anonymous_token_for_that_repository(realm: str) -> None:
    known = Registries({"nvcr.io/nvidia/x:1": LIST}, guarded=frozenset({"nvcr.io"}), realm=realm)
    assert image_digest("nvcr.io/nvidia/x", "1", known.fetch) == f"sha256:{sha256(LIST)}"
    asked = known.asked_for_token()
    assert (asked["scope"], asked["service"]) == (["repository:nvidia/x:pull"], ["nvcr.io"])
    assert [headers.get("Authorization") for _, headers in known.calls] == [None, None, f"Bearer {TOKEN}"]


def test_a_realm_without_tls_is_never_asked() -> None:
    known = Registries({}, guarded=frozenset({"nvcr.io"}), realm="http://auth.example.com/token")
    with pytest.raises(RegistryError, match="not an https address"):
        image_digest("nvcr.io/nvidia/x", "1", known.fetch)
    assert len(known.calls) == 1


@pytest.mark.parametrize("challenge", ["", "Basic realm=x", 'Bearer service="x"'])
def test_a_registry_that_wants_more_than_an_anonymous_token_is_refused(challenge: str) -> None:
    def fetch(_url: str, _headers: object) -> Response:
        return Response(status=401, headers={"www-authenticate": challenge}, body=b"")

    with pytest.raises(RegistryError, match="not an anonymous token"):
        image_digest("registry.example.com/x", "1", fetch)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"token": 1}'])
def test_a_token_service_without_a_token_is_refused(body: bytes) -> None:
    def fetch(url: str, _headers: object) -> Response:
        if "/v2/" in url:
            wanted = 'Bearer realm="https://auth.example.com/t"'
            return Response(status=401, headers={"www-authenticate": wanted}, body=b"")
        return Response(status=200, headers={}, body=body)

    with pytest.raises(RegistryError, match=r"auth\.example\.com"):
        image_digest("registry.example.com/x", "1", fetch)


def test_a_tag_that_does_not_exist_is_refused_with_its_address() -> None:
    with pytest.raises(RegistryError, match=r"https://quay\.io/v2/a/b/manifests/v9 answered 404"):
        image_digest("quay.io/a/b", "v9", Registries().fetch)


def test_a_chart_in_a_registry_is_its_one_chart_layer() -> None:
    known = Registries({"registry.k8s.io/kueue/charts/kueue:0.17.0": chart_manifest(f"sha256:{SHA}")})
    assert chart_sha256("oci://registry.k8s.io/kueue/charts", "kueue", "0.17.0", known.fetch) == SHA


@pytest.mark.parametrize(
    "body",
    [
        manifest(layers=[]),
        manifest(layers=[{"mediaType": "application/octet-stream", "digest": f"sha256:{SHA}"}]),
        chart_manifest("sha256:short"),
        manifest(manifests=[]),
        b"[]",
    ],
)
def test_a_manifest_without_one_chart_is_refused(body: bytes) -> None:
    known = Registries({"registry.k8s.io/x/kueue:1.0.0": body})
    with pytest.raises(RegistryError, match=r"registry\.k8s\.io/x/kueue:1\.0\.0"):
        chart_sha256("oci://registry.k8s.io/x", "kueue", "1.0.0", known.fetch)


@pytest.mark.parametrize("repository", ["https://charts.example.com/stable", "https://charts.example.com/stable/"])
@pytest.mark.parametrize("written", [SHA, f"sha256:{SHA}"])
def test_a_chart_in_an_index_is_that_of_the_exact_version(repository: str, written: str) -> None:
    versions = [{"version": "2.20.10", "digest": "cd" * 32}, {"version": "2.20.1", "digest": written}]
    known = Registries(indexes={INDEX: {"entries": {"keda": versions, "other": []}}})
    assert chart_sha256(repository, "keda", "2.20.1", known.fetch) == SHA


@pytest.mark.parametrize(
    "index",
    [
        {"entries": {"keda": []}},
        {"entries": {"keda": [{"version": "1.0.0"}]}},
        {"entries": {"keda": [{"version": "1.0.0", "digest": "latest"}]}},
        {"entries": {"other": []}},
        {"entries": None},
        {},
    ],
)
def test_an_index_without_that_version_or_its_digest_is_refused(index: dict[str, Any]) -> None:
    known = Registries(indexes={INDEX: index})
    with pytest.raises(RegistryError, match=r"charts\.example\.com"):
        chart_sha256("https://charts.example.com/stable", "keda", "1.0.0", known.fetch)


def test_an_index_is_loaded_without_tags() -> None:
    def fetch(_url: str, _headers: object) -> Response:
        return Response(status=200, headers={}, body=b"entries: !!python/object/apply:os.getcwd []")

    with pytest.raises(RegistryError, match="not the index"):
        chart_sha256("https://charts.example.com", "keda", "1.0.0", fetch)


@pytest.mark.parametrize("address", ["http://registry.example.com/v2/", "file:///etc/hosts", "https:///v2/"])
def test_only_https_is_fetched(address: str) -> None:
    with pytest.raises(RegistryError, match="not an https address"):
        https_fetch(address, {})


def redirected(to: str) -> urllib.request.Request | None:
    asked = urllib.request.Request("https://registry.example.com/v2/x", headers={"Authorization": "Bearer t"})
    return HttpsRedirects().redirect_request(asked, io.BytesIO(), 307, "moved", HTTPMessage(), to)


def test_a_redirect_keeps_the_token_on_its_host_and_drops_it_elsewhere() -> None:
    same, other = redirected("https://registry.example.com/y"), redirected("https://mirror.example.com/x")
    assert same is not None
    assert same.get_header("Authorization") == "Bearer t"
    assert other is not None
    assert other.get_header("Authorization") is None


@pytest.mark.parametrize("to", ["http://registry.example.com/y", "file:///etc/hosts"])
def test_a_redirect_off_https_is_refused(to: str) -> None:
    with pytest.raises(RegistryError, match="not an https address"):
        redirected(to)


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BODY_LIMIT_MIB", 1)
    headers: Message = HTTPMessage()
    with pytest.raises(RegistryError, match="more than 1 MiB"):
        registry._response(200, headers, io.BytesIO(b"x" * (1 << 20) + b"x"), "https://registry.example.com")
    assert registry._response(200, headers, io.BytesIO(b"x"), "https://registry.example.com").body == b"x"
