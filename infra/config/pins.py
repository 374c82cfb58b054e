"""Pins that only AWS and the registries can look up: `environments/NAME.lock.yaml`, written by `moerl lock NAME`.

A pin that is absent stays unresolved: renders show it, deploys refuse it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from infra.catalog.software import Software
from infra.config import forms
from infra.config.documents import dotted, is_file, line_of, parse, read
from infra.config.environment import Part, Release
from infra.config.faults import EnvironmentFault, Finding
from infra.config.shapes import clause

AddonVersion = Annotated[str, StringConstraints(pattern=forms.ADDON_VERSION.pattern)]
Revision = Annotated[str, StringConstraints(pattern=forms.REVISION.pattern)]
Sha256 = Annotated[str, StringConstraints(pattern=forms.SHA256.pattern)]
ImageDigest = Annotated[str, StringConstraints(pattern=forms.IMAGE_DIGEST.pattern)]


class Kubectl(Part):
    """A kubectl build in the public EKS bucket: key below s3://amazon-eks and its digest."""

    key: Annotated[str, StringConstraints(pattern=forms.KUBECTL_KEY.pattern)]
    sha256: Sha256


class Pins(Part):
    resolved_at: AwareDatetime | None = None
    fixture: bool = False
    """True in the lock that tests and the demo use: its values are made up, and only an embedded AWS accepts it."""
    kubernetes_version: str | None = None
    """The minor version that the pins were looked up for."""
    node_release: Release | None = None
    addons: dict[str, AddonVersion] = Field(default_factory=dict)
    kubectl: Kubectl | None = None
    images: dict[str, ImageDigest] = Field(default_factory=dict)
    """Digests of third-party images, by the catalog's names."""
    charts: dict[str, Sha256] = Field(default_factory=dict)
    """Digests of the Helm charts of controllers, by the catalog's names."""
    build: dict[Software, dict[str, Revision]] = Field(default_factory=dict)
    """Commits and digests that image builds need, by software stack and build argument."""


_MISFIT = "does not fit a lock file"
REWRITE = "Run `moerl lock ENV` to write it anew."
UNRESOLVED = Pins()
UNRESOLVED_TEXT = "unresolved"
"""Stands in a render where a pin is missing, so that a reader sees it and AWS refuses it."""


def pins_path(environment_path: Path) -> Path:
    """The lock file beside an environment file."""
    return environment_path.with_suffix(".lock.yaml")


def load_pins(path: Path) -> Pins:
    """The pins of a lock file; all unresolved where there is no file.

    Raises EnvironmentFault, with everything that is wrong, when the file does not have the form that `moerl lock` writes.
    """
    if not is_file(path):
        return UNRESOLVED
    text = read(path)
    try:
        document = parse(text, str(path))
    except EnvironmentFault as refused:
        found = tuple(
            replace(item, rule="file.lock", why=f"{_MISFIT}: {item.why}", fix=REWRITE) for item in refused.findings
        )
        raise EnvironmentFault(str(path), found) from refused
    try:
        pins = Pins.model_validate({} if document.value is None else document.value)
    except ValidationError as error:
        wrong: dict[str, list[ErrorDetails]] = {}
        for detail in error.errors():
            wrong.setdefault(dotted(detail["loc"]), []).append(detail)
        misfits = tuple(_fault(key, details, line_of(document.lines, key)) for key, details in wrong.items())
        raise EnvironmentFault(str(path), (*document.faults, *misfits)) from error
    if document.faults:
        raise EnvironmentFault(str(path), document.faults)
    return pins


def _fault(key: str, details: list[ErrorDetails], line: int | None) -> Finding:
    kind, written = details[0]["type"], details[0]["input"]
    said = {"extra_forbidden": "is not a key of it", "missing": "is required"}.get(kind) or clause(details)
    return Finding(
        rule="file.lock",
        key=key or "file",
        value=None if kind == "missing" else "a mapping" if isinstance(written, dict) else written,
        why=f"{_MISFIT}: {said}",
        fix=REWRITE,
        line=line,
    )
