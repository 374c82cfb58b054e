"""List prices that were read at a source. A price that was not read is None, never an estimate."""

from dataclasses import dataclass
from datetime import date
from typing import Literal

from infra.catalog.facts import Source

PriceKind = Literal["on_demand", "spot", "capacity_block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per instance-hour, Linux, shared tenancy. A Spot price is a snapshot and says nothing about tomorrow's."""

    instance_type: str
    region: str
    kind: PriceKind
    usd_per_hour: float
    source: Source


_KARPENTER = Source(
    title="Karpenter AWS provider, generated on-demand prices (Price List API, 2026-07-20), commit 1d927085",
    url="https://github.com/aws/karpenter-provider-aws/blob/1d927085dd81a9df9301e613f371dac5b4d16bfe/pkg/providers/pricing/zz_generated.pricing_aws.go",
    as_of=date(2026, 7, 20),
)
_DSTACK = Source(
    title="dstack offers for p5en.48xlarge (description of dstackai/dstack pull request 4110)",
    url="https://github.com/dstackai/dstack/pull/4110",
    as_of=date(2026, 8, 6),
)

# us-east-1 is the one region in that table. p5e.48xlarge is not in it: the type has no on-demand price there.
_US_EAST_1_ON_DEMAND = {
    "p4d.24xlarge": 21.957642,
    "p4de.24xlarge": 27.44705,
    "p5.48xlarge": 55.04,
    "p5en.48xlarge": 63.296,
    "p6-b200.48xlarge": 113.9328,
    "p6-b300.48xlarge": 142.416,
    "m7i.xlarge": 0.2016,
    "m7i.2xlarge": 0.4032,
    "m7i.4xlarge": 0.8064,
    "m7i.8xlarge": 1.6128,
    "m7i.16xlarge": 3.2256,
    "m7i.24xlarge": 4.8384,
    "m7i.48xlarge": 9.6768,
    "c7i.4xlarge": 0.714,
    "c7i.8xlarge": 1.428,
    "c7i.16xlarge": 2.856,
    "c7i.24xlarge": 4.284,
    "r7i.4xlarge": 1.0584,
    "r7i.8xlarge": 2.1168,
    "r7i.16xlarge": 4.2336,
    "r7i.24xlarge": 6.3504,
}
_P5EN_ELSEWHERE: tuple[tuple[str, PriceKind, float], ...] = (
    ("us-east-2", "on_demand", 63.296),
    ("us-west-2", "on_demand", 63.296),
    ("eu-north-1", "on_demand", 67.7267),
    ("us-west-1", "on_demand", 79.12),
    ("us-east-2", "spot", 26.5714),
    ("us-west-2", "spot", 26.9369),
    ("us-east-1", "spot", 27.1988),
    ("eu-north-1", "spot", 39.8158),
    ("us-west-1", "spot", 79.12),
)

# No Capacity Block price: AWS sets it at purchase, and no page with a dated one could be read.
PRICES: tuple[Price, ...] = (
    *(
        Price(instance_type=name, region="us-east-1", kind="on_demand", usd_per_hour=usd_per_hour, source=_KARPENTER)
        for name, usd_per_hour in _US_EAST_1_ON_DEMAND.items()
    ),
    *(
        Price(instance_type="p5en.48xlarge", region=region, kind=kind, usd_per_hour=usd_per_hour, source=_DSTACK)
        for region, kind, usd_per_hour in _P5EN_ELSEWHERE
    ),
)


def price(instance_type: str, region: str, kind: PriceKind) -> Price | None:
    """The recorded price, or None where none was read."""
    return next(
        (entry for entry in PRICES if (entry.instance_type, entry.region, entry.kind) == (instance_type, region, kind)),
        None,
    )
