"""What a node, its links and the image must show at least, and how fast expert traffic has to be: floors with source."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from infra.catalog.facts import Source
from infra.catalog.instances import Transport

NVIDIA_DRIVER_FLOORS: Mapping[str, str] = MappingProxyType({"12": "525.60.13", "13": "580"})
"""By major release of CUDA: the lowest driver under which any minor release of it runs."""

GIN_EXPORTS: Mapping[Transport, str | None] = MappingProxyType(
    {"none": None, "proxy": "ncclGinPlugin_v13", "gda": "ncclGinPlugin_v14"}
)
"""Symbol that the OFI plugin must export: NCCL 2.31 looks for these two, and the second alone has GPU-direct."""

NVLINK_GB_PER_SECOND: Mapping[str, int] = MappingProxyType(
    {"A100": 300, "H100": 450, "H200": 450, "B200": 900, "B300": 900}
)
"""Per GPU and direction: half of the datasheets' sum of both."""

SOURCES = (
    Source(
        title="CUDA Toolkit 13.1 release notes, minimum driver for minor version compatibility",
        url="https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html",
        as_of=date(2025, 12, 4),
    ),
    Source(
        title="aws-ofi-nccl v1.21.1, src/rdma/gin (exports); strings of libnccl in the nvidia-nccl-cu13 2.31.2 wheel",
        url="https://github.com/aws/aws-ofi-nccl/blob/2daf7d303aa139a03140aa530957d10521e4478d/src/rdma/gin/nccl_ofi_gin_gdaki.cpp",
        as_of=date(2026, 8, 21),
    ),
    Source(
        title="NVIDIA NVLink: bandwidth per GPU by generation",
        url="https://www.nvidia.com/en-us/data-center/nvlink/",
        as_of=date(2026, 8, 21),
    ),
)

FLOOR_HIDDEN, FLOOR_TOP_K, FLOOR_EXPERTS = 7168, 8, 256
"""Shape of the published numbers below: FP8 dispatch, 8192 tokens for bandwidth and 128 for latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchFloor:
    """Below this something is wrong: GPU-direct is not active, or a device is missing. Dispatch of DeepEP v2.

    `logical_gb_per_second` counts a token once per node that it goes to, its own included, as DeepEP's tests print it.
    """

    transport: Transport
    nodes: int
    logical_gb_per_second: float
    latency_us: float
    source: Source


_MEASURED = Source(
    title="whn09/ep-benchmarks-efa, deepep-v2-efa-official: two and four p5en nodes, both GIN types; floors are 10 to 25 % "
    "off the measured value, those of two nodes under GPU-direct as the field notes suggest them",
    url="https://github.com/whn09/ep-benchmarks-efa/tree/main/deepep-v2-efa-official",
    as_of=date(2026, 10, 9),
)

DISPATCH_FLOORS: tuple[DispatchFloor, ...] = (
    DispatchFloor(transport="gda", nodes=2, logical_gb_per_second=70, latency_us=250, source=_MEASURED),
    DispatchFloor(transport="gda", nodes=4, logical_gb_per_second=48, latency_us=280, source=_MEASURED),
    DispatchFloor(transport="proxy", nodes=2, logical_gb_per_second=60, latency_us=550, source=_MEASURED),
    DispatchFloor(transport="proxy", nodes=4, logical_gb_per_second=42, latency_us=1300, source=_MEASURED),
)


def dispatch_floor(transport: Transport, nodes: int) -> DispatchFloor | None:
    """The floor of a group of that many nodes; None where nothing comparable is published."""
    found = [floor for floor in DISPATCH_FLOORS if (floor.transport, floor.nodes) == (transport, nodes)]
    return found[0] if found else None
