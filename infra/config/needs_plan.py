"""What a node and an image must show before a pod of the pool may work: the numbers of preflight and of the benches."""

from __future__ import annotations

from dataclasses import dataclass

from infra.catalog.ami import EFA_DRIVER_FOR_GDA, GDRDRV_FLOOR
from infra.catalog.instances import InstanceType, Transport
from infra.catalog.models import Model
from infra.catalog.node_floors import (
    FLOOR_EXPERTS,
    FLOOR_HIDDEN,
    FLOOR_TOP_K,
    GIN_EXPORTS,
    NVIDIA_DRIVER_FLOORS,
    NVLINK_GB_PER_SECOND,
    dispatch_floor,
)
from infra.catalog.software import SoftwareStack


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeeds:
    """Floors of one pool's nodes; None where nothing is asked for."""

    efa_driver: str | None
    """Of the loaded module. The proxy works under any."""
    gdrdrv: str | None
    gin_export: str | None
    """Symbol of the OFI plugin through which NCCL reaches device-side networking."""
    nvidia_driver: str | None
    efa_gbps: int
    """Of one device, one way."""
    nvlink_gb_per_second: int
    """Of one GPU, one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageNeeds:
    """Versions that the image has by its stack; None where the stack has no such part."""

    cuda: str
    nccl: str
    libfabric: str | None
    aws_ofi_nccl: str | None
    gdrcopy: str | None
    deepep: str | None
    deepep_contexts: int
    """GIN contexts that DeepEP is told to allocate between nodes; 0 leaves it to the library, where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Shape of a MoE layer as expert traffic sees it; a dense model has 0 experts."""

    hidden: int
    experts: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchNeeds:
    """How fast DeepEP has to be over EFA in `shape`, or something is wrong."""

    shape: ExpertShape
    logical_gb_per_second: float
    """At 8192 tokens, FP8; a token counts once per node that it goes to, its own included."""
    latency_us: float
    """At 128 tokens."""


def node_needs(instance: InstanceType, stack: SoftwareStack, transport: Transport) -> NodeNeeds:
    return NodeNeeds(
        efa_driver=EFA_DRIVER_FOR_GDA if transport == "gda" else None,
        gdrdrv=None if transport == "none" else GDRDRV_FLOOR,
        gin_export=GIN_EXPORTS[transport],
        nvidia_driver=NVIDIA_DRIVER_FLOORS[stack.cuda.partition(".")[0]] if instance.gpus else None,
        efa_gbps=instance.efa_gbps,
        nvlink_gb_per_second=NVLINK_GB_PER_SECOND[instance.gpu_model] if instance.gpu_model else 0,
    )


def image_needs(stack: SoftwareStack) -> ImageNeeds:
    return ImageNeeds(
        cuda=stack.cuda,
        nccl=stack.nccl,
        libfabric=stack.libfabric,
        aws_ofi_nccl=stack.aws_ofi_nccl,
        gdrcopy=stack.gdrcopy,
        deepep=stack.deepep.version if stack.deepep else None,
        deepep_contexts=stack.deepep.contexts if stack.deepep else 0,
    )


def expert_shape(model: Model) -> ExpertShape:
    return ExpertShape(hidden=model.hidden, experts=model.experts, top_k=model.top_k)


def dispatch_needs(transport: Transport, nodes: int) -> DispatchNeeds | None:
    """None where nobody has published a group of that many nodes over that transport."""
    floor = dispatch_floor(transport, nodes)
    if floor is None:
        return None
    return DispatchNeeds(
        shape=ExpertShape(hidden=FLOOR_HIDDEN, experts=FLOOR_EXPERTS, top_k=FLOOR_TOP_K),
        logical_gb_per_second=floor.logical_gb_per_second,
        latency_us=floor.latency_us,
    )
