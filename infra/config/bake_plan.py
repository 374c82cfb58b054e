"""What goes into the AMI that an environment asks to have baked (`images.bake_ami`)."""

from __future__ import annotations

from dataclasses import dataclass

from infra.catalog.allocatable import EFA_HUGE_PAGES_MIB
from infra.catalog.ami import (
    BAKED_EFA_INSTALLER,
    BAKED_GDRCOPY,
    EFA_INSTALLER_DRIVERS,
    release_date,
)
from infra.catalog.image_sources import EFA_KEY_FINGERPRINT, GDRCOPY_COMMITS, GDRCOPY_REPOSITORY
from infra.config.environment import Environment
from infra.config.host_plan import HUGE_PAGE_MIB
from infra.config.pins import UNRESOLVED_TEXT, Pins


@dataclass(frozen=True, slots=True, kw_only=True)
class BakePlan:
    parent_release: str
    """Release of EKS's AL2023 NVIDIA image that is baked on, or `unresolved`."""
    parent_parameter: str
    """SSM parameter in which EKS publishes the id of that release's image; it never changes."""
    efa_installer: str
    efa_key_fingerprint: str
    efa_driver: str
    gdrcopy: str
    gdrcopy_repository: str
    gdrcopy_commit: str
    huge_pages: int
    """Of 2 MiB."""


def bake_plan(environment: Environment, pins: Pins) -> BakePlan | None:
    if not environment.images.bake_ami:
        return None
    release = environment.kubernetes.node_release or pins.node_release
    version, folder = environment.kubernetes.version, "amazon-linux-2023/x86_64/nvidia"
    image = f"amazon-eks-node-al2023-x86_64-nvidia-{version}-v{release_date(release)}" if release else UNRESOLVED_TEXT
    return BakePlan(
        parent_release=release or UNRESOLVED_TEXT,
        parent_parameter=f"/aws/service/eks/optimized-ami/{version}/{folder}/{image}/image_id",
        efa_installer=BAKED_EFA_INSTALLER,
        efa_key_fingerprint=EFA_KEY_FINGERPRINT,
        efa_driver=EFA_INSTALLER_DRIVERS[BAKED_EFA_INSTALLER],
        gdrcopy=BAKED_GDRCOPY,
        gdrcopy_repository=GDRCOPY_REPOSITORY,
        gdrcopy_commit=GDRCOPY_COMMITS[BAKED_GDRCOPY],
        huge_pages=EFA_HUGE_PAGES_MIB // HUGE_PAGE_MIB,
    )
