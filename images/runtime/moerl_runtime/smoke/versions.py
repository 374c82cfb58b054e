"""Versions of the smoke job's weights: written as Miles writes them in its disk-delta mode, and what the bucket has of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moerl_runtime import store
from moerl_runtime.protocol import Attempt
from moerl_runtime.weights import delta
from moerl_runtime.weights.manifest import anchor_key, decode_manifest, version_key


def directory_of(below: Path, version: int) -> Path:
    """Where Miles writes a version; by the name its hook knows which one it is."""
    return below / f"weight_v{version:06d}"


def write(directory: Path, version: int, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """The tensors that the version changed, each as its difference to the version before."""
    changed = {name: (before[name], data) for name, data in after.items() if data != before[name]}
    delta.write(directory, changed, version=version, base=version - 1)


def stored(
    s3: store.S3Client, bucket: str, weights_prefix: str, attempt: Attempt, versions: Iterable[int]
) -> list[dict[str, Any]]:
    """Every form in which these versions are in the bucket: {version, kind, size_bytes} each."""
    found = []
    for version in versions:
        for key_of in (version_key, anchor_key):
            document = store.get(s3, bucket, key_of(weights_prefix, attempt, version))
            if document is not None:
                manifest = decode_manifest(document.body)
                found.append({"version": version, "kind": manifest.kind, "size_bytes": manifest.size_bytes})
    return found
