"""Derived numbers of one node pool: interfaces, sizes, image, transport, labels and taints, variables, user data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from infra.catalog import Catalog
from infra.catalog.allocatable import EFA_HUGE_PAGES_MIB, Allocatable, allocatable
from infra.catalog.ami import AmiType
from infra.catalog.efa import Interface, interfaces
from infra.catalog.instances import EfaLayout, InstanceType, Transport
from infra.config.environment import (
    CapacityBlock,
    CapacityType,
    Effect,
    Environment,
    NodeRange,
    OnDemand,
    Pool,
    PoolRole,
    Reservation,
)
from infra.config.host_plan import HostPlan, host_plan
from infra.config.names import schedule_group
from infra.config.needs_plan import NodeNeeds, node_needs
from infra.config.pins import Pins
from infra.config.transport import ami_driver, ami_gdrdrv, derive_transport, gpu_direct_possible, node_release

LABEL_DOMAIN = "moerl.io"
EFA_RESOURCE, GPU_RESOURCE = "vpc.amazonaws.com/efa", "nvidia.com/gpu"
HUGE_PAGES_RESOURCE = "hugepages-2Mi"
ACCELERATOR_LABEL = "k8s.amazonaws.com/accelerator"
"""By this label the cluster autoscaler knows a GPU node before its device plugin is up, and does not add another for the
same pods (AWS provider, GPULabel). It is on the pools that the autoscaler scales and no others: a labelled node without
GPUs outside of them stops its GPU scaling."""
AUTOSCALER_TAG = f"{LABEL_DOMAIN}/scaled-by"
"""Tag of the Auto Scaling groups that the autoscaler may touch. EKS tags every managed group for discovery, fixed pools
and capacity blocks too, so that tag alone would let it empty a block."""
GPU_ROOT_VOLUME_GIB, CPU_ROOT_VOLUME_GIB = 300, 100
BLOCK_SAVE_LEAD = timedelta(minutes=90)
BLOCK_DRAIN_LEAD = timedelta(minutes=60)
"""EKS scales in by itself 40 minutes before a block ends and EC2 kills at 30: be done before either."""
BLOCK_START_DELAY = timedelta(minutes=1)
SYSTEM_POOL = Pool(role="system", instance_types=("m7i.2xlarge",), nodes=3, capacity=OnDemand(type="on_demand"))
"""The system pool of an environment that declares none."""
SYSTEM_NAME = "system"

TAINT_EFFECTS: dict[Effect, str] = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePlan:
    min: int
    max: int
    desired: int | None
    """Set on fixed pools alone; elsewhere a scaler outside CloudFormation owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """Times of a capacity block and of the schedule around it (UTC)."""

    starts: datetime
    ends: datetime
    scale_up_at: datetime
    save_signal_at: datetime
    scale_down_at: datetime
    schedule_group: str
    """Name of the EventBridge Scheduler group that holds the three entries."""
    save_signal_parameter: str
    """SSM parameter that the schedule writes at `save_signal_at`; the trainer polls it, so a restarted one sees it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    type: CapacityType
    reservation_id: str | None
    block: BlockPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmiPlan:
    id: str | None
    """A custom image; then `type` and `release` are None."""
    type: AmiType | None
    release: str | None
    """None with an EKS image means unresolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintPlan:
    key: str
    value: str
    effect: Effect

    def text(self) -> str:
        """As kubelet and the cluster autoscaler write it, without the key: `value:NoSchedule`."""
        return f"{self.value}:{TAINT_EFFECTS[self.effect]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    create: bool
    """True: this package creates a cluster placement group for the pool. False: the group of `name` exists."""
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    name: str
    role: PoolRole
    instance_types: tuple[str, ...]
    zones: tuple[str, ...]
    """One zone; the system pool has them all."""
    capacity: CapacityPlan
    size: SizePlan
    ami: AmiPlan
    efa_layout: EfaLayout
    interfaces: tuple[Interface, ...]
    """Empty for pools without EFA: the node group's single default interface is right there."""
    efa_per_node: int
    transport: Transport
    gpu_direct_driver: bool
    """Whether the NVIDIA driver is loaded with the option that GPU-direct EFA needs: by type and stack, not by AMI, so
    that a new AMI release changes no launch template."""
    transport_reason: str | None
    """Why the transport is not gda, or what a live node must still prove."""
    load_gdrdrv: bool
    """Whether a DaemonSet has to load gdrdrv: the transport goes through it, and the file does not say that the AMI has
    it."""
    host: HostPlan
    needs: NodeNeeds
    gpus_per_node: int
    gpu_model: str | None
    gpu_memory_gib: int
    cuda_arch: str | None
    vcpus_per_node: int
    """The least of any type, as every per-node number of a mixed pool is."""
    nvme_gib: int
    max_pods: int
    huge_pages_mib: int
    allocatable: Allocatable
    root_volume_gib: int
    placement: PlacementPlan | None
    labels: Mapping[str, str]
    taints: tuple[TaintPlan, ...]
    extra_user_data: str | None
    scaler_tags: Mapping[str, str]
    """Tags that the cluster autoscaler needs on the group to find it and to scale it from zero; `moerl pool tag` writes
    them, since managed node groups do not pass theirs on."""

    @property
    def raid0(self) -> bool:
        return self.nvme_gib > 0

    @property
    def is_gpu(self) -> bool:
        return self.gpus_per_node > 0


