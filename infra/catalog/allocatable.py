"""What pods can have of a node, computed with nodeadm's own formulas, on the low side where a fact is not published."""

from dataclasses import dataclass

from infra.catalog.facts import AS_OF, Source
from infra.catalog.instances import InstanceType

EFA_HUGE_PAGES_MIB = 5128 * 2
"""Huge pages that the EFA driver pre-allocates on a node (5128 of 2 MiB; EKS guide, node-efa). Older AMIs took more."""

VISIBLE_MEMORY_PER_MILLE = 950
"""Share of nominal memory that the kernel reports as MemTotal, in thousandths.

Measured by Karpenter (generated memory overhead table, 2023-09-03): missing are 2.3 % on p5.48xlarge and 3.1 % to 4.2 %
on m7i. The p6 and p5en types are not in that table, so all are taken at 5 % missing. A request that is a little small
starts; one that is a little large is pending for ever.
"""

_KUBE_RESERVED_STORAGE_GIB = 1
_HARD_EVICTION_MEMORY_MIB = 100
_HARD_EVICTION_STORAGE_PER_MILLE = 100
_FILESYSTEM_PER_MILLE = 10

# Upper end of each range in millicores, and the hundredths of a percent that kube-reserved takes of it.
_CPU_TIERS = ((1_000, 600), (2_000, 100), (4_000, 50), (None, 25))

_SOURCE = Source(
    title="computed from nodeadm (awslabs/amazon-eks-ami 81fec2e8: kubelet/config.go, eni_max_pods.go, "
    "setup-local-disks) and the memory share documented beside it",
    url="https://github.com/awslabs/amazon-eks-ami/blob/81fec2e895854f599974fe4d3d72f61c0a9aaffa/nodeadm/internal/kubelet/config.go",
    as_of=AS_OF,
    computed=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocatable:
    """A node's allocatable CPU, memory and ephemeral storage, before DaemonSets. A live node may show slightly more."""

    cpu_millis: int
    memory_mib: int
    ephemeral_gib: int
    source: Source


def allocatable(instance: InstanceType, *, max_pods: int, root_volume_gib: int, huge_pages_mib: int = 0) -> Allocatable:
    """Allocatable resources of a node of this type under the AL2023 AMI's defaults.

    Ephemeral storage is the RAID0 of the local disks where the type has any, else the root volume. `huge_pages_mib` is
    what is set aside as huge pages, which leaves ordinary memory (`EFA_HUGE_PAGES_MIB` on nodes with the EFA driver).
    Raises ValueError when a size is not positive or nothing would be left.
    """
    if max_pods < 1 or root_volume_gib < 1 or huge_pages_mib < 0:
        raise ValueError(
            f"{instance.name}: max_pods {max_pods} and root_volume_gib {root_volume_gib} must be positive, "
            f"huge_pages_mib {huge_pages_mib} not negative"
        )
    memory_mib = (
        instance.memory_gib * 1024 * VISIBLE_MEMORY_PER_MILLE // 1000
        - huge_pages_mib
        - kube_reserved_memory_mib(max_pods)
        - _HARD_EVICTION_MEMORY_MIB
    )
    disk_gib = instance.nvme_gib or root_volume_gib
    ephemeral_gib = (
        disk_gib * (1000 - _FILESYSTEM_PER_MILLE) * (1000 - _HARD_EVICTION_STORAGE_PER_MILLE) // 1_000_000
        - _KUBE_RESERVED_STORAGE_GIB
    )
    if memory_mib < 1 or ephemeral_gib < 1:
        raise ValueError(
            f"{instance.name}: nothing is left for pods ({memory_mib} MiB memory, {ephemeral_gib} GiB disk)"
        )
    return Allocatable(
        cpu_millis=instance.vcpus * 1000 - kube_reserved_cpu_millis(instance.vcpus),
        memory_mib=memory_mib,
        ephemeral_gib=ephemeral_gib,
        source=_SOURCE,
    )


def kube_reserved_memory_mib(max_pods: int) -> int:
    """Memory that nodeadm reserves for the kubelet and the container runtime, in MiB."""
    return 255 + 11 * max_pods


def kube_reserved_cpu_millis(vcpus: int) -> int:
    """CPU that nodeadm reserves, in millicores: 6 % of core one, 1 % of two, 0.5 % of three and four, 0.25 % after."""
    reserved, start, total = 0, 0, vcpus * 1000
    for end, hundredths_of_percent in _CPU_TIERS:
        reserved += max(0, min(total, end or total) - start) * hundredths_of_percent // 10_000
        start = end or total
    return reserved
