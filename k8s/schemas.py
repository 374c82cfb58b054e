"""Where the schemas of custom resources come from: `schemas.lock` names each file by URL and digest, none is copied here.

A file is taken from a mirror folder, else from the cache of an earlier download, else over https. One that cannot be had is
reported as missing, with the reason, so that the checks which need it are skipped by name; one with a wrong digest is an error.
"""

from __future__ import annotations

import hashlib
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LOCK = Path(__file__).with_name("schemas.lock")
DOWNLOAD_TIMEOUT_SECONDS = 15
SIZE_LIMIT_BYTES = 8 << 20

Fetch = Callable[[str], bytes]
"""URL to content; raises OSError where there is no way to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSchema:
    """One CustomResourceDefinition file. `kind` is GROUP/KIND."""

    file: str
    kind: str
    controller: str
    version: str
    url: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    files: Mapping[str, Path]
    """GROUP/KIND to a file with the locked digest."""
    missing: Mapping[str, str]
    """GROUP/KIND to the reason why there is none."""


class SchemaDigestError(Exception):
    """A schema file that is not the locked one."""


def locked_schemas() -> tuple[LockedSchema, ...]:
    """What schemas.lock names, in its order."""
    return tuple(LockedSchema(**entry) for entry in yaml.safe_load(LOCK.read_text(encoding="utf-8")))


def resolve(
    schemas: Iterable[LockedSchema], *, mirror: Path | None, cache: Path, fetch: Fetch | None = None
) -> Resolved:
    """Finds every schema; after one failed download no other is tried, since the network is then the reason.

    Raises SchemaDigestError for a mirror or an upstream file that is not the locked one. A damaged cache file is fetched anew.
    """
    files: dict[str, Path] = {}
    missing: dict[str, str] = {}
    no_network = "downloads are off" if fetch is None else ""
    for schema in schemas:
        mirrored, cached = mirror and mirror / schema.file, cache / f"{schema.sha256}.yaml"
        if mirrored and mirrored.is_file():
            _verify(schema, mirrored.read_bytes(), str(mirrored))
            files[schema.kind] = mirrored
        elif cached.is_file() and _digest(cached.read_bytes()) == schema.sha256:
            files[schema.kind] = cached
        elif fetch is None or no_network:
            missing[schema.kind] = no_network
        else:
            try:
                content = fetch(schema.url)
            except OSError as error:
                no_network = f"{schema.url} cannot be fetched: {error}"
                missing[schema.kind] = no_network
                continue
            _verify(schema, content, schema.url)
            _write_whole(cached, content)
            files[schema.kind] = cached
    return Resolved(files=files, missing=missing)


def fetch_https(url: str) -> bytes:
    """Content of an https URL. Raises OSError, and ValueError for another scheme or a file above SIZE_LIMIT_BYTES."""
    if not url.startswith("https://"):
        raise ValueError(f"{url}: only https is fetched")
    with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as answer:  # noqa: S310 - https alone, above
        content: bytes = answer.read(SIZE_LIMIT_BYTES + 1)
    if len(content) > SIZE_LIMIT_BYTES:
        raise ValueError(f"{url}: larger than {SIZE_LIMIT_BYTES} bytes")
    return content


def served_schemas(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Version to openAPIV3Schema, for every version that the CustomResourceDefinition in the file serves."""
    definition = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - both are safe loaders
    return {
        version["name"]: version["schema"]["openAPIV3Schema"]
        for version in definition["spec"]["versions"]
        if version["served"]
    }


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C one reads a megabyte in a tenth of the time; both build plain data only."""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _verify(schema: LockedSchema, content: bytes, where: str) -> None:
    found = _digest(content)
    if found != schema.sha256:
        raise SchemaDigestError(f"{where} has sha256 {found}, but schemas.lock says {schema.sha256}")


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(content)
    Path(part.name).replace(path)