def pool_plans(environment: Environment, pins: Pins, catalog: Catalog) -> tuple[PoolPlan, ...]:
    """All pools, the system pool first, implied or as the file has it."""
    declared = dict(environment.pools)
    system = {name: pool for name, pool in declared.items() if pool.role == "system"} or {SYSTEM_NAME: SYSTEM_POOL}
    ordered = {**system, **{name: pool for name, pool in declared.items() if name not in system}}
    return tuple(_pool_plan(name, pool, environment, pins, catalog) for name, pool in ordered.items())


def _pool_plan(name: str, pool: Pool, environment: Environment, pins: Pins, catalog: Catalog) -> PoolPlan:
    types = [catalog.instances[written] for written in pool.instance_types]
    smallest = min(types, key=lambda instance: (instance.memory_gib, instance.vcpus, instance.gpu_memory_gib))
    release = node_release(pool, environment.kubernetes, pins)
    stack = catalog.software[environment.software]
    derived = derive_transport(pool, types, stack, release, catalog)
    transport = pool.transport or derived.transport
    layout = interfaces(smallest, pool.efa_layout) if pool.efa and smallest.efa_devices else ()
    efa = sum(1 for interface in layout if interface.is_efa)
    huge_pages = EFA_HUGE_PAGES_MIB if efa else 0
    gpu_direct_driver = bool(efa) and pool.transport in (None, "gda") and gpu_direct_possible(types, stack)
    root_volume = pool.root_volume_gib or (GPU_ROOT_VOLUME_GIB if smallest.gpus else CPU_ROOT_VOLUME_GIB)
    autoscaled = isinstance(pool.nodes, NodeRange) and not isinstance(pool.capacity, CapacityBlock)
    labels = _labels(name, pool, smallest.gpu_model if autoscaled else None)
    taints = _taints(pool, smallest)
    max_pods = min(instance.max_pods for instance in types)
    of_types = [
        allocatable(instance, max_pods=max_pods, root_volume_gib=root_volume, huge_pages_mib=huge_pages)
        for instance in types
    ]
    network = environment.network
    return PoolPlan(
        name=name,
        role=pool.role,
        instance_types=pool.instance_types,
        zones=network.zones if pool.role == "system" else (pool.zone or network.accelerator_zone,),
        capacity=_capacity(environment.name, name, pool),
        size=_size(pool),
        ami=_ami(pool, smallest, release),
        efa_layout=pool.efa_layout,
        interfaces=layout,
        efa_per_node=efa,
        transport=transport,
        gpu_direct_driver=gpu_direct_driver,
        transport_reason=derived.limited_by or derived.to_prove if smallest.gpus else None,
        load_gdrdrv=transport != "none" and ami_gdrdrv(pool) is None,
        host=host_plan(
            pool,
            gpus=smallest.gpus,
            transport=transport,
            efa_devices=efa,
            efa_driver=ami_driver(pool, release, catalog),
            gpu_direct_driver=gpu_direct_driver,
            huge_pages_mib=huge_pages,
            # Scratch is the trainer's alone; engines read published weights from S3.
            mounts_scratch=environment.checkpoints.scratch == "fsx" and pool.role == "trainer",
        ),
        needs=node_needs(smallest, stack, transport),
        gpus_per_node=smallest.gpus,
        gpu_model=smallest.gpu_model,
        gpu_memory_gib=smallest.gpu_memory_gib,
        cuda_arch=smallest.cuda_arch,
        vcpus_per_node=min(instance.vcpus for instance in types),
        nvme_gib=smallest.nvme_gib,
        max_pods=max_pods,
        huge_pages_mib=huge_pages,
        # No type is the smallest in everything (r7i has fewer cores, c7i less memory), and a pod must fit each.
        allocatable=replace(
            of_types[0],
            cpu_millis=min(item.cpu_millis for item in of_types),
            memory_mib=min(item.memory_mib for item in of_types),
            ephemeral_gib=min(item.ephemeral_gib for item in of_types),
        ),
        root_volume_gib=root_volume,
        placement=_placement(pool),
        labels=labels,
        taints=taints,
        extra_user_data=pool.user_data,
        scaler_tags=_scaler_tags(labels, taints, smallest.gpus, efa, huge_pages, autoscaled=autoscaled),
    )


