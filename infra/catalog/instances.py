"""EC2 instance types that pools may use. A type that is missing here is refused, never guessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Literal

from infra.catalog.facts import Source

Transport = Literal["gda", "proxy", "none"]
"""How expert-parallel traffic crosses nodes: issued by the GPU, by a CPU proxy thread, or not at all over EFA."""

EfaLayout = Literal["efa-only", "classic"]

Family = Literal["gpu", "general", "memory", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """Capacity, network and quota facts of one type.

    `memory_gib` is nominal; see `allocatable` for what pods can have. `gpu_memory_gib` is per GPU, rounded down.
    `interfaces_per_card` is that of card 0. `efa_devices` is how many EFA interfaces a node is given: all that a GPU
    type supports, none on CPU types (m7i.48xlarge could carry one, but no CPU pool here talks over EFA).
    `efa_gbps` is per EFA device; `network_gbps` is what the type sustains, rounded down, bursts left out.
    `efa_transports` lists what the hardware can do, best first, empty when expert parallelism over EFA is not possible.
    `nvme_gib` is the total of `nvme_disks` equal local disks, converted from the decimal size AWS states.
    `max_pods` is the safe value to hand to the kubelet under either EFA layout.
    """

    name: str
    vcpus: int
    memory_gib: int
    gpus: int
    gpu_model: str | None
    gpu_memory_gib: int
    cuda_arch: str | None
    network_cards: int
    interfaces_per_card: int
    ipv4_per_interface: int
    efa_devices: int
    card0_efa: bool
    efa_gbps: int
    network_gbps: int
    efa_transports: tuple[Transport, ...]
    nvme_gib: int
    nvme_disks: int
    family: Family
    arch: Literal["x86_64"]
    max_pods: int
    quota_on_demand: str
    quota_spot: str
    source: Source


def safe_max_pods(*, vcpus: int, card0_interfaces: int, ipv4_per_interface: int, efa_only_on_card0: bool) -> int:
    """Pods a node can address from card 0, capped as managed node groups cap it (110, or 250 above 30 vCPUs).

    The CNI takes addresses from card 0 alone, one address of each interface is its own, and two host-network pods come
    on top. An EFA-only interface on card 0 takes the place of one that would carry addresses.
    Source: nodeadm's eni_max_pods.go; Karpenter's designs/efa-for-static-capacity.md; EKS user guide, "Choose an
    optimal Amazon EC2 node instance type".
    """
    addressable = card0_interfaces - 1 if efa_only_on_card0 else card0_interfaces
    return min(addressable * (ipv4_per_interface - 1) + 2, 250 if vcpus > 30 else 110)


# Service Quotas codes, all in vCPUs of running or requested instances. Quotas do not name P6: on demand it is a P
# instance; for Spot it is put under P5 here, which preflight has to confirm in the account.
QUOTA_SOURCE = Source(
    title="Amazon EC2 instance type quotas",
    url="https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html",
    as_of=date(2025, 11, 1),
)
_P_ON_DEMAND = "L-417A185B"
_P4_SPOT = "L-7212CCBC"
_P5_SPOT = "L-C4BD4855"
_STANDARD_ON_DEMAND = "L-1216C47A"
_STANDARD_SPOT = "L-34B43A08"

_EC2_GPU = Source(
    title="Karpenter AWS provider, generated instance tables (DescribeInstanceTypes), commit 1d927085; EC2 EFA page",
    url="https://github.com/aws/karpenter-provider-aws/blob/1d927085dd81a9df9301e613f371dac5b4d16bfe/website/content/en/docs/reference/instance-types.md",
    as_of=date(2026, 8, 21),
)
_EC2_CPU = Source(
    title="Karpenter AWS provider, generated instance tables (DescribeInstanceTypes), commit 1d927085",
    url="https://github.com/aws/karpenter-provider-aws/blob/1d927085dd81a9df9301e613f371dac5b4d16bfe/website/content/en/docs/reference/instance-types.md",
    as_of=date(2026, 8, 21),
)


def _gpu_type(
    name: str,
    *,
    vcpus: int = 192,
    memory_gib: int = 2048,
    gpu_model: str,
    gpu_memory_gib: int,
    cuda_arch: str,
    network_cards: int,
    interfaces_per_card: int,
    efa_devices: int,
    card0_efa: bool = True,
    efa_gbps: int,
    efa_transports: tuple[Transport, ...],
    nvme_disk_gb: int = 3800,
    quota_spot: str,
) -> InstanceType:
    return InstanceType(
        name=name,
        vcpus=vcpus,
        memory_gib=memory_gib,
        gpus=8,
        gpu_model=gpu_model,
        gpu_memory_gib=gpu_memory_gib,
        cuda_arch=cuda_arch,
        network_cards=network_cards,
        interfaces_per_card=interfaces_per_card,
        ipv4_per_interface=50,
        efa_devices=efa_devices,
        card0_efa=card0_efa,
        efa_gbps=efa_gbps,
        network_gbps=efa_devices * efa_gbps,
        efa_transports=efa_transports,
        nvme_gib=8 * nvme_disk_gb * 10**9 // 2**30,
        nvme_disks=8,
        family="gpu",
        arch="x86_64",
        max_pods=safe_max_pods(
            vcpus=vcpus,
            card0_interfaces=interfaces_per_card,
            ipv4_per_interface=50,
            efa_only_on_card0=card0_efa,
        ),
        quota_on_demand=_P_ON_DEMAND,
        quota_spot=quota_spot,
        source=_EC2_GPU,
    )


def _cpu_type(
    name: str,
    *,
    vcpus: int,
    gib_per_vcpu: int,
    interfaces: int,
    ipv4_per_interface: int,
    network_gbps: int,
    family: Family,
) -> InstanceType:
    return InstanceType(
        name=name,
        vcpus=vcpus,
        memory_gib=vcpus * gib_per_vcpu,
        gpus=0,
        gpu_model=None,
        gpu_memory_gib=0,
        cuda_arch=None,
        network_cards=1,
        interfaces_per_card=interfaces,
        ipv4_per_interface=ipv4_per_interface,
        efa_devices=0,
        card0_efa=False,
        efa_gbps=0,
        network_gbps=network_gbps,
        efa_transports=(),
        nvme_gib=0,
        nvme_disks=0,
        family=family,
        arch="x86_64",
        max_pods=safe_max_pods(
            vcpus=vcpus,
            card0_interfaces=interfaces,
            ipv4_per_interface=ipv4_per_interface,
            efa_only_on_card0=False,
        ),
        quota_on_demand=_STANDARD_ON_DEMAND,
        quota_spot=_STANDARD_SPOT,
        source=_EC2_CPU,
    )


_GPU_TYPES = (
    # A100: no expert parallelism over EFA. DeepEP v2 kernels need SM90, and GIN refuses the SENDRECV protocol that the
    # OFI plugin uses by default before P5.
    _gpu_type(
        "p4d.24xlarge",
        vcpus=96,
        memory_gib=1152,
        gpu_model="A100",
        gpu_memory_gib=40,
        cuda_arch="8.0",
        network_cards=4,
        interfaces_per_card=15,
        efa_devices=4,
        efa_gbps=100,
        efa_transports=(),
        nvme_disk_gb=1000,
        quota_spot=_P4_SPOT,
    ),
    _gpu_type(
        "p4de.24xlarge",
        vcpus=96,
        memory_gib=1152,
        gpu_model="A100",
        gpu_memory_gib=80,
        cuda_arch="8.0",
        network_cards=4,
        interfaces_per_card=15,
        efa_devices=4,
        efa_gbps=100,
        efa_transports=(),
        nvme_disk_gb=1000,
        quota_spot=_P4_SPOT,
    ),
    # P5 and P5e: their EFA generation has no hardware completion counters, so GPU-direct is refused by the OFI plugin.
    _gpu_type(
        "p5.48xlarge",
        gpu_model="H100",
        gpu_memory_gib=80,
        cuda_arch="9.0",
        network_cards=32,
        interfaces_per_card=2,
        efa_devices=32,
        efa_gbps=100,
        efa_transports=("proxy",),
        quota_spot=_P5_SPOT,
    ),
    _gpu_type(
        "p5e.48xlarge",
        gpu_model="H200",
        gpu_memory_gib=141,
        cuda_arch="9.0",
        network_cards=32,
        interfaces_per_card=2,
        efa_devices=32,
        efa_gbps=100,
        efa_transports=("proxy",),
        quota_spot=_P5_SPOT,
    ),
    _gpu_type(
        "p5en.48xlarge",
        gpu_model="H200",
        gpu_memory_gib=141,
        cuda_arch="9.0",
        network_cards=16,
        interfaces_per_card=4,
        efa_devices=16,
        efa_gbps=200,
        efa_transports=("gda", "proxy"),
        quota_spot=_P5_SPOT,
    ),
    _gpu_type(
        "p6-b200.48xlarge",
        gpu_model="B200",
        gpu_memory_gib=179,
        cuda_arch="10.0",
        network_cards=8,
        interfaces_per_card=4,
        efa_devices=8,
        efa_gbps=400,
        efa_transports=("gda", "proxy"),
        quota_spot=_P5_SPOT,
    ),
    # Card 0 of this type is ENA only: 17 cards, 16 EFA devices on cards 1 to 16.
    _gpu_type(
        "p6-b300.48xlarge",
        memory_gib=4096,
        gpu_model="B300",
        gpu_memory_gib=268,
        cuda_arch="10.3",
        network_cards=17,
        interfaces_per_card=4,
        efa_devices=16,
        card0_efa=False,
        efa_gbps=400,
        efa_transports=("gda", "proxy"),
        quota_spot=_P5_SPOT,
    ),
)

# Size: vCPUs, interfaces, IPv4 addresses per interface, sustained Gbps. The 7i generation shares these over families.
_SEVENTH_GENERATION = {
    "xlarge": (4, 4, 15, 1),
    "2xlarge": (8, 4, 15, 3),
    "4xlarge": (16, 8, 30, 6),
    "8xlarge": (32, 8, 30, 12),
    "16xlarge": (64, 15, 50, 25),
    "24xlarge": (96, 15, 50, 37),
    "48xlarge": (192, 15, 50, 50),
}
_CPU_FAMILIES: tuple[tuple[str, Family, int, tuple[str, ...]], ...] = (
    ("m7i", "general", 4, ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge", "24xlarge", "48xlarge")),
    ("c7i", "compute", 2, ("4xlarge", "8xlarge", "16xlarge", "24xlarge")),
    ("r7i", "memory", 8, ("4xlarge", "8xlarge", "16xlarge", "24xlarge")),
)


def _cpu_types() -> tuple[InstanceType, ...]:
    types = []
    for prefix, family, gib_per_vcpu, sizes in _CPU_FAMILIES:
        for size in sizes:
            vcpus, interfaces, addresses, gbps = _SEVENTH_GENERATION[size]
            types.append(
                _cpu_type(
                    f"{prefix}.{size}",
                    vcpus=vcpus,
                    gib_per_vcpu=gib_per_vcpu,
                    interfaces=interfaces,
                    ipv4_per_interface=addresses,
                    network_gbps=gbps,
                    family=family,
                )
            )
    return tuple(types)


INSTANCES: Mapping[str, InstanceType] = MappingProxyType(
    {instance.name: instance for instance in (*_GPU_TYPES, *_cpu_types())}
)
