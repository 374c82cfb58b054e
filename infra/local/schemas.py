"""The locked schemas of custom resources on this machine: from a mirror folder, from the checkout's cache, or from upstream."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from k8s.schemas import Resolved, fetch_https, locked_schemas, resolve

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "schemas"
MIRROR_VARIABLE = "MOERL_SCHEMAS_DIR"
DEFINITIONS = (
    f"{MIRROR_VARIABLE} names a folder with them: download each `url` of k8s/schemas.lock there, as its `file`"
)
"""What to do about kinds whose definition could not be fetched."""


def local_schemas(variables: Mapping[str, str]) -> Resolved:
    """Every schema that can be had. variables: the process environment, whose MOERL_SCHEMAS_DIR names a mirror folder."""
    return _resolved(variables.get(MIRROR_VARIABLE))


@cache
def _resolved(mirror: str | None) -> Resolved:
    return resolve(locked_schemas(), mirror=Path(mirror) if mirror else None, cache=CACHE, fetch=fetch_https)
