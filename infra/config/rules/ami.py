"""Machine images, node releases and user data."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_string

from infra.catalog.ami import release_date
from infra.config.faults import Finding
from infra.config.rules.registry import Context, fault, rule, warning

GPU_ROOT_FLOOR_GIB = 150
"""An 18 GB image unpacked beside another one evicts pods from a smaller root volume."""


@rule("ami.type")
def ami_type(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        written = pool.ami.type
        if written is None:
            continue
        key, gpu = f"pools.{name}.ami.type", any(instance.gpus for instance in context.instances(pool))
        needed = "AL2023_x86_64_NVIDIA" if gpu else "AL2023_x86_64_STANDARD"
        if written.startswith("AL2_"):
            yield fault(
                key,
                written,
                "EKS publishes no AL2 image for 1.33 and later, and none anywhere since 2025-11-26",
                f"Write {needed}.",
            )
        elif gpu and written == "AL2023_x86_64_STANDARD":
            yield fault(
                key,
                written,
                "has no NVIDIA driver: nodes join, and show no GPU",
                f"Write {needed}, or leave the key out.",
            )
        elif not gpu and written == "AL2023_x86_64_NVIDIA":
            yield fault(
                key, written, "carries GPU drivers that a CPU node cannot load", f"Write {needed}, or leave it out."
            )
        elif written == "CUSTOM" and pool.ami.id is None:
            yield fault(key, written, "a custom image needs its id", "Write `ami: {id: ami-…}` instead.")


@rule("ami.custom-alone")
def custom_alone(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        clash = pool.ami.release or (pool.ami.type if pool.ami.type not in (None, "CUSTOM") else None)
        if pool.ami.id and clash:
            yield fault(
                f"pools.{name}.ami",
                f"{pool.ami.id} and {clash}",
                "a custom AMI is its own release; EKS refuses a node group with both",
                "Keep id, or remove it and keep the other.",
            )


@rule("ami.release-version")
def release_version(context: Context) -> Iterator[Finding]:
    kubernetes = context.environment.kubernetes
    written = [("kubernetes.node_release", kubernetes.node_release)]
    written += [(f"pools.{name}.ami.release", pool.ami.release) for name, pool in context.pools()]
    for key, release in written:
        if release and not release.startswith(kubernetes.version + "."):
            yield fault(
                key,
                release,
                f"belongs to another minor version than kubernetes.version ({kubernetes.version})",
                f"Write a release of {kubernetes.version}, or run `moerl lock ENV`.",
            )


@rule("ami.known-problem")
def known_problem(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        release = context.release(pool)
        known = context.catalog.ami_releases.get(release_date(release)) if release else None
        if known and known.problem:
            yield warning(f"pools.{name}.ami.release", release, known.problem, "Pin another release.")


@rule("ami.user-data")
def user_data(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        written = pool.user_data
        if written is None or written.startswith("#!"):
            continue
        if not message_from_string(written).is_multipart():
            yield fault(
                f"pools.{name}.user_data",
                written.splitlines()[0] if written.strip() else "empty",
                "is neither a shell script (first line #!) nor a MIME multipart document, and cloud-init would skip it"
                " in silence",
                "Start it with #!/bin/bash, or write a MIME multipart document.",
            )


@rule("ami.node-config-once")
def node_config_once(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if pool.user_data and "node.eks.aws" in pool.user_data:
            yield fault(
                f"pools.{name}.user_data",
                "a NodeConfig",
                "the pool's NodeConfig is rendered by this package, and two of them merge field by field in an order"
                " that nobody sees",
                "Keep only what is not NodeConfig.",
            )


@rule("ami.root-volume")
def root_volume(context: Context) -> Iterator[Finding]:
    for name, pool, _ in context.gpu_pools():
        if pool.root_volume_gib is not None and pool.root_volume_gib < GPU_ROOT_FLOOR_GIB:
            yield warning(
                f"pools.{name}.root_volume_gib",
                pool.root_volume_gib,
                "a GPU image takes tens of GiB unpacked, and a full root volume evicts pods",
                f"Write {GPU_ROOT_FLOOR_GIB} or more.",
            )
