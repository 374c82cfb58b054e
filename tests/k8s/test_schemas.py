"""Where custom resource schemas come from, and that none but the locked ones are used."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from infra.catalog.controllers import CONTROLLERS
from k8s.schemas import LockedSchema, SchemaDigestError, fetch_https, locked_schemas, resolve, served_schemas

CONTENT = b"kind: CustomResourceDefinition\n"


def locked(name: str, content: bytes = CONTENT) -> LockedSchema:
    return LockedSchema(
        file=f"{name}.yaml",
        kind=f"example.com/{name}",
        controller="kueue",
        version="v1.0.0",
        url=f"https://example.com/{name}.yaml",
        sha256=hashlib.sha256(content).hexdigest(),
    )


def unreachable(url: str) -> bytes:
    raise OSError(f"no route to {url}")


def never(url: str) -> bytes:
    raise AssertionError(f"{url} was fetched")


@pytest.mark.parametrize("schema", locked_schemas(), ids=lambda schema: schema.file)
def test_schemas_are_of_the_controllers_that_the_catalog_pins(schema: LockedSchema) -> None:
    version = str(CONTROLLERS[schema.controller].app_version).removeprefix("v")
    assert schema.version == f"v{version}"
    assert f"/v{version}/" in schema.url
    assert version in schema.file
    assert urlsplit(schema.url).scheme == "https"
    assert len(schema.sha256) == 64


def test_every_schema_has_its_own_kind_and_file() -> None:
    schemas = locked_schemas()
    assert len({schema.kind for schema in schemas}) == len({schema.file for schema in schemas}) == len(schemas) > 10


def test_a_mirror_goes_before_the_network(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(CONTENT)
    found = resolve([locked("a")], mirror=tmp_path, cache=tmp_path / "cache", fetch=never)
    assert found.files == {"example.com/a": tmp_path / "a.yaml"}
    assert found.missing == {}


def test_a_download_is_verified_and_kept(tmp_path: Path) -> None:
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        return CONTENT

    for _ in range(2):
        found = resolve([locked("a")], mirror=tmp_path / "nothing", cache=tmp_path / "cache", fetch=fetch)
        assert found.files["example.com/a"].read_bytes() == CONTENT
    assert fetched == ["https://example.com/a.yaml"]


def test_a_damaged_cache_file_is_fetched_again(tmp_path: Path) -> None:
    schema = locked("a")
    (tmp_path / f"{schema.sha256}.yaml").write_bytes(CONTENT[:-3])
    found = resolve([schema], mirror=None, cache=tmp_path, fetch=lambda _: CONTENT)
    assert found.files["example.com/a"].read_bytes() == CONTENT


def test_another_file_than_the_locked_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(CONTENT + b"# changed\n")
    with pytest.raises(SchemaDigestError, match=r"a\.yaml has sha256"):
        resolve([locked("a")], mirror=tmp_path, cache=tmp_path / "cache", fetch=never)
    with pytest.raises(SchemaDigestError, match=r"https://example\.com/b\.yaml has sha256"):
        resolve([locked("b")], mirror=None, cache=tmp_path / "cache", fetch=lambda _: b"something else")
    assert not (tmp_path / "cache").exists()


def test_without_a_way_each_schema_is_missing_by_name_after_one_attempt(tmp_path: Path) -> None:
    attempts: list[str] = []

    def fetch(url: str) -> bytes:
        attempts.append(url)
        return unreachable(url)

    found = resolve([locked("a"), locked("b")], mirror=None, cache=tmp_path, fetch=fetch)
    assert found.files == {}
    assert set(found.missing) == {"example.com/a", "example.com/b"}
    assert all("no route" in reason for reason in found.missing.values())
    assert attempts == ["https://example.com/a.yaml"]


def test_with_downloads_off_nothing_is_fetched(tmp_path: Path) -> None:
    found = resolve([locked("a")], mirror=None, cache=tmp_path)
    assert found.missing == {"example.com/a": "downloads are off"}


def test_only_https_is_fetched() -> None:
    with pytest.raises(ValueError, match="only https"):
        fetch_https("file:///etc/passwd")


def test_versions_that_are_not_served_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "definition.yaml"
    path.write_text(
        """\
kind: CustomResourceDefinition
spec:
  versions:
    - {name: v1, served: true, schema: {openAPIV3Schema: {type: object}}}
    - {name: v1alpha1, served: false, schema: {openAPIV3Schema: {type: object}}}
""",
        encoding="utf-8",
    )
    assert served_schemas(path) == {"v1": {"type": "object"}}