def _capacity(environment: str, name: str, pool: Pool) -> CapacityPlan:
    written = pool.capacity
    block = None
    if isinstance(written, CapacityBlock):
        starts, ends = written.starts.astimezone(UTC), written.ends.astimezone(UTC)
        block = BlockPlan(
            starts=starts,
            ends=ends,
            scale_up_at=starts + BLOCK_START_DELAY,
            save_signal_at=ends - BLOCK_SAVE_LEAD,
            scale_down_at=ends - BLOCK_DRAIN_LEAD,
            schedule_group=schedule_group(environment, name),
            save_signal_parameter=f"/moerl/{environment}/{name}/save-signal",
        )
    reservation = written.id if isinstance(written, Reservation | CapacityBlock) else None
    return CapacityPlan(type=written.type, reservation_id=reservation, block=block)


def _size(pool: Pool) -> SizePlan:
    if isinstance(pool.nodes, int):
        return SizePlan(min=pool.nodes, max=pool.nodes, desired=pool.nodes)
    return SizePlan(min=pool.nodes.min, max=pool.nodes.max, desired=None)


def _ami(pool: Pool, instance: InstanceType, release: str | None) -> AmiPlan:
    if pool.ami.id:
        return AmiPlan(id=pool.ami.id, type=None, release=None)
    default: AmiType = "AL2023_x86_64_NVIDIA" if instance.gpus else "AL2023_x86_64_STANDARD"
    return AmiPlan(id=None, type=pool.ami.type or default, release=release)


def _placement(pool: Pool) -> PlacementPlan | None:
    if isinstance(pool.capacity, Reservation) and pool.capacity.placement_group:
        return PlacementPlan(create=False, name=pool.capacity.placement_group)
    if pool.placement_group is None:
        return None
    create = pool.placement_group == "cluster"
    return PlacementPlan(create=create, name=None if create else pool.placement_group)


def _labels(name: str, pool: Pool, accelerator: str | None) -> dict[str, str]:
    """Labels from what the file says alone: one that followed the AMI release would change with it, and EKS takes a
    release and a label change in two separate deploys only."""
    return {
        f"{LABEL_DOMAIN}/pool": name,
        f"{LABEL_DOMAIN}/role": pool.role,
        f"{LABEL_DOMAIN}/capacity": pool.capacity.type.replace("_", "-"),
        **({ACCELERATOR_LABEL: f"nvidia-{accelerator.lower()}"} if accelerator else {}),
        **pool.labels,
    }


def _taints(pool: Pool, instance: InstanceType) -> tuple[TaintPlan, ...]:
    own: list[TaintPlan] = []
    if pool.role != "system":
        own.append(TaintPlan(key=f"{LABEL_DOMAIN}/role", value=pool.role, effect="NO_SCHEDULE"))
    if instance.gpus:
        own.append(TaintPlan(key=GPU_RESOURCE, value="true", effect="NO_SCHEDULE"))
    return (*own, *(TaintPlan(key=taint.key, value=taint.value, effect=taint.effect) for taint in pool.taints))


def _scaler_tags(
    labels: Mapping[str, str],
    taints: tuple[TaintPlan, ...],
    gpus: int,
    efa: int,
    huge_pages_mib: int,
    *,
    autoscaled: bool,
) -> dict[str, str]:
    prefix = "k8s.io/cluster-autoscaler/node-template"
    tags = {f"{prefix}/label/{key}": value for key, value in labels.items()}
    tags |= {f"{prefix}/taint/{taint.key}": taint.text() for taint in taints}
    if autoscaled:
        tags[AUTOSCALER_TAG] = "autoscaler"
    if gpus:
        tags[f"{prefix}/resources/{GPU_RESOURCE}"] = str(gpus)
    if efa:
        tags[f"{prefix}/resources/{EFA_RESOURCE}"] = str(efa)
        tags[f"{prefix}/resources/{HUGE_PAGES_RESOURCE}"] = f"{huge_pages_mib}Mi"
    return tags


def scaled_outside(pool: PoolPlan) -> Literal["autoscaler", "schedule"] | None:
    """Who moves the pool's desired size; None for fixed pools."""
    if pool.size.desired is not None:
        return None
    return "schedule" if pool.capacity.block else "autoscaler"
