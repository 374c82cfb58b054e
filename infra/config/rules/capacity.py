"""Where nodes come from: purchase type, sizes, instance types, placement. The legal combinations are narrow
(known-problems rows B08, B21-B29) and EKS or EC2 names the cause of a wrong one seldom and late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta

from infra.catalog.efa import interfaces
from infra.config.environment import CapacityBlock, Reservation, block_window
from infra.config.faults import Finding
from infra.config.pool_plan import SYSTEM_NAME
from infra.config.rules.registry import Context, fault, nodes_max, nodes_min, rule, warning

BLOCK_MAX_NODES = 64
BLOCK_MAX_DAYS = 182
BLOCK_DRAIN = timedelta(minutes=90)
"""The save signal comes this long before a block ends; a block must be longer."""


@rule("capacity.roles")
def roles(context: Context) -> Iterator[Finding]:
    counts = {role: [name for name, _ in context.pools(role)] for role in ("trainer", "rollout", "system")}
    if len(counts["trainer"]) != 1:
        yield fault(
            "pools",
            counts["trainer"] or "no trainer pool",
            "training runs in lockstep on exactly one pool: ranks over two pools would share no EFA placement",
            "Give exactly one pool role: trainer.",
        )
    if not counts["rollout"]:
        yield fault(
            "pools", "no rollout pool", "nothing would generate samples", "Give at least one pool role: rollout."
        )
    if len(counts["system"]) > 1:
        yield fault("pools", counts["system"], "there is one system pool", "Keep one pool with role: system, or none.")
    namesake = context.environment.pools.get(SYSTEM_NAME)
    if namesake is not None and not counts["system"]:
        yield fault(
            f"pools.{SYSTEM_NAME}",
            f"role {namesake.role}",
            "the name belongs to the system pool that every cluster has, declared or not",
            "Write another name, or role: system.",
        )


@rule("capacity.instance-known")
def instance_known(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        for index, written in enumerate(pool.instance_types):
            if written not in context.catalog.instances:
                yield fault(
                    f"pools.{name}.instance_types.{index}",
                    written,
                    "the catalog does not know its network cards, and an interface layout is never guessed",
                    f"Write one of {', '.join(sorted(context.catalog.instances))}.",
                )


@rule("capacity.role-type")
def role_type(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        for instance in context.instances(pool):
            key = f"pools.{name}.instance_types"
            if pool.role in ("trainer", "rollout") and not instance.gpus:
                yield fault(
                    key, instance.name, f"a {pool.role} needs GPUs", "Write a GPU type, for example p5en.48xlarge."
                )
            if pool.role in ("system", "environment", "buffer") and instance.gpus:
                yield fault(
                    key,
                    instance.name,
                    f"a {pool.role} pool runs no GPU pods, and its GPUs would be paid for and unused",
                    "Write a CPU type, for example m7i.8xlarge.",
                )
            if pool.role == "buffer" and not instance.gpus and instance.family != "memory":
                yield warning(
                    key,
                    instance.name,
                    "the experience buffer lives in memory",
                    "A memory-optimised type (r7i) costs less per GiB.",
                )


@rule("capacity.one-layout")
def one_layout(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        types = context.instances(pool)
        shapes = {(interfaces(instance, pool.efa_layout), instance.gpus, instance.cuda_arch) for instance in types}
        if len(shapes) > 1:
            yield fault(
                f"pools.{name}.instance_types",
                pool.instance_types,
                "they differ in network interfaces or GPUs, and one launch template holds one layout: "
                + "; ".join(
                    f"{instance.name} has {instance.efa_devices} EFA, {instance.gpus} GPUs" for instance in types
                ),
                "Keep types of one layout together, the others in a pool of their own.",
            )


@rule("capacity.node-range")
def node_range(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if nodes_min(pool) > nodes_max(pool):
            yield fault(
                f"pools.{name}.nodes",
                f"min {nodes_min(pool)}, max {nodes_max(pool)}",
                "min is above max",
                "Swap the two.",
            )


@rule("capacity.trainer-on-spot")
def trainer_on_spot(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools("trainer"):
        if pool.capacity.type == "spot":
            yield fault(
                f"pools.{name}.capacity.type",
                "spot",
                "the trainer runs in lockstep, so one reclaimed node stops every rank and the step is lost",
                "Write on_demand, reservation or capacity_block.",
            )


@rule("capacity.trainer-fixed")
def trainer_fixed(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools("trainer", "system"):
        if not isinstance(pool.nodes, int) and pool.capacity.type != "capacity_block":
            yield fault(
                f"pools.{name}.nodes",
                f"min {pool.nodes.min}, max {pool.nodes.max}",
                f"a {pool.role} pool has a fixed size; an autoscaler that takes a node from it stops the run",
                f"Write `nodes: {pool.nodes.max}`.",
            )


@rule("capacity.spot-range")
def spot_range(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if pool.capacity.type == "spot" and isinstance(pool.nodes, int):
            yield fault(
                f"pools.{name}.nodes",
                pool.nodes,
                "Spot capacity comes and goes; a fixed size fails the deploy on the first shortage",
                f"Write `nodes: {{min: 0, max: {pool.nodes}}}`.",
            )


@rule("capacity.block-size")
def block_size(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if pool.capacity.type != "capacity_block":
            continue
        key, command = f"pools.{name}.nodes", f"`moerl pool scale ENV {name} --nodes {nodes_max(pool)}`"
        if isinstance(pool.nodes, int):
            yield fault(
                key,
                pool.nodes,
                "before the block starts every launch fails, and the stack rolls back",
                f"Write `nodes: {{min: 0, max: {pool.nodes}}}`; the schedule scales up at the start, or run {command}.",
            )
        elif pool.nodes.min > 0:
            yield fault(
                key,
                f"min {pool.nodes.min}",
                "a minimum above 0 asks for nodes before the block starts and keeps asking after it ends",
                f"Write `min: 0`; the schedule scales up at the start, or run {command}.",
            )
        if nodes_max(pool) > BLOCK_MAX_NODES:
            yield fault(
                key, nodes_max(pool), f"a capacity block holds at most {BLOCK_MAX_NODES} instances", "Write fewer."
            )


@rule("capacity.block-window")
def block_window_valid(context: Context) -> Iterator[Finding]:
    today = datetime.combine(context.catalog.as_of, time(), UTC)
    for name, pool in context.pools():
        window = block_window(pool)
        if window is None:
            continue
        starts, ends = window
        key = f"pools.{name}.capacity.ends"
        if ends - starts <= BLOCK_DRAIN:
            yield fault(
                key,
                ends.isoformat(),
                f"is not more than {BLOCK_DRAIN.seconds // 60} minutes after starts ({starts.isoformat()}),"
                " the time that saving and draining take",
                "Copy both times from the reservation.",
            )
        elif ends - starts > timedelta(days=BLOCK_MAX_DAYS):
            yield fault(
                key,
                ends.isoformat(),
                f"a block lasts at most {BLOCK_MAX_DAYS} days",
                "Copy both times from the reservation.",
            )
        if ends <= today:
            yield fault(
                key,
                ends.isoformat(),
                f"the block ended before this catalog's date ({context.catalog.as_of})",
                "Write the id, starts and ends of a block that is still to come.",
            )


@rule("capacity.reserved-one-type")
def reserved_one_type(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if isinstance(pool.capacity, Reservation | CapacityBlock) and len(pool.instance_types) > 1:
            yield fault(
                f"pools.{name}.instance_types",
                pool.instance_types,
                f"the {pool.capacity.type} {pool.capacity.id} holds one instance type",
                "Write that type alone.",
            )


@rule("capacity.placement-group")
def placement_group(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        if pool.placement_group is None:
            continue
        key = f"pools.{name}.placement_group"
        if isinstance(pool.capacity, CapacityBlock):
            yield fault(
                key,
                pool.placement_group,
                "a capacity block places its nodes itself; with a group added they do not launch",
                "Remove placement_group.",
            )
        elif isinstance(pool.capacity, Reservation):
            yield fault(
                key,
                pool.placement_group,
                "a group added to a reservation strands nodes already paid for (11 of 16 in one report)",
                "Remove it; if the reservation was made in a group, name that group in capacity.placement_group.",
            )
        elif pool.capacity.type == "spot":
            yield warning(
                key,
                pool.placement_group,
                "it narrows where Spot may find nodes",
                "Remove it unless measured traffic needs it.",
            )
