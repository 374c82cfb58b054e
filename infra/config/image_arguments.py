"""Build arguments of an image, from its stack: the catalog chooses every version, a Dockerfile only uses them.

One of them, CAPABILITIES, is a JSON document that the build writes into the image: what the checks at its end, and later
preflight, hold it to. A pin that only a registry or a repository knows stays out until `moerl lock` has looked it up; the
build then stops with the name of the argument and the command that resolves it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.catalog.facts import Pin, Unresolved
from infra.catalog.image_sources import (
    EFA_KEY_FINGERPRINT,
    GDRCOPY_COMMITS,
    GDRCOPY_REPOSITORY,
    GIN_EXPORT,
    ImageSources,
)
from infra.catalog.software import Software, SoftwareStack

_COMMIT = re.compile(r"[0-9a-f]{40}")
CONTEXT = "images"
"""Build context of every Dockerfile, from the root of the repository."""
CAPABILITIES = "CAPABILITIES"
CHECKOUTS: Mapping[Software, Mapping[str, str]] = {
    "baseline": {"FRAMEWORK_REF": "/root/slime"},
    "aws-reference": {
        "FRAMEWORK_REF": "/opt/miles",
        "MEGATRON_REF": "/opt/Megatron-LM",
        "SGLANG_REF": "/sgl-workspace/sglang",
    },
    "efa-gda": {
        "FRAMEWORK_REF": "/opt/miles",
        "MEGATRON_REF": "/opt/Megatron-LM",
        "SGLANG_REF": "/sgl-workspace/sglang",
    },
}
"""Where an image has the working trees that its arguments pin. The baseline's other two carry slime's patches, which no
commit names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageArguments:
    """`arguments` go to the build as they are; `unresolved` are those that it lacks, by name."""

    stack: Software
    arguments: Mapping[str, str]
    unresolved: Mapping[str, Unresolved]

    @property
    def dockerfile(self) -> str:
        """Path from the root of the repository."""
        return f"{CONTEXT}/{self.stack}/Dockerfile"

    def document(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "dockerfile": self.dockerfile,
            "context": CONTEXT,
            "arguments": dict(self.arguments),
            "unresolved": {
                name: {"what": pin.what, "command": pin.command} for name, pin in sorted(self.unresolved.items())
            },
        }


def image_arguments(
    stack: SoftwareStack,
    sources: ImageSources,
    *,
    archs: Sequence[str] = (),
    resolved: Mapping[str, str] | None = None,
    trainer_flags: Sequence[str] = (),
    engine_flags: Sequence[str] = (),
) -> ImageArguments:
    """Arguments of the stack's Dockerfile.

    `archs` are the CUDA architectures of the pools; the stack's own without any. `resolved` are values of the lock for
    pins that the catalog leaves open. The flags, by name, are those that the renders will pass to this image.
    """
    archs = tuple(archs) or stack.cuda_archs
    known = resolved or {}
    pins = {name: known.get(name, pin) if isinstance(pin, Unresolved) else pin for name, pin in _pins(stack, sources)}
    values = {name: pin for name, pin in pins.items() if isinstance(pin, str)}
    values["CUDA_ARCHS"] = ";".join(archs)
    values[CAPABILITIES] = json.dumps(
        _capabilities(stack, sources, values, archs, trainer_flags, engine_flags), sort_keys=True, separators=(",", ":")
    )
    return ImageArguments(
        stack=stack.name,
        arguments=dict(sorted(values.items())),
        unresolved={name: pin for name, pin in pins.items() if isinstance(pin, Unresolved)},
    )


def unresolved_arguments(stack: SoftwareStack, sources: ImageSources) -> dict[str, Unresolved]:
    """Arguments whose values the catalog cannot know, by name."""
    return {name: pin for name, pin in _pins(stack, sources) if isinstance(pin, Unresolved)}


