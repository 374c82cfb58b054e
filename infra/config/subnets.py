"""Address plan: every subnet is a fixed share of the VPC, whatever the node counts, so that no edit renumbers one.

The VPC is cut in quarters. The first holds the small subnets, sixteen slots of 1/64: slot i is the public subnet of
zone i, slot 4 + i its private one (control plane, system pool). Quarter 1 + i is the accelerator subnet of zone i.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Literal

SubnetKind = Literal["public", "private", "accelerator"]
MAX_ZONES = 3
RESERVED_ADDRESSES = 5
"""AWS keeps the first four addresses and the last one of every subnet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subnet:
    kind: SubnetKind
    zone: str
    cidr: str

    @property
    def addresses(self) -> int:
        return IPv4Network(self.cidr).num_addresses - RESERVED_ADDRESSES


def subnet(cidr: str, kind: SubnetKind, zone: str, zones: tuple[str, ...]) -> Subnet:
    """The subnet of `kind` in `zone`; `zones` is the file's list, whose order decides the share. ValueError if absent."""
    quarters = list(IPv4Network(cidr).subnets(prefixlen_diff=2))
    index = zones.index(zone)
    if kind == "accelerator":
        share = quarters[1 + index]
    else:
        share = list(quarters[0].subnets(prefixlen_diff=4))[index + (0 if kind == "public" else 4)]
    return Subnet(kind=kind, zone=zone, cidr=str(share))


def service_cidr(vpc_cidr: str) -> str:
    """Service addresses as EKS itself would choose them: 172.20.0.0/16, or 10.100.0.0/16 where the VPC overlaps that."""
    preferred = IPv4Network("172.20.0.0/16")
    return "10.100.0.0/16" if preferred.overlaps(IPv4Network(vpc_cidr)) else str(preferred)
