import pytest

from infra.catalog.instances import INSTANCES
from infra.catalog.prices import PRICES, price


def test_price_that_was_not_read_is_none() -> None:
    assert price("p5e.48xlarge", "us-east-1", "on_demand") is None
    assert price("p5en.48xlarge", "us-east-1", "capacity_block") is None
    assert price("p5.48xlarge", "ap-south-1", "on_demand") is None


@pytest.mark.parametrize(("kind", "usd"), [("on_demand", 63.296), ("spot", 27.1988)])
def test_price_is_found_by_type_region_and_kind(kind: str, usd: float) -> None:
    found = price("p5en.48xlarge", "us-east-1", kind)  # type: ignore[arg-type]
    assert found is not None
    assert found.usd_per_hour == usd


def test_each_price_is_recorded_once_and_for_a_known_type() -> None:
    keys = [(entry.instance_type, entry.region, entry.kind) for entry in PRICES]
    assert len(set(keys)) == len(keys)
    assert {name for name, _, _ in keys} <= set(INSTANCES)


def test_on_demand_in_us_east_1_covers_every_type_but_the_one_without_a_price() -> None:
    priced = {entry.instance_type for entry in PRICES if (entry.region, entry.kind) == ("us-east-1", "on_demand")}
    assert set(INSTANCES) - priced == {"p5e.48xlarge"}


def test_spot_is_never_above_on_demand_in_the_same_region() -> None:
    for spot in (entry for entry in PRICES if entry.kind == "spot"):
        on_demand = price(spot.instance_type, spot.region, "on_demand")
        assert on_demand is not None
        assert 0 < spot.usd_per_hour <= on_demand.usd_per_hour
