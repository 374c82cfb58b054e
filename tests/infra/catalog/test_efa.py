from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog.efa import interfaces
from infra.catalog.instances import INSTANCES, EfaLayout, InstanceType

LAYOUTS: tuple[EfaLayout, ...] = ("efa-only", "classic")


def layout(name: str, kind: EfaLayout) -> list[tuple[int, int, str]]:
    return [(entry.card, entry.device, entry.kind) for entry in interfaces(INSTANCES[name], kind)]


def efa_only(cards: int) -> list[tuple[int, int, str]]:
    return [(0, 0, "interface"), (0, 1, "efa-only"), *((card, 0, "efa-only") for card in range(1, cards))]


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("p4d.24xlarge", 4),
        ("p4de.24xlarge", 4),
        ("p5.48xlarge", 32),
        ("p5e.48xlarge", 32),
        ("p5en.48xlarge", 16),
        ("p6-b200.48xlarge", 8),
    ],
)
def test_efa_only_layout_has_a_plain_primary_and_one_efa_per_card(name: str, cards: int) -> None:
    assert layout(name, "efa-only") == efa_only(cards)
    assert len(layout(name, "efa-only")) == cards + 1


def test_b300_keeps_efa_off_card_0_and_has_17_interfaces() -> None:
    rest = [(card, 0, "efa-only") for card in range(1, 17)]
    assert layout("p6-b300.48xlarge", "efa-only") == [(0, 0, "interface"), *rest]


def test_classic_layout_puts_efa_on_device_1_of_further_cards() -> None:
    assert layout("p5en.48xlarge", "classic") == [(0, 0, "efa"), *((card, 1, "efa") for card in range(1, 16))]
    b300 = [(0, 0, "interface"), *((card, 1, "efa") for card in range(1, 17))]
    assert layout("p6-b300.48xlarge", "classic") == b300


@pytest.mark.parametrize("kind", LAYOUTS)
def test_type_without_efa_gets_one_plain_interface(kind: EfaLayout) -> None:
    assert layout("m7i.xlarge", kind) == [(0, 0, "interface")]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_type_whose_cards_cannot_hold_its_devices_is_refused_by_name(kind: EfaLayout) -> None:
    b300 = replace(INSTANCES["p6-b300.48xlarge"], efa_devices=17)
    with pytest.raises(ValueError, match=r"p6-b300\.48xlarge: 17 EFA devices .* 16 EFA-capable"):
        interfaces(b300, kind)


@st.composite
def instance_types(draw: st.DrawFn) -> InstanceType:
    cards = draw(st.integers(1, 64))
    card0_efa = draw(st.booleans())
    devices = draw(st.integers(0, cards if card0_efa else cards - 1))
    return replace(INSTANCES["p5.48xlarge"], network_cards=cards, card0_efa=card0_efa, efa_devices=devices)


@given(instance=instance_types(), kind=st.sampled_from(LAYOUTS))
def test_any_layout_is_one_that_ec2_accepts(instance: InstanceType, kind: EfaLayout) -> None:
    placed = interfaces(instance, kind)
    pairs = [(entry.card, entry.device) for entry in placed]
    assert len(set(pairs)) == len(pairs)
    assert all(0 <= card < instance.network_cards and device in (0, 1) for card, device in pairs)
    assert pairs.count((0, 0)) == 1
    assert (placed[0].card, placed[0].device) == (0, 0)
    assert placed[0].kind != "efa-only"
    assert sum(entry.is_efa for entry in placed) == instance.efa_devices
    efa_cards = [entry.card for entry in placed if entry.is_efa]
    assert len(set(efa_cards)) == len(efa_cards)
    assert instance.card0_efa or 0 not in efa_cards


@given(instance=instance_types())
def test_efa_only_layout_carries_ip_on_one_interface_alone(instance: InstanceType) -> None:
    assert [entry.kind for entry in interfaces(instance, "efa-only")].count("interface") == 1
    assert all(entry.kind != "efa" for entry in interfaces(instance, "efa-only"))
