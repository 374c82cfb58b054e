"""What an account must allow and what it will pay, for the pools at their maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from infra.catalog import Catalog
from infra.catalog.prices import Price, PriceKind
from infra.config.pool_plan import PoolPlan

HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNeed:
    """One Service Quotas entry of EC2, in vCPUs."""

    code: str
    purchase: Literal["on_demand", "spot"]
    vcpus: int
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCost:
    """USD per hour of a pool's nodes at minimum and maximum; None where the catalog has no price with a source."""

    pool: str
    usd_per_node_hour: float | None
    usd_per_hour_min: float | None
    usd_per_hour_max: float | None
    price_as_of: str | None
    """Date of the price; Spot prices move by the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    pools: tuple[PoolCost, ...]
    usd_per_hour_max: float
    """Sum over the pools that have a price, at maximum size."""
    unpriced: tuple[str, ...]
    """Pools without a price, left out of the sum."""

    @property
    def usd_per_month_max(self) -> float:
        return self.usd_per_hour_max * HOURS_PER_MONTH


def quota_needs(pools: tuple[PoolPlan, ...], catalog: Catalog) -> tuple[QuotaNeed, ...]:
    """vCPUs per quota code. Capacity blocks are outside the on-demand quota; a mixed pool counts its largest type."""
    needs: dict[tuple[str, Literal["on_demand", "spot"]], list[tuple[str, int]]] = {}
    for pool in pools:
        if pool.capacity.type == "capacity_block":
            continue
        purchase: Literal["on_demand", "spot"] = "spot" if pool.capacity.type == "spot" else "on_demand"
        largest = max((catalog.instances[name] for name in pool.instance_types), key=lambda instance: instance.vcpus)
        code = largest.quota_spot if purchase == "spot" else largest.quota_on_demand
        needs.setdefault((code, purchase), []).append((pool.name, largest.vcpus * pool.size.max))
    return tuple(
        QuotaNeed(
            code=code, purchase=purchase, vcpus=sum(vcpus for _, vcpus in uses), pools=tuple(name for name, _ in uses)
        )
        for (code, purchase), uses in needs.items()
    )


def cost(region: str, pools: tuple[PoolPlan, ...], catalog: Catalog) -> Cost:
    """Cost of the nodes alone: no EBS, FSx, NAT, data transfer or cluster fee. A mixed pool counts its dearest type."""
    known = tuple(_pool_cost(region, pool, catalog) for pool in pools)
    return Cost(
        pools=known,
        usd_per_hour_max=sum(item.usd_per_hour_max or 0.0 for item in known),
        unpriced=tuple(item.pool for item in known if item.usd_per_hour_max is None),
    )


def _pool_cost(region: str, pool: PoolPlan, catalog: Catalog) -> PoolCost:
    kind: PriceKind = "on_demand" if pool.capacity.type == "reservation" else pool.capacity.type
    found: list[Price] = [
        price
        for price in catalog.prices
        if price.instance_type in pool.instance_types and price.region == region and price.kind == kind
    ]
    if len(found) < len(pool.instance_types):
        return PoolCost(
            pool=pool.name, usd_per_node_hour=None, usd_per_hour_min=None, usd_per_hour_max=None, price_as_of=None
        )
    dearest = max(found, key=lambda known: known.usd_per_hour)
    return PoolCost(
        pool=pool.name,
        usd_per_node_hour=dearest.usd_per_hour,
        usd_per_hour_min=dearest.usd_per_hour * pool.size.min,
        usd_per_hour_max=dearest.usd_per_hour * pool.size.max,
        price_as_of=dearest.source.as_of.isoformat(),
    )
