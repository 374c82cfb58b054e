"""Pins that only AWS and the registries can look up: `environments/NAME.lock.yaml`, written by `moerl lock NAME`.

A pin that is absent stays unresolved: renders show it, deploys refuse it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AwareDatetime, Field, StringConstraints, ValidationError

from infra.catalog.software import Software
from infra.config.environment import Part, Release
from infra.config.faults import EnvironmentFault, Finding

AddonVersion = Annotated[str, StringConstraints(pattern=r"^v[0-9]+\.[0-9]+\.[0-9]+.*-eksbuild\.[0-9]+$")]
Revision = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64}|[0-9a-f]{40})$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
ImageDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class Kubectl(Part):
    """A kubectl build in the public EKS bucket: key below s3://amazon-eks and its digest."""

    key: Annotated[
        str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+/[0-9]{4}-[0-9]{2}-[0-9]{2}/bin/linux/amd64/kubectl$")
    ]
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


UNRESOLVED = Pins()
UNRESOLVED_TEXT = "unresolved"
"""Stands in a render where a pin is missing, so that a reader sees it and AWS refuses it."""


def pins_path(environment_path: Path) -> Path:
    """The lock file beside an environment file."""
    return environment_path.with_suffix(".lock.yaml")


def load_pins(path: Path) -> Pins:
    """The pins of a lock file; all unresolved where there is no file.

    Raises EnvironmentFault when the file does not have the form that `moerl lock` writes.
    """
    if not path.is_file():
        return UNRESOLVED
    try:
        return Pins.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (yaml.YAMLError, ValidationError) as error:
        detail = error.errors()[0] if isinstance(error, ValidationError) else None
        fault = Finding(
            rule="file.lock",
            key=".".join(str(step) for step in detail["loc"]) if detail else "file",
            value=detail["input"] if detail else str(error),
            why=f"does not fit a lock file: {detail['msg'] if detail else 'it is not YAML'}",
            fix="Run `moerl lock ENV` to write it anew.",
        )
        raise EnvironmentFault(str(path), (fault,)) from error
