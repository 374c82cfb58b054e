"""The document that the build writes into the image (build argument CAPABILITIES): what the image has to be.

No version stands in this package: an image is held to the catalog that it was built from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from moerl_runtime.faults import InputFault

CAPABILITIES_FILE = "/opt/moerl/capabilities.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepEp:
    version: str
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """`packages` are versions by distribution, `checkouts` commits by working tree, `gin_exports` symbols that the NCCL
    plugin must export. `limits` say what the stack need not be able to do. Versions that are None are not in the stack."""

    stack: str
    cuda: str
    cuda_archs: tuple[str, ...]
    transports: tuple[str, ...]
    packages: Mapping[str, str]
    nccl: str
    efa_installer: str | None
    aws_ofi_nccl: str | None
    libfabric: str | None
    gdrcopy: str | None
    nvshmem: str | None
    gin_exports: tuple[str, ...]
    deepep: DeepEp | None
    checkouts: Mapping[str, str]
    framework: str
    rollout_a2a: str
    limits: Mapping[str, str]
    trainer_flags: tuple[str, ...]
    engine_flags: tuple[str, ...]


def read(path: Path, *, stack: str) -> Capabilities:
    """The document of the image. Raises InputFault where it is missing, of another form or another stack's."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputFault(
            "capabilities", str(path), f"cannot be read: {error}", "Build with the arguments of `moerl image args`."
        ) from error
    if not isinstance(document, dict):
        raise InputFault(
            "capabilities", str(path), "is no JSON object", "Build with the arguments of `moerl image args`."
        )
    missing = sorted({field.name for field in fields(Capabilities)} ^ set(document))
    if missing:
        raise InputFault(
            "capabilities",
            str(path),
            f"differs from this release in {', '.join(missing)}",
            "Build with the arguments of `moerl image args` of the same release.",
        )
    if document["stack"] != stack:
        raise InputFault(
            "--stack",
            stack,
            f"is not the stack of the build arguments, {document['stack']}",
            f"Write --stack {document['stack']}, or pass what `moerl image args {stack}` prints to the Dockerfile of that stack.",
        )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in document.items()
    }
    deepep = values.pop("deepep")
    return Capabilities(deepep=DeepEp(**deepep) if deepep else None, **values)
