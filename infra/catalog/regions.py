"""Regions of AWS that have EKS. A region that opened later is added here, after a look at its prices and registries."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from infra.catalog.facts import AS_OF, Source

_BOTOCORE = Source(
    title="botocore 1.44.8, endpoints of EKS in the partitions aws, aws-cn and aws-us-gov",
    url="https://github.com/boto/botocore/blob/1.44.8/botocore/data/endpoints.json",
    as_of=AS_OF,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    name: str
    source: Source


_BY_AREA: Mapping[str, tuple[str, ...]] = {
    "af": ("south-1",),
    "ap": (
        *("east-1", "east-2", "northeast-1", "northeast-2", "northeast-3", "south-1", "south-2"),
        *(f"southeast-{number}" for number in range(1, 8)),
    ),
    "ca": ("central-1", "west-1"),
    "cn": ("north-1", "northwest-1"),
    "eu": ("central-1", "central-2", "north-1", "south-1", "south-2", "west-1", "west-2", "west-3"),
    "il": ("central-1",),
    "me": ("central-1", "south-1"),
    "mx": ("central-1",),
    "sa": ("east-1",),
    "us": ("east-1", "east-2", "gov-east-1", "gov-west-1", "west-1", "west-2"),
}

REGIONS: Mapping[str, Region] = MappingProxyType(
    {
        f"{area}-{rest}": Region(name=f"{area}-{rest}", source=_BOTOCORE)
        for area, names in _BY_AREA.items()
        for rest in names
    }
)
