"""What a pool's nodes need besides their pods' images, and who brings it: the AMI, user data, or a DaemonSet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.catalog.ami import EFA_DRIVER_FOR_GDA, GDRDRV_FLOOR
from infra.catalog.instances import Transport
from infra.config.environment import Pool
from infra.config.transport import ami_gdrdrv

HUGE_PAGE_MIB = 2

Image = Literal["eks", "custom", "baked"]
Bringer = Literal["image", "user data", "DaemonSet", "unproven"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """One thing that a node needs. `by` is `unproven` when it must be in the image and nothing says that it is: preflight
    then reads it on every node."""

    what: str
    by: Bringer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    image: Image
    """`eks`: the stock image, and user data and DaemonSets beside it. `custom`: somebody's own. `baked`: this package's."""
    huge_pages: int
    """Pages of 2 MiB that user data reserves before the kubelet counts them."""
    fast_image_pull: bool
    lustre_client: bool
    """Whether user data installs the client that the FSx CSI driver mounts with."""
    parts: tuple[HostPart, ...]


def host_plan(
    pool: Pool,
    *,
    gpus: int,
    transport: Transport,
    efa_devices: int,
    efa_driver: str | None,
    gpu_direct_driver: bool,
    huge_pages_mib: int,
    mounts_scratch: bool,
) -> HostPlan:
    """`efa_driver` is the AMI's where it is known; `mounts_scratch` says that pods of the pool mount the FSx file system."""
    image: Image = "baked" if pool.ami.baked else "custom" if pool.ami.id else "eks"
    # By pool and image kind, never by release: a new AMI release must change no launch template.
    fast = bool(gpus) and image != "custom" if pool.fast_image_pull is None else pool.fast_image_pull
    pages = huge_pages_mib // HUGE_PAGE_MIB
    parts: list[HostPart] = []
    if efa_devices:
        floor = f" >= {EFA_DRIVER_FOR_GDA}" if transport == "gda" else ""
        parts.append(HostPart(what=f"EFA driver{floor}", by="image" if efa_driver or not floor else "unproven"))
    if transport != "none":
        parts.append(HostPart(what=f"gdrdrv >= {GDRDRV_FLOOR}", by="image" if ami_gdrdrv(pool) else "DaemonSet"))
    if gpu_direct_driver:
        parts.append(HostPart(what="PeerMappingOverride", by="user data"))
    if pages:
        parts.append(HostPart(what=f"{pages} huge pages", by="user data"))
    if mounts_scratch:
        parts.append(HostPart(what="Lustre client", by="image" if image == "baked" else "user data"))
    if fast:
        parts.append(HostPart(what="FastImagePull", by="user data"))
    return HostPlan(
        image=image,
        huge_pages=pages,
        fast_image_pull=fast,
        lustre_client=mounts_scratch and image != "baked",
        parts=tuple(parts),
    )
