"""Which network interfaces a node of a type gets: the EFA layout as a pure function of the instance table."""

from dataclasses import dataclass
from typing import Literal

from infra.catalog.instances import EfaLayout, InstanceType

InterfaceKind = Literal["interface", "efa-only", "efa"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface of a launch template. `device` is the index on its own card, so 0 or 1."""

    card: int
    device: int
    kind: InterfaceKind

    @property
    def is_efa(self) -> bool:
        """Whether Kubernetes counts this interface as one `vpc.amazonaws.com/efa`."""
        return self.kind != "interface"


def interfaces(instance: InstanceType, layout: EfaLayout) -> tuple[Interface, ...]:
    """Interfaces in card order, the primary (card 0, device 0) first.

    `efa-only` is what AWS recommends: one plain ENA primary carries all IP traffic, and an EFA-only interface on each
    card that can have one takes no address. `classic` is the older layout, an ENA+EFA interface on each card, which
    costs addresses on every card. A type without EFA gets its primary alone under either.

    Raises ValueError, naming the type, when its cards cannot hold `efa_devices`.
    Source: EC2 user guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards".
    """
    cards = range(0 if instance.card0_efa else 1, instance.network_cards)
    if instance.efa_devices > len(cards):
        raise ValueError(
            f"{instance.name}: {instance.efa_devices} EFA devices do not fit on its {len(cards)} EFA-capable cards"
        )
    efa_cards = cards[: instance.efa_devices]
    if layout == "classic":
        primary: InterfaceKind = "efa" if 0 in efa_cards else "interface"
        rest = tuple(Interface(card=card, device=1, kind="efa") for card in efa_cards if card > 0)
        return (Interface(card=0, device=0, kind=primary), *rest)
    placed = tuple(Interface(card=card, device=0 if card else 1, kind="efa-only") for card in efa_cards)
    return (Interface(card=0, device=0, kind="interface"), *placed)
