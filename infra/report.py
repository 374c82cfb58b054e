"""What a person wants to see of a plan before paying for it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.config.environment import CapacityType
from infra.config.faults import Finding, addressed, count
from infra.config.host_plan import Bringer
from infra.config.plan import Plan
from infra.config.pool_plan import PoolPlan, scaled_outside
from infra.config.quotas import Cost

_PURCHASE: dict[CapacityType, str] = {
    "on_demand": "on demand",
    "spot": "Spot",
    "reservation": "reservation",
    "capacity_block": "block",
}


_BROUGHT: dict[Bringer, str] = {
    "image": "in the image",
    "user data": "user data",
    "DaemonSet": "DaemonSet",
    "unproven": "unproven in the image",
}


def print_plan(plan: Plan, console: Console, *, env: str) -> None:
    """The plan as tables: pools, job, network, quotas, cost, what is unresolved, warnings. `env` is what was typed for it."""
    endpoint = ", ".join(plan.kubernetes.public_cidrs) or "private"
    console.print(
        f"[bold]{plan.name}[/]  account {plan.account}  {plan.region}  Kubernetes {plan.kubernetes.version}"
        f" ({plan.kubernetes.support_type.lower()} support)  endpoint {endpoint}  software {plan.software}"
    )
    for table in (
        _pools(plan),
        _hosts(plan),
        _job(plan),
        _network(plan),
        _quotas(plan),
        _cost(plan.cost, plan.budget_monthly_usd),
    ):
        console.print(table)
    if plan.unresolved:
        missing = addressed(f"{count(len(plan.unresolved), 'pin')}, and a deploy refuses them: `moerl lock ENV`", env)
        console.print(Text.assemble("\n", ("unresolved", "yellow"), " ", missing), soft_wrap=True)
        console.print(Text(", ".join(plan.unresolved)))
    print_findings(plan.warnings, env, console)


def print_findings(findings: tuple[Finding, ...], path: str, console: Console) -> None:
    """Faults and warnings, one line each, faults first."""
    for finding in sorted(findings, key=lambda found: found.severity):
        style = "red" if finding.severity == "fault" else "yellow"
        console.print(Text.assemble((finding.severity, style), " ", finding.text(path)), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    table.show_header = any(columns)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _pools(plan: Plan) -> Table:
    table = _table("Pools", "pool", "nodes", "types", "GPUs", "EFA", "capacity")
    for column in table.columns[1:]:
        # A long pool name is folded; a number or a type never is.
        column.no_wrap = True
    for pool in plan.pools:
        size, scaler = pool.size, scaled_outside(pool)
        table.add_row(
            pool.name if pool.name == pool.role else f"{pool.name}\n  {pool.role}",
            f"{size.desired} fixed" if scaler is None else f"{size.min} to {size.max}\n  {scaler}",
            "\n".join(pool.instance_types),
            f"{size.max * pool.gpus_per_node} {pool.gpu_model}" if pool.is_gpu else "-",
            f"{pool.efa_per_node} {pool.transport}" if pool.efa_per_node else "-",
            f"{_PURCHASE[pool.capacity.type]}\n  {pool.zones[0] if len(pool.zones) == 1 else 'every zone'}",
        )
    reserved = [line for pool in plan.pools if (line := _reserved(pool))]
    table.caption = "\n".join(["EFA: interfaces of a node and how DeepEP uses them", *reserved])
    table.caption_justify = "left"
    return table


def _reserved(pool: PoolPlan) -> str | None:
    block, reservation = pool.capacity.block, pool.capacity.reservation_id
    if block is not None:
        return (
            f"{pool.name}: block {reservation}, {block.starts:%Y-%m-%d %H:%M} to {block.ends:%Y-%m-%d %H:%M} UTC;"
            f" save at {block.save_signal_at:%d %H:%M}, down to 0 at {block.scale_down_at:%d %H:%M}"
        )
    return f"{pool.name}: reservation {reservation}" if reservation else None


_IMAGES: dict[str, str] = {"eks": "EKS image", "custom": "custom AMI", "baked": "baked AMI"}


def _hosts(plan: Plan) -> Table:
    """Where each GPU pool's nodes get what they need from, and what transport comes of it."""
    table = _table("Nodes", "pool", "image", "")
    for pool in plan.pools:
        if not pool.is_gpu:
            continue
        brought = {by: [part.what for part in pool.host.parts if part.by == by] for by in _BROUGHT}
        lines = [f"{text}: {', '.join(brought[by])}" for by, text in _BROUGHT.items() if brought[by]]
        unproven = pool.transport == "gda" and pool.transport_reason
        reason = "preflight proves it on each node" if unproven else pool.transport_reason
        lines.append(f"transport {pool.transport}{f': {reason}' if reason else ''}")
        table.add_row(
            pool.name,
            f"{_IMAGES[pool.host.image]}\n  {pool.ami.id or pool.ami.release or 'unresolved'}",
            "\n".join(lines),
        )
    return table


