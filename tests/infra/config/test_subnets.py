"""The address plan: fixed shares, so that no edit renumbers a subnet."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.config.subnets import MAX_ZONES, service_cidr, subnet

ON_DEMAND = {"type": "on_demand"}
KINDS = ("public", "private", "accelerator")
ZONES = tuple(f"us-west-2{letter}" for letter in "abcdef")


@st.composite
def vpcs(draw) -> str:
    prefix = draw(st.integers(16, 18))
    block = draw(st.sampled_from(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]))
    choices = 2 ** (prefix - IPv4Network(block).prefixlen)
    number = draw(st.integers(0, choices - 1))
    first = int(IPv4Network(block).network_address) + number * 2 ** (32 - prefix)
    return str(IPv4Network((first, prefix)))


zone_lists = st.lists(st.sampled_from(ZONES), min_size=1, max_size=MAX_ZONES, unique=True).map(tuple)


def all_subnets(cidr: str, zones: tuple[str, ...]) -> dict[tuple[str, str], IPv4Network]:
    return {(kind, zone): IPv4Network(subnet(cidr, kind, zone, zones).cidr) for kind in KINDS for zone in zones}


@given(cidr=vpcs(), zones=zone_lists)
def test_subnets_are_disjoint_and_inside_the_vpc(cidr, zones) -> None:
    found = list(all_subnets(cidr, zones).values())
    assert all(share.subnet_of(IPv4Network(cidr)) for share in found)
    assert not any(one.overlaps(other) for index, one in enumerate(found) for other in found[:index])


@given(cidr=vpcs(), zones=zone_lists.filter(lambda zones: len(zones) < MAX_ZONES), added=st.sampled_from(ZONES))
def test_a_zone_added_at_the_end_renumbers_nothing(cidr, zones, added) -> None:
    longer = (*zones, added) if added not in zones else zones
    assert all_subnets(cidr, zones).items() <= all_subnets(cidr, longer).items()


@given(cidr=vpcs())
def test_shares_are_a_quarter_and_a_sixty_fourth(cidr) -> None:
    prefix = IPv4Network(cidr).prefixlen
    sizes = {kind: share.prefixlen - prefix for (kind, _), share in all_subnets(cidr, ZONES[:3]).items()}
    assert sizes == {"public": 6, "private": 6, "accelerator": 2}


def test_shares_of_the_default_network_by_hand() -> None:
    zones = ZONES[:3]
    shares = {key: str(share) for key, share in all_subnets("10.0.0.0/16", zones).items()}
    assert shares["public", "us-west-2a"] == "10.0.0.0/22"
    assert shares["public", "us-west-2c"] == "10.0.8.0/22"
    assert shares["private", "us-west-2a"] == "10.0.16.0/22"
    assert shares["private", "us-west-2c"] == "10.0.24.0/22"
    assert shares["accelerator", "us-west-2a"] == "10.0.64.0/18"
    assert shares["accelerator", "us-west-2c"] == "10.0.192.0/18"


def test_aws_keeps_five_addresses_of_a_subnet() -> None:
    assert subnet("10.0.0.0/18", "accelerator", "us-west-2a", ZONES[:2]).addresses == 4096 - 5


def test_a_zone_that_is_not_listed_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        subnet("10.0.0.0/16", "private", "us-west-2f", ZONES[:3])


@given(cidr=vpcs())
def test_service_addresses_never_meet_the_vpc(cidr) -> None:
    assert not IPv4Network(service_cidr(cidr)).overlaps(IPv4Network(cidr))


def test_service_addresses_are_those_that_eks_would_choose() -> None:
    assert service_cidr("10.0.0.0/16") == "172.20.0.0/16"
    assert service_cidr("10.100.0.0/16") == "172.20.0.0/16"
    assert service_cidr("172.20.128.0/17") == "10.100.0.0/16"


@pytest.mark.parametrize(
    "changes",
    [
        {"pools.rollout.nodes.max": 2},
        {"pools.rollout.nodes.max": 64},
        {"pools.environments": ...},
        {"pools.more": {"role": "buffer", "instance_types": ["r7i.4xlarge"], "nodes": 1, "capacity": ON_DEMAND}},
    ],
)
def test_subnets_do_not_depend_on_the_pools_of_a_zone(changes, planned) -> None:
    assert planned("reference-p5en", changes).network.subnets == planned("reference-p5en").network.subnets


def test_a_pool_in_another_zone_adds_a_subnet_and_moves_none(planned) -> None:
    before = planned("starter-p5en").network.subnets
    after = planned("starter-p5en", {"pools.environments.zone": "us-west-2c"}).network.subnets
    (added,) = set(after) - set(before)
    assert (added.kind, added.zone) == ("accelerator", "us-west-2c")
    assert set(before) < set(after)
