"""`moerl lock`: looks up, in the account and in registries, the pins that the catalog cannot know, and writes the lock
file."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import yaml
from pydantic import ValidationError

from infra.catalog import Catalog
from infra.catalog.facts import Unresolved, UnresolvedCommit, UnresolvedMerge
from infra.catalog.images import ContainerImage, eks_registry_account
from infra.catalog.software import SoftwareStack
from infra.config.image_arguments import unresolved_arguments
from infra.config.pins import Kubectl, Pins
from infra.config.plan import Plan
from infra.operations.registry import MANIFEST_TYPES, Fetch, RegistryError, chart_sha256, image_digest
from infra.operations.revisions import commit_of_ref, merge_commit

KUBECTL_BUCKET = "amazon-eks"
"""Public bucket in which EKS publishes kubectl builds with their digests."""
KUBECTL_BUCKET_REGION = "us-west-2"
AMI_VARIANTS = ("nvidia", "standard")


class LockError(Exception):
    """A pin that could not be looked up, or two that contradict each other; nothing was written."""


def resolve(
    plan: Plan,
    catalog: Catalog,
    *,
    eks: Any,
    ssm: Any,
    s3: Any,
    ecr: Any,
    fetch: Fetch,
    now: datetime,
    embedded: bool,
    report: Callable[[str], None],
) -> Pins:
    """Pins of the plan's Kubernetes version. `embedded` marks them as made up, as an emulator's answers are.

    Raises LockError when the account or a registry offers no such version or answers in an unknown form, or when the
    NVIDIA and the standard AMI differ in release.
    """
    version = plan.kubernetes.version
    addons = {}
    for addon in plan.addons:
        addons[addon.name] = default_addon_version(eks, addon.name, version)
        report(f"add-on {addon.name}: {addons[addon.name]}")
    release = ami_release(ssm, version)
    report(f"AMI release: {release}")
    known = catalog.ami_releases.get(release.rpartition("-")[2])
    if known is not None and known.problem:
        report(f"warning: {known.problem}; edit node_release to hold another one")
    kubectl = newest_kubectl(s3, version)
    report(f"kubectl: {kubectl.key}")
    images, charts = {}, {}
    try:
        for name, image in catalog.images.items():
            images[name] = _image(plan, image, ecr=ecr, fetch=fetch)
            report(f"image {name}: {image.tag_for(version)} is {images[name]}")
        for name in plan.charts:
            chart = catalog.controllers[name]
            charts[name] = chart_sha256(chart.repository, chart.chart, str(chart.version), fetch)
            report(f"chart {name}: {chart.version} is {charts[name]}")
    except RegistryError as error:
        raise LockError(str(error)) from error
    build = _build_pins(plan, catalog, fetch, report)
    try:
        return Pins(
            resolved_at=now,
            fixture=embedded,
            kubernetes_version=version,
            node_release=release,
            addons=addons,
            kubectl=kubectl,
            images=images,
            charts=charts,
            build={plan.software: build},
        )
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(str(step) for step in first["loc"])
        raise LockError(f"AWS answered {first['input']!r} for {what}, which is not of the form of one") from error


def default_addon_version(eks: Any, addon: str, kubernetes_version: str) -> str:
    """The build that EKS marks as default for the version."""
    answer = eks.describe_addon_versions(addonName=addon, kubernetesVersion=kubernetes_version)
    for offered in answer["addons"]:
        for build in offered["addonVersions"]:
            if any(
                fit["clusterVersion"] == kubernetes_version and fit.get("defaultVersion")
                for fit in build["compatibilities"]
            ):
                return str(build["addonVersion"])
    raise LockError(f"EKS offers no default version of add-on {addon} for Kubernetes {kubernetes_version}")


def ami_release(ssm: Any, kubernetes_version: str) -> str:
    """The recommended AL2023 release, which must be one for GPU and CPU nodes."""
    found = {
        variant: ssm.get_parameter(
            Name=f"/aws/service/eks/optimized-ami/{kubernetes_version}/amazon-linux-2023/x86_64/{variant}"
            "/recommended/release_version"
        )["Parameter"]["Value"]
        for variant in AMI_VARIANTS
    }
    if len(set(found.values())) != 1:
        raise LockError(
            "EKS recommends different releases for GPU and CPU nodes just now "
            f"({', '.join(f'{variant} {release}' for variant, release in found.items())}); run again when both are out,"
            " or write kubernetes.node_release and the pools' ami.release by hand"
        )
    return str(found["nvidia"])


def newest_kubectl(s3: Any, kubernetes_version: str) -> Kubectl:
    """The newest kubectl build of the minor version, with the digest published beside it."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=KUBECTL_BUCKET, Prefix=f"{kubernetes_version}.")
    keys = [
        item["Key"]
        for page in pages
        for item in page.get("Contents", [])
        if item["Key"].endswith("bin/linux/amd64/kubectl")
    ]
    if not keys:
        raise LockError(f"s3://{KUBECTL_BUCKET} has no kubectl build for Kubernetes {kubernetes_version}")

    def order(key: str) -> tuple[tuple[int, ...], str]:
        patch, day = key.split("/")[:2]
        return tuple(int(part) for part in patch.split(".")), day

    newest = max(keys, key=order)
    digest = s3.get_object(Bucket=KUBECTL_BUCKET, Key=f"{newest}.sha256")["Body"].read().decode()
    try:
        return Kubectl(key=newest, sha256=digest.partition(" ")[0].strip())
    except ValidationError as error:
        raise LockError(f"s3://{KUBECTL_BUCKET}/{newest}.sha256 does not start with a SHA-256 digest") from error