def _job(plan: Plan) -> Table:
    workload, trainer = plan.workload, plan.workload.trainer
    geometry = trainer.geometry
    table = _table(f"Job: {workload.model}, {workload.steps} steps, save every {workload.save_interval}", "", "")
    table.add_row(
        "trainer",
        f"{trainer.workers} workers, {geometry.gpus} GPUs: tensor {geometry.tensor_parallel}, pipeline"
        f" {geometry.pipeline_parallel}, context {geometry.context_parallel}, data {geometry.data_parallel}; expert"
        f" {geometry.expert_parallel} over {geometry.expert_group_nodes} node(s) by {trainer.dispatcher};"
        f" about {geometry.gpu_memory_gib:.0f} GiB a GPU before activations",
    )
    fabric = f"proven among {trainer.workers} nodes" if trainer.prove_fabric else "not proven"
    table.add_row("  links between nodes", f"{fabric} before a start")
    for rollout in workload.rollouts:
        engine = rollout.geometry
        table.add_row(
            f"rollout {rollout.pool}",
            f"up to {engine.engines_max} engines of {engine.gpus_per_engine} GPUs on {engine.nodes_per_engine} node(s),"
            f" {rollout.precision}; expert {engine.expert_parallel} over {engine.expert_group_nodes} node(s), all-to-all"
            f" {rollout.backend}; about {engine.gpu_memory_gib:.0f} GiB a GPU before KV cache",
        )
        table.add_row("  one lost node", f"takes {rollout.lost_with_one_node} node(s) out of service")
    batch, busy = workload.batch, sum(rollout.engines_busy for rollout in workload.rollouts)
    engines_max = sum(rollout.geometry.engines_max for rollout in workload.rollouts)
    table.add_row(
        "batch",
        f"{batch.groups} groups of {workload.rollouts[0].engine.samples_per_task} samples a step; {batch.window_groups}"
        f" groups, {batch.staleness_versions} batches, are out at once and keep {busy} of {engines_max} engines busy",
    )
    table.add_row("experts over EFA", ", ".join(workload.experts_over_efa) or "none: no expert group leaves its node")
    return table


def _network(plan: Plan) -> Table:
    table = _table(f"Network {plan.network.cidr}, egress {plan.network.egress}", "subnet", "zone", "addresses")
    for subnet in plan.network.subnets:
        table.add_row(f"{subnet.kind} {subnet.cidr}", subnet.zone, str(subnet.addresses))
    return table


def _quotas(plan: Plan) -> Table:
    table = _table("EC2 quotas needed", "code", "purchase", "vCPUs", "pools")
    for need in plan.quotas:
        table.add_row(need.code, need.purchase.replace("_", " "), str(need.vcpus), ", ".join(need.pools))
    return table


def _cost(cost: Cost, budget: float | None) -> Table:
    table = _table("Nodes per hour, USD", "pool", "per node", "minimum", "maximum", "price of")
    for pool in cost.pools:
        if pool.usd_per_node_hour is None:
            table.add_row(pool.pool, "unknown", "-", "-", "no price with a source")
        else:
            table.add_row(
                pool.pool,
                f"{pool.usd_per_node_hour:,.2f}",
                f"{pool.usd_per_hour_min or 0:,.2f}",
                f"{pool.usd_per_hour_max or 0:,.2f}",
                pool.price_as_of or "",
            )
    unpriced = f", {', '.join(cost.unpriced)} left out" if cost.unpriced else ""
    most = f"at most {cost.usd_per_hour_max:,.2f} an hour, {cost.usd_per_month_max:,.0f} a month{unpriced}"
    limit = f"; budget {budget:,.0f} a month" if budget else ""
    table.caption = (
        f"{most if len(cost.unpriced) < len(cost.pools) else 'no pool has a price with a source'}{limit}."
        " Nodes only: no storage, NAT, transfer or cluster fee."
    )
    table.caption_justify = "left"
    return table