def _pins(stack: SoftwareStack, sources: ImageSources) -> list[tuple[str, Pin]]:
    deepep = stack.deepep
    found: dict[str, Pin | None] = {
        "BASE_IMAGE": f"{stack.base_image.repository}:{stack.base_image.tag}",
        "BASE_DIGEST": stack.base_image.digest,
        "CUDA": stack.cuda,
        "TORCH": stack.torch,
        "NCCL": stack.nccl,
        "EFA_INSTALLER": stack.efa_installer,
        "EFA_KEY_FINGERPRINT": EFA_KEY_FINGERPRINT if stack.efa_installer else None,
        "AWS_OFI_NCCL": stack.aws_ofi_nccl,
        "LIBFABRIC": stack.libfabric,
        "GDRCOPY": stack.gdrcopy,
        "GDRCOPY_REPOSITORY": GDRCOPY_REPOSITORY if stack.gdrcopy else None,
        "GDRCOPY_REF": GDRCOPY_COMMITS[stack.gdrcopy] if stack.gdrcopy else None,
        "NVSHMEM": stack.nvshmem,
        "DEEPEP": deepep.version if deepep else None,
        "DEEPEP_REPOSITORY": deepep.repository if deepep else None,
        "DEEPEP_REF": deepep.ref if deepep else None,
        "SGLANG": stack.sglang,
        "SGLANG_REPOSITORY": sources.sglang_repository,
        "SGLANG_REF": stack.sglang_ref,
        "FRAMEWORK": stack.framework,
        "FRAMEWORK_VERSION": stack.framework_version,
        "FRAMEWORK_REPOSITORY": sources.framework_repository,
        "FRAMEWORK_REF": stack.framework_ref,
        "MEGATRON_REPOSITORY": sources.megatron_repository,
        "MEGATRON_REF": sources.megatron_ref,
        **{name.upper().replace("-", "_"): version for name, version in sources.trainer.items()},
        "OPEN_REQUIREMENTS": _listed(sources.open_requirements),
        "BUILD_TOOLS": _listed(sources.build_tools),
    }
    return [(name, pin) for name, pin in found.items() if pin is not None]


def _listed(versions: Mapping[str, str]) -> str | None:
    """As pip takes them, in one line; None where there are none."""
    return " ".join(f"{name}=={version}" for name, version in sorted(versions.items())) or None


def _capabilities(
    stack: SoftwareStack,
    sources: ImageSources,
    values: Mapping[str, str],
    archs: Sequence[str],
    trainer_flags: Sequence[str],
    engine_flags: Sequence[str],
) -> dict[str, Any]:
    """What the image must turn out to be. `limits` are what it need not be able to do, with the reason."""
    deepep = stack.deepep
    return {
        "stack": stack.name,
        "cuda": stack.cuda,
        "cuda_archs": list(archs),
        "transports": list(stack.transports),
        "packages": {"torch": values["TORCH"], "sglang": stack.sglang, **_packages(sources)},
        "nccl": stack.nccl,
        "efa_installer": stack.efa_installer,
        "aws_ofi_nccl": stack.aws_ofi_nccl,
        "libfabric": stack.libfabric,
        "gdrcopy": stack.gdrcopy,
        "nvshmem": stack.nvshmem,
        "gin_exports": [GIN_EXPORT[transport] for transport in stack.transports if transport in GIN_EXPORT],
        "deepep": {"version": deepep.version, "ref": values["DEEPEP_REF"]} if deepep else None,
        "checkouts": {path: values[name] for name, path in CHECKOUTS[stack.name].items() if name in values},
        "framework": stack.framework,
        "rollout_a2a": stack.rollout_a2a,
        "limits": {limit.capability: limit.reason for limit in stack.limits},
        "trainer_flags": sorted(set(trainer_flags)),
        "engine_flags": sorted(set(engine_flags)),
    }


def _packages(sources: ImageSources) -> dict[str, str]:
    """Installed versions to expect, by distribution: releases alone, since a commit is in no version."""
    return {name: version for name, version in sources.trainer.items() if not _COMMIT.fullmatch(version)}
