"""VPC, zones and addresses."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from ipaddress import IPv4Network

from infra.catalog.efa import interfaces
from infra.config.environment import PublicEndpoint
from infra.config.faults import Finding
from infra.config.rules.registry import Context, fault, nodes_max, rule, warning
from infra.config.subnets import MAX_ZONES, subnet

VPC_PREFIXES = range(16, 19)
PRIVATE_NETWORKS = tuple(
    IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
)


@rule("network.region")
def region(context: Context) -> Iterator[Finding]:
    written, known = context.environment.region, sorted(context.catalog.regions)
    if written not in known:
        near = get_close_matches(written, known, n=3) or known
        yield fault(
            "region",
            written,
            f"no region of that name had EKS on {context.catalog.as_of}",
            f"Write one of {', '.join(near)}; a newer one is added to the catalog first.",
        )


@rule("network.cidr")
def cidr(context: Context) -> Iterator[Finding]:
    written = context.environment.network.cidr
    network = _network(written)
    if network is None:
        yield fault("network.cidr", written, "is not a network address", "Write one such as 10.0.0.0/16.")
    elif network.prefixlen not in VPC_PREFIXES:
        yield fault(
            "network.cidr",
            written,
            f"a VPC here is a /{VPC_PREFIXES[0]} to /{VPC_PREFIXES[-1]}: AWS allows no larger one, and in a smaller one"
            " a zone's private subnet no longer holds the endpoints and the system nodes",
            f"Write {network.network_address}/16.",
        )
    elif not any(network.subnet_of(block) for block in PRIVATE_NETWORKS):
        yield fault(
            "network.cidr", written, "is public address space", "Write a private range, for example 10.0.0.0/16."
        )


@rule("network.zone-count")
def zone_count(context: Context) -> Iterator[Finding]:
    zones = context.environment.network.zones
    if not 2 <= len(zones) <= MAX_ZONES:
        yield fault(
            "network.zones",
            zones,
            "the EKS control plane needs subnets in at least two zones, and the address plan holds three",
            "List two or three zones of the region.",
        )
    repeated = {zone for zone in zones if zones.count(zone) > 1}
    if repeated:
        yield fault("network.zones", zones, f"{', '.join(sorted(repeated))} is listed twice", "List each zone once.")


@rule("network.zone-region")
def zone_region(context: Context) -> Iterator[Finding]:
    environment = context.environment
    written = [(f"network.zones.{index}", zone) for index, zone in enumerate(environment.network.zones)]
    written.append(("network.accelerator_zone", environment.network.accelerator_zone))
    written += [(f"pools.{name}.zone", pool.zone) for name, pool in context.pools() if pool.zone]
    for key, zone in written:
        if zone[:-1] != environment.region:
            yield fault(
                key,
                zone,
                f"is not a zone of {environment.region}",
                f"Write a zone such as {environment.region}a, or change region.",
            )


@rule("network.zone-listed")
def zone_listed(context: Context) -> Iterator[Finding]:
    network = context.environment.network
    written = [("network.accelerator_zone", network.accelerator_zone)]
    written += [(f"pools.{name}.zone", pool.zone) for name, pool in context.pools() if pool.zone]
    for key, zone in written:
        if zone not in network.zones:
            yield fault(
                key,
                zone,
                f"is not among network.zones ({', '.join(network.zones)}), so it has no subnet",
                f"Write one of {', '.join(network.zones)}, or add {zone} to network.zones.",
            )


@rule("network.public-cidrs")
def public_cidrs(context: Context) -> Iterator[Finding]:
    endpoint = context.environment.kubernetes.endpoint
    if not isinstance(endpoint, PublicEndpoint):
        return
    key = "kubernetes.endpoint.public_cidrs"
    if not endpoint.public_cidrs:
        yield fault(
            key, [], "EKS reads an empty list as the whole internet", "List the networks, or write endpoint: private."
        )
    for index, written in enumerate(endpoint.public_cidrs):
        network = _network(written)
        if network is None:
            yield fault(f"{key}.{index}", written, "is not a network address", "Write one such as 203.0.113.0/24.")
        elif network.prefixlen < 8:
            yield fault(
                f"{key}.{index}",
                written,
                "opens the API server to much of the internet",
                "List the networks of your people and pipelines, or write endpoint: private.",
            )


@rule("network.subnet-fits")
def subnet_fits(context: Context) -> Iterator[Finding]:
    network = context.environment.network
    block = _network(network.cidr)
    if block is None or block.prefixlen not in VPC_PREFIXES or len(network.zones) > MAX_ZONES:
        return
    needed: dict[str, int] = {}
    for _, pool in context.pools("trainer", "rollout", "environment", "buffer"):
        types, zone = context.instances(pool), pool.zone or network.accelerator_zone
        if types:
            needed[zone] = needed.get(zone, 0) + nodes_max(pool) * max(
                instance.max_pods + sum(1 for nic in interfaces(instance, pool.efa_layout) if nic.kind != "efa-only")
                for instance in types
            )
    for zone, addresses in needed.items():
        if zone not in network.zones:
            continue
        share = subnet(network.cidr, "accelerator", zone, network.zones)
        if addresses > share.addresses:
            yield fault(
                "network.cidr",
                network.cidr,
                f"the pools of {zone} may take {addresses} addresses (nodes at their maximum, every pod slot used), and"
                f" the fixed share of that zone, {share.cidr}, has {share.addresses}",
                "Write a larger network, a smaller maximum, or move a pool to another zone.",
            )


@rule("network.egress-none")
def egress_none(context: Context) -> Iterator[Finding]:
    if context.environment.network.egress == "none":
        yield warning(
            "network.egress",
            "none",
            "nodes reach AWS through endpoints only: every image and chart must come from an ECR of this region",
            "Mirror the images listed by the render, or write egress: nat.",
        )


def _network(written: str) -> IPv4Network | None:
    try:
        return IPv4Network(written)
    except ValueError:
        return None
