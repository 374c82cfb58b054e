"""What the smoke RL job's engines loaded: read from the agents' logs, and tried once more by a node that joins at the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from moerl_runtime import protocol, store
from moerl_runtime.checkpoint import layout
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.smoke import job
from moerl_runtime.weights import fetch, manifest, safetensors

BROUGHT = re.compile(r"weights: version (\d+) of attempt (\d+) from (\d+) deltas on (.+), [\d.]+ GiB read, ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """How a version came to a node: `deltas` applied to a whole version of the model."""

    node: str
    attempt: int
    version: int
    deltas: int
    whole: Literal["base", "anchor", "node"]
    """The base model that every node has, a whole version in the bucket, or one that the node had already."""
    whole_version: int

    def __str__(self) -> str:
        beginning = "the base model" if self.whole == "base" else f"{self.whole} {self.whole_version}"
        return f"{self.node} version {self.version} from {beginning} and {self.deltas} deltas"


def brought(node: str, log: str) -> list[Brought]:
    """What an agent's log says of the versions that it brought, in its order."""
    return [
        Brought(node=node, attempt=int(attempt), version=int(version), deltas=int(deltas), **_whole(start))
        for version, attempt, deltas, start in BROUGHT.findall(log)
    ]


def join(
    s3: store.S3Client,
    bucket: str,
    weights_prefix: str,
    of: protocol.Attempt,
    version: int,
    *,
    base: Path,
    models: Path,
) -> tuple[Path, Brought]:
    """(directory, how) of a version, on a node that has nothing but the base model and begins now."""
    key = manifest.version_key(weights_prefix, of, version)
    said: list[str] = []
    directory = fetch.bring(
        s3,
        bucket,
        protocol.Current(run=of.run, attempt=of.number, version=version, manifest=key),
        weights_prefix=weights_prefix,
        models=models,
        base=base,
        report=said.append,
    )
    return directory, brought("a node at the end", "\n".join(said))[0]


def is_export(s3: store.S3Client, bucket: str, of: Checkpoint, directory: Path) -> bool:
    """Whether the directory's weights are, byte for byte, the export in that checkpoint."""
    exported = [Path(file.name) for file in layout.files_of(of.complete) if file.name.endswith(safetensors.SUFFIX)]
    found = {name: store.get(s3, bucket, layout.file_key(of.prefix, str(name))) for name in exported}
    return bool(found) and all(
        stored is not None and stored.body == (directory / name.name).read_bytes() for name, stored in found.items()
    )


def _whole(start: str) -> dict[str, Any]:
    if start.endswith(protocol.MANIFEST_NAME):
        return {"whole": "anchor", "whole_version": manifest.version_of(start)}
    if Path(start).name == job.SERVING:
        return {"whole": "base", "whole_version": 0}
    return {"whole": "node", "whole_version": int(Path(start).name)}
