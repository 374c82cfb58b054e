"""Kubernetes version, software stack and image against the pools they run on."""

from __future__ import annotations

from collections.abc import Iterator

from infra.catalog.kubernetes import EXTENDED_SUPPORT_USD_PER_HOUR, FLOOR, support
from infra.config.faults import Finding
from infra.config.rules.registry import Context, fault, rule, warning
from infra.config.transport import version_key


@rule("software.kubernetes-version")
def kubernetes_version(context: Context) -> Iterator[Finding]:
    written, known = context.environment.kubernetes.version, context.catalog.kubernetes_versions
    if version_key(written) < version_key(FLOOR):
        yield fault(
            "kubernetes.version",
            written,
            f"is older than this package supports ({FLOOR})",
            f"Write one of {', '.join(known)}.",
        )
    elif written not in known:
        yield fault(
            "kubernetes.version",
            written,
            "is not in the catalog: no support dates, no tested controllers",
            f"Write one of {', '.join(known)}.",
        )


@rule("software.kubernetes-support")
def kubernetes_support(context: Context) -> Iterator[Finding]:
    version = context.catalog.kubernetes_versions.get(context.environment.kubernetes.version)
    if version is None:
        return
    state = support(version, context.catalog.as_of)
    if state == "ended":
        yield warning(
            "kubernetes.version",
            version.version,
            f"left extended support on {version.extended_until}: EKS refuses new clusters of it and upgrades old ones by itself",
            "Write a version in standard support.",
        )
    elif state == "extended":
        yield warning(
            "kubernetes.version",
            version.version,
            f"left standard support on {version.standard_until}; extended support adds"
            f" {EXTENDED_SUPPORT_USD_PER_HOUR} USD an hour until {version.extended_until}",
            "Write a version in standard support.",
        )


@rule("software.pins-version")
def pins_version(context: Context) -> Iterator[Finding]:
    """A lock that was looked up for another minor version pins add-ons that do not fit."""
    locked, written = context.pins.kubernetes_version, context.environment.kubernetes.version
    if locked is not None and locked != written:
        yield fault(
            "kubernetes.version",
            written,
            f"differs from the version that the lock file was written for ({locked})",
            "Run `moerl lock ENV`.",
        )


@rule("software.image-archs")
def image_archs(context: Context) -> Iterator[Finding]:
    """A kernel that is missing for an architecture is found at the first call, after start-up was paid for."""
    written, stack = context.environment.images.cuda_archs, context.stack
    for name, pool, types in context.gpu_pools():
        for arch in sorted({instance.cuda_arch for instance in types if instance.cuda_arch}):
            if written is not None and arch not in written:
                yield fault(
                    "images.cuda_archs",
                    written,
                    f"lacks {arch}, which pool {name} ({', '.join(pool.instance_types)}) needs",
                    f'Add "{arch}", or leave the key out.',
                )
            if arch not in stack.cuda_archs:
                yield fault(
                    f"pools.{name}.instance_types",
                    pool.instance_types,
                    f"has CUDA architecture {arch}, and the image of software {stack.name} is built for"
                    f" {', '.join(stack.cuda_archs)}",
                    "Choose another stack or type.",
                )
            elif stack.deepep is not None and arch not in stack.deepep.archs_fixed:
                fits = [
                    other.name
                    for other in context.catalog.software.values()
                    if other.deepep and arch in other.deepep.archs_fixed
                ]
                yield fault(
                    f"pools.{name}.instance_types",
                    pool.instance_types,
                    f"DeepEP {stack.deepep.version} as software {stack.name} pins it has no known run on architecture {arch}"
                    f" under CUDA {stack.cuda}, and a kernel that does not compile shows at the first dispatch",
                    f"Write `software: {fits[0]}`." if fits else "Choose another type.",
                )
