"""EKS-optimized AMI types and what is known of their releases."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Literal

from infra.catalog.facts import Source, Unresolved

AmiType = Literal["AL2023_x86_64_NVIDIA", "AL2023_x86_64_STANDARD", "AL2_x86_64_GPU", "AL2_x86_64", "CUSTOM"]

AL2_ENDED = date(2025, 11, 26)
"""The day EKS stopped publishing Amazon Linux 2 AMIs; a group of those types gets no new release."""

EFA_DRIVER_FOR_GDA = "3.3.0"
"""Lowest host efa.ko under which GPU-direct GIN starts. Check the loaded module, /sys/module/efa/version."""

GDRDRV_FLOOR = "2.5"
"""Lowest host gdrdrv (and container libgdrapi) for either GIN mode; the plugin takes the lower of the two."""

DRIVER_TREES_SINCE = "20260917"
"""First release that holds two NVIDIA drivers, prebuilt as trees under /opt/nvidia, of which a node's first boot chooses one.

Before it, nvidia-kmod-load.service loads the driver after network-online.target, so after cloud-init's boothooks, and
kmod-util unpacks module and sources (/usr/src) from an archive. Since it, nvidia-setup.service loads the driver with no order
to network or cloud-init, kmod-util is gone, and the sources are in a package in the tree's `.rpms` alone.
"""

GDRCOPY_IN_AMI = False
"""Whether the published NVIDIA AMI may be relied on for /dev/gdrdrv."""

GDRCOPY_REASON = (
    "the build option for the gdrcopy driver (amazon-eks-ami pull request 2736) is off in the published templates, "
    "and the EKS guide's list of contents names no version; so a node must be given gdrdrv and checked for it. With the "
    f"option on, releases since {DRIVER_TREES_SINCE} build gdrdrv for the open flavor of both drivers, load it at boot and "
    "make its device; without it, load-gdrdrv builds it from the driver's sources that user data unpacks"
)

KERNELS: Mapping[str, str] = MappingProxyType(
    {"1.31": "6.1", "1.32": "6.1", "1.33": "6.12", "1.34": "6.12", "1.35": "6.12", "1.36": "6.18"}
)
"""Kernel line of the x86 NVIDIA AMI by Kubernetes version; of 1.37 no notes could be read."""
KERNELS_SOURCE = Source(
    title="awslabs/amazon-eks-ami release notes, v20260903, source AMIs of AL2023_x86_64_NVIDIA",
    url="https://github.com/awslabs/amazon-eks-ami/releases/tag/v20260903",
    as_of=date(2026, 9, 3),
)

EFA_INSTALLER_DRIVERS: Mapping[str, str] = MappingProxyType({"1.49.0": "3.1.0", "1.50.0": "3.3.0"})
"""Host efa.ko that an EFA installer brings."""

BAKED_EFA_INSTALLER, BAKED_GDRCOPY, BAKED_GDRCOPY_KERNEL = "1.50.0", "2.5.2", "6.18"
"""What this package bakes into an AMI of its own: the first installer whose driver GPU-direct works with, and the last
release of gdrcopy, with the newest kernel that it builds against."""

FAST_PULL_SINCE, FAST_PULL_ON_LOCAL_DISKS_SINCE = "20250813", "20251217"
"""Releases whose nodeadm knows the feature gate FastImagePull (an older one refuses the whole NodeConfig), and whose RAID
of local disks takes in the snapshotter's directory (an older one unpacks onto the root volume)."""
FAST_PULL_PROBLEMS: Mapping[str, str] = MappingProxyType(
    {"20260505": "its containerd cannot start a pod on that snapshotter (amazon-eks-ami issues 2710 and 2712)"}
)
"""Releases on which no node with FastImagePull becomes ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmiRelease:
    """One dated release of the AL2023 NVIDIA x86 AMI, over all Kubernetes versions.

    `efa_driver` and `nvidia_driver` are None where no release notes with package versions could be read; a rule must
    then not assume either. Releases since DRIVER_TREES_SINCE have two NVIDIA drivers. `problem` says why the release should
    not be used, or is None.
    """

    date: str
    efa_driver: str | None
    nvidia_driver: str | None
    problem: str | None
    source: Source


_CHANGELOG = Source(
    title="awslabs/amazon-eks-ami CHANGELOG, package tables of the newest Kubernetes version",
    url="https://github.com/awslabs/amazon-eks-ami/blob/81fec2e895854f599974fe4d3d72f61c0a9aaffa/CHANGELOG.md",
    as_of=date(2026, 7, 23),
)
GDRCOPY_SOURCE = Source(
    title="awslabs/amazon-eks-ami pull request 2736, gdrcopy driver as a build option",
    url="https://github.com/awslabs/amazon-eks-ami/pull/2736",
    as_of=date(2026, 8, 31),
)
DRIVER_TREES_SOURCE = Source(
    title="awslabs/amazon-eks-ami pull requests 2783, 2784, 2792, 2819; setup-nvidia.sh, nvidia-setup.service, "
    "helpers/nvidia-kmods.sh; issue 2768 names the release",
    url="https://github.com/awslabs/amazon-eks-ami/pull/2819",
    as_of=date(2026, 9, 21),
)
GDA_FLOORS_SOURCE = Source(
    title="aws-ofi-nccl, GIN getting started (GDRCopy, libfabric); awslabs deepep-v2-benchmark README (efa.ko)",
    url="https://github.com/aws/aws-ofi-nccl/blob/2daf7d303aa139a03140aa530957d10521e4478d/doc/gin-getting-started.md",
    as_of=date(2026, 8, 21),
)

EFA_INSTALLER_SOURCE = Source(
    title="whn09/ep-benchmarks-efa, deepep-v2-efa-official: contents of EFA installers; aws-ofi-nccl v1.21.1 notes",
    url="https://github.com/whn09/ep-benchmarks-efa/blob/main/deepep-v2-efa-official/README.md",
    as_of=date(2026, 10, 9),
)
FAST_PULL_SOURCE = Source(
    title="awslabs/amazon-eks-ami CHANGELOG (pull requests 2352 and 2548); nodeadm/doc/examples.md; issue 2710",
    url="https://github.com/awslabs/amazon-eks-ami/blob/81fec2e895854f599974fe4d3d72f61c0a9aaffa/nodeadm/doc/examples.md",
    as_of=date(2026, 7, 23),
)
LUSTRE_CLIENT_SOURCE = Source(
    title="awslabs/amazon-eks-ami pull request 2696: the Lustre client stays out of the AMI, user data installs it",
    url="https://github.com/awslabs/amazon-eks-ami/pull/2696",
    as_of=date(2026, 5, 1),
)

_PANIC = (
    "kernel 6.12.110 can panic during memory reclaim on Kubernetes 1.31 to 1.35, so nodes reboot unexpectedly "
    "(amazon-eks-ami issue 2845); fixed in 20261012"
)


def _release_notes(release: str, published: date) -> Source:
    return Source(
        title=f"awslabs/amazon-eks-ami release notes, v{release}",
        url=f"https://github.com/awslabs/amazon-eks-ami/releases/tag/v{release}",
        as_of=published,
    )


def _releases() -> dict[str, AmiRelease]:
    # (date, efa, NVIDIA driver) as the package tables have them.
    from_changelog = (
        ("20250920", "2.17.2", "570.172.08"),
        ("20251016", "2.17.3", "570.195.03"),
        ("20251112", "2.17.3", "580.95.05"),
        ("20260116", "2.17.3", "580.105.08"),
        ("20260129", "2.17.3", "580.126.09"),
        ("20260224", "3.0.0", "580.126.09"),
        ("20260403", "3.0.0", "580.126.09"),
        ("20260505", "3.0.0", "580.126.09"),
        ("20260610", "3.0.0", "580.159.03"),
        ("20260625", "3.0.0", "580.159.03"),
        ("20260714", "3.1.0", "580.159.03"),
    )
    known = [
        AmiRelease(date=day, efa_driver=efa, nvidia_driver=nvidia, problem=None, source=_CHANGELOG)
        for day, efa, nvidia in from_changelog
    ]
    known += [
        AmiRelease(
            date="20260728",
            efa_driver="3.1.0",
            nvidia_driver="580.159.03",
            problem=None,
            source=_release_notes("20260728", date(2026, 7, 28)),
        ),
        AmiRelease(
            date="20260818",
            efa_driver=None,
            nvidia_driver=None,
            problem=None,
            source=_release_notes("20260818", date(2026, 8, 18)),
        ),
        AmiRelease(
            date=DRIVER_TREES_SINCE,
            efa_driver=None,
            nvidia_driver=None,
            problem=None,
            source=DRIVER_TREES_SOURCE,
        ),
        AmiRelease(
            date="20260930",
            efa_driver=None,
            nvidia_driver=None,
            problem=_PANIC,
            source=_release_notes("20261012", date(2026, 10, 14)),
        ),
        AmiRelease(
            date="20261003",
            efa_driver=None,
            nvidia_driver=None,
            problem=_PANIC,
            source=_release_notes("20261003", date(2026, 10, 8)),
        ),
        AmiRelease(
            date="20261012",
            efa_driver=None,
            nvidia_driver=None,
            problem=None,
            source=_release_notes("20261012", date(2026, 10, 14)),
        ),
    ]
    return {release.date: release for release in known}


AMI_RELEASES: Mapping[str, AmiRelease] = MappingProxyType(_releases())
"""By date, oldest first. Not every release: those that changed a driver, and those that a rule has to know."""

_RELEASE_VERSION = re.compile(r"1\.\d{2}\.\d{1,2}-(20\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))")


def release_date(release: str) -> str:
    """The date of a node group release version: "1.35.2-20261003" gives "20261003". ValueError on any other form."""
    match = _RELEASE_VERSION.fullmatch(release)
    if match is None:
        raise ValueError(f"AMI release {release!r} is not of the form 1.35.2-20261003")
    return match.group(1)


def newest_release(kubernetes_version: str, ami_type: AmiType = "AL2023_x86_64_NVIDIA") -> Unresolved:
    """The release version EKS recommends today for a Kubernetes version, as a pin to resolve.

    Raises ValueError for types that get no new release (AL2) or have none (CUSTOM).
    """
    variants = {"AL2023_x86_64_NVIDIA": "nvidia", "AL2023_x86_64_STANDARD": "standard"}
    if ami_type not in variants:
        raise ValueError(f"AMI type {ami_type} has no recommended release")
    parameter = (
        f"/aws/service/eks/optimized-ami/{kubernetes_version}/amazon-linux-2023/x86_64/{variants[ami_type]}"
        "/recommended/release_version"
    )
    return Unresolved(
        what=f"AMI release of {ami_type} for Kubernetes {kubernetes_version}",
        command=f"aws ssm get-parameter --region <region> --name {parameter} --query Parameter.Value --output text",
    )