def _build_pins(plan: Plan, catalog: Catalog, fetch: Fetch, report: Callable[[str], None]) -> dict[str, str]:
    """Values for the build arguments of the plan's stack. One that cannot be had is reported and stays open: it stops the
    build of an image, not a deploy."""
    stack, found = catalog.software[plan.software], {}
    for name, pin in unresolved_arguments(stack, catalog.image_sources[plan.software]).items():
        try:
            found[name] = _build_pin(pin, stack, fetch)
            report(f"build argument {name}: {pin.what} is {found[name]}")
        except RegistryError as error:
            report(f"warning: build argument {name} stays open ({error}); resolve it by: {pin.command}")
    return found


def _build_pin(pin: Unresolved, stack: SoftwareStack, fetch: Fetch) -> str:
    if isinstance(pin, UnresolvedCommit):
        return commit_of_ref(pin.repository, pin.ref, fetch)
    if isinstance(pin, UnresolvedMerge):
        return merge_commit(pin.repository, pin.number, fetch)
    if pin == stack.base_image.digest:
        return image_digest(stack.base_image.repository, stack.base_image.tag, fetch)
    raise RegistryError("no registry or repository is known that holds it")


def _image(plan: Plan, image: ContainerImage, *, ecr: Any, fetch: Fetch) -> str:
    tag = image.tag_for(plan.kubernetes.version)
    if not image.in_eks_registry:
        return image_digest(image.repository, tag, fetch)
    answer = ecr.batch_get_image(
        registryId=eks_registry_account(plan.region),
        repositoryName=image.repository,
        imageIds=[{"imageTag": tag}],
        acceptedMediaTypes=list(MANIFEST_TYPES),
    )
    found = [item["imageId"]["imageDigest"] for item in answer.get("images", [])]
    if len(found) != 1:
        why = "; ".join(failure.get("failureReason", "?") for failure in answer.get("failures", []))
        raise LockError(f"{image.repository_in(plan.region)}:{tag} is not one image: {why or f'{len(found)} found'}")
    return str(found[0])


def lock_text(environment: str, pins: Pins) -> str:
    """The lock file."""
    header = (
        f"# Written by `moerl lock {environment}`: pins looked up in the account and in registries. Commit it; run again "
        "to move them.\n"
    )
    if pins.fixture:
        header += "# FIXTURE: these values are made up. Only the embedded AWS accepts them.\n"
    return header + yaml.safe_dump(pins.model_dump(mode="json"), sort_keys=False, width=120)
