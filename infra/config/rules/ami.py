"""Machine images, node releases and user data."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_string

from infra.catalog.ami import (
    FAST_PULL_ON_LOCAL_DISKS_SINCE,
    FAST_PULL_PROBLEMS,
    FAST_PULL_SINCE,
    release_date,
)
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


@rule("ami.fast-image-pull")
def fast_image_pull(context: Context) -> Iterator[Finding]:
    """An image puller that the node does not know, or that does not work there, costs the node and not just the time."""
    for name, pool in context.pools():
        gpu = any(instance.gpus for instance in context.instances(pool))
        release = context.release(pool)
        if release is None or not (gpu if pool.fast_image_pull is None else pool.fast_image_pull):
            continue
        day, key = release_date(release), f"pools.{name}.fast_image_pull"
        off = "Pin another release, or write `fast_image_pull: false`."
        if day in FAST_PULL_PROBLEMS:
            yield fault(
                key, True, f"keeps every node of AMI release {release} from starting: {FAST_PULL_PROBLEMS[day]}", off
            )
        elif day < FAST_PULL_SINCE:
            yield fault(
                key,
                True,
                f"is unknown to AMI release {release}, whose nodeadm then refuses the whole NodeConfig and never joins",
                off,
            )
        elif day < FAST_PULL_ON_LOCAL_DISKS_SINCE and any(instance.nvme_gib for instance in context.instances(pool)):
            yield warning(
                key,
                True,
                f"unpacks images onto the root volume with AMI release {release}; later ones use the local disks",
                f"Pin a release of {FAST_PULL_ON_LOCAL_DISKS_SINCE} or later.",
            )


@rule("ami.baked-alone")
def baked_alone(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if pool.ami.baked and pool.ami.id is None:
            yield fault(
                f"pools.{name}.ami.baked",
                True,
                "says what is in an image that the file does not name",
                "Bake one (`images.bake_ami: true`), and write the id of what came out as ami.id.",
            )
        declared = [key for key in ("efa_driver", "gdrdrv") if getattr(pool.ami, key)]
        if pool.ami.baked and declared:
            yield fault(
                f"pools.{name}.ami.{declared[0]}",
                getattr(pool.ami, declared[0]),
                "is known of a baked image, and two sources of one fact can differ",
                f"Remove {' and '.join(declared)}, or baked.",
            )


@rule("ami.bake-egress")
def bake_egress(context: Context) -> Iterator[Finding]:
    environment = context.environment
    if environment.images.bake_ami and environment.network.egress == "none":
        yield fault(
            "images.bake_ami",
            True,
            "needs a way out: the EFA installer and gdrcopy come from the internet, and network.egress is none",
            "Bake in an environment with `egress: nat`, and write the id that comes out as ami.id here.",
        )


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
