"""EFA interfaces and the way DeepEP uses them."""

from __future__ import annotations

from collections.abc import Iterator

from infra.config.faults import Finding
from infra.config.rules.registry import Context, fault, rule, warning
from infra.config.transport import RANK, ami_gdrdrv

PROXY_COST = (
    "CPU-proxy dispatch measured 2.2 to 5.4 times slower at decode batch sizes on p5en (deepep v2 on EFA, 2026)"
)


@rule("efa.switched-off")
def switched_off(context: Context) -> Iterator[Finding]:
    for name, pool, types in context.gpu_pools():
        if not pool.efa and any(instance.efa_devices for instance in types):
            yield warning(
                f"pools.{name}.efa",
                False,
                f"leaves {types[0].efa_devices} EFA devices a node unused; everything between nodes goes over TCP",
                "Remove the key unless the pool's pods never talk to another node.",
            )


@rule("efa.transport-asked")
def transport_asked(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if pool.transport is None or not context.instances(pool):
            continue
        derived = context.transport(pool)
        if RANK[pool.transport] > RANK[derived.transport]:
            yield fault(
                f"pools.{name}.transport",
                pool.transport,
                f"cannot work: {derived.limited_by}",
                f"Write `transport: {derived.transport}`, or remove what limits it.",
            )


@rule("efa.transport-derived")
def transport_derived(context: Context) -> Iterator[Finding]:
    for name, pool, _ in context.gpu_pools():
        derived = context.transport(pool)
        if pool.transport is None and pool.efa and derived.transport == "proxy":
            yield warning(
                f"pools.{name}.transport",
                "proxy (derived)",
                f"{derived.limited_by}; {PROXY_COST}",
                "Change what limits it, or write `transport: proxy` to accept it.",
            )
        if pool.efa and derived.transport == "none" and derived.limited_by and ami_gdrdrv(pool):
            yield warning(
                f"pools.{name}.transport", "none (derived)", derived.limited_by, "Bake a newer gdrdrv into the AMI."
            )


@rule("efa.transport-unproven")
def transport_unproven(context: Context) -> Iterator[Finding]:
    for name, pool, _ in context.gpu_pools():
        derived = context.transport(pool)
        if derived.to_prove and (pool.transport or derived.transport) == "gda":
            yield warning(
                f"pools.{name}.transport",
                "gda",
                f"the catalog has no record that this AMI carries {derived.to_prove}; without it DeepEP falls back to the"
                " proxy or does not start",
                "Node preflight reads both on every node before a run; declare ami.efa_driver and ami.gdrdrv once known.",
            )


@rule("efa.layout-classic")
def layout_classic(context: Context) -> Iterator[Finding]:
    for name, pool, types in context.gpu_pools():
        if pool.efa_layout == "classic":
            cards = max(instance.efa_devices for instance in types)
            yield warning(
                f"pools.{name}.efa_layout",
                "classic",
                f"each of {cards} interfaces takes an IP address of the subnet and warms more for pods",
                "Write efa-only, the layout AWS recommends since 2026.",
            )


@rule("efa.kv-protocol")
def kv_protocol(context: Context) -> Iterator[Finding]:
    kv = context.environment.workload.rollout.kv_transfer
    on_efa = any(pool.efa and types[0].efa_devices for _, pool, types in context.gpu_pools() if pool.role == "rollout")
    if kv and kv.protocol == "rdma" and on_efa:
        yield fault(
            "workload.rollout.kv_transfer.protocol",
            "rdma",
            f"{kv.backend} would open InfiniBand verbs that EFA does not have, and crash at the first transfer",
            "Write `protocol: efa`, or remove kv_transfer, which changes nothing here.",
        )
