"""The plan as a person reads it, on a narrow terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from infra.config.faults import Finding
from infra.config.loader import load_text
from infra.config.plan import Plan, build_plan
from infra.report import print_findings, print_plan
from tests.shipped import SHIPPED, plan_of, unpinned_plan_of

ROOT = Path(__file__).resolve().parents[2]


def shown(plan: Plan, width: int = 80) -> str:
    buffer = io.StringIO()
    print_plan(plan, Console(file=buffer, width=width), env=plan.name)
    return buffer.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", SHIPPED)
def test_at_80_columns_nothing_is_cut_off(name: str) -> None:
    text = shown(unpinned_plan_of(name))
    assert "…" not in text
    for line in text.splitlines():
        assert len(line.rstrip()) <= 80 or line.startswith(("warning ", "fault "))


def test_whether_links_are_proven_before_a_start_is_shown() -> None:
    assert "proven among 16 nodes before a start" in words(shown(plan_of("reference-p5en")))
    off = plan_of("reference-p5en", {"workload.trainer.prove_fabric": False})
    assert "not proven before a start" in words(shown(off))


def test_the_longest_names_cost_no_number() -> None:
    """Pool names of 24 characters, long type names and a long zone: the name is folded, all else is whole."""
    text = (ROOT / "environments/p6-b200.yaml").read_text(encoding="utf-8").replace("us-west-2", "ap-southeast-2")
    for pool in ("trainer", "rollout", "environments", "buffer"):
        text = text.replace(f"\n  {pool}:\n    role", f"\n  {pool}-{'x' * (23 - len(pool))}:\n    role")
    loaded = load_text(text, "long")
    plan = build_plan(loaded.environment, loaded.pins, loaded.warnings)
    assert {len(pool.name) for pool in plan.pools if pool.role != "system"} == {24}
    assert "…" not in shown(plan)
    table = shown(plan).partition("\nJob: ")[0]
    for whole in (
        "p6-b200.48xlarge",
        "64 B200",
        "128 B200",
        "8 gda",
        "0 to 16",
        "autoscaler",
        "ap-southeast-2b",
        "block",
    ):
        assert f" {whole} " in table.replace("\n", " \n"), whole


@pytest.mark.parametrize("name", SHIPPED)
def test_every_pool_shows_its_nodes_types_gpus_efa_and_capacity(name: str) -> None:
    plan = unpinned_plan_of(name)
    lines = shown(plan).splitlines()
    for pool in plan.pools:
        row = next(line for line in lines if line.split()[:1] == [pool.name])
        size = f"{pool.size.desired} fixed" if pool.size.desired is not None else f"{pool.size.min} to {pool.size.max}"
        assert size in row
        assert pool.instance_types[0] in row
        if pool.is_gpu:
            assert f"{pool.size.max * pool.gpus_per_node} {pool.gpu_model}" in row
            assert f"{pool.efa_per_node} {pool.transport}" in row
        assert {"on_demand": "on demand", "spot": "Spot", "reservation": "reservation", "capacity_block": "block"}[
            pool.capacity.type
        ] in row
        if pool.capacity.reservation_id:
            assert pool.capacity.reservation_id in words(shown(plan))


@pytest.mark.parametrize("name", SHIPPED)
def test_quotas_cost_network_job_and_warnings_are_shown(name: str) -> None:
    plan = unpinned_plan_of(name)
    text = words(shown(plan))
    for need in plan.quotas:
        assert f"{need.code} {need.purchase.replace('_', ' ')} {need.vcpus} {', '.join(need.pools)}" in text
    for subnet in plan.network.subnets:
        assert f"{subnet.kind} {subnet.cidr} {subnet.zone} {subnet.addresses}" in text
    for cost in plan.cost.pools:
        assert (f"{cost.pool} unknown" if cost.usd_per_node_hour is None else f"{cost.usd_per_node_hour:,.2f}") in text
    assert f"budget {plan.budget_monthly_usd:,.0f} a month" in text
    assert plan.workload.model in text
    assert f"{plan.workload.steps} steps, save every {plan.workload.save_interval}" in text
    for rollout in plan.workload.rollouts:
        assert f"takes {rollout.lost_with_one_node} node(s) out of service" in text
    batch, busy = plan.workload.batch, sum(rollout.engines_busy for rollout in plan.workload.rollouts)
    assert f"{batch.groups} groups of {plan.workload.rollouts[0].engine.samples_per_task} samples a step" in text
    assert (
        f"{batch.window_groups} groups, {batch.staleness_versions} batches, are out at once and keep {busy} of" in text
    )
    assert plan.warnings
    for warning in plan.warnings:
        assert warning.text(plan.name) in text


def test_the_sum_names_the_pools_that_it_leaves_out() -> None:
    plan = unpinned_plan_of("reference-p5en")
    text = words(shown(plan))
    assert plan.cost.unpriced
    assert f"at most {plan.cost.usd_per_hour_max:,.2f} an hour" in text
    assert f"{', '.join(plan.cost.unpriced)} left out" in text


def test_without_any_price_no_sum_is_claimed() -> None:
    plan = unpinned_plan_of("starter-p5en")
    nothing = tuple(replace(cost, usd_per_node_hour=None) for cost in plan.cost.pools)
    unpriced = replace(
        plan, cost=replace(plan.cost, pools=nothing, unpriced=tuple(cost.pool for cost in nothing), usd_per_hour_max=0)
    )
    text = words(shown(unpriced))
    assert "no pool has a price with a source" in text
    assert "at most 0.00" not in text


def test_a_capacity_block_shows_when_it_saves_and_goes() -> None:
    block = unpinned_plan_of("p6-b200").pool("trainer").capacity.block
    assert block is not None
    text = words(shown(unpinned_plan_of("p6-b200")))
    assert f"{block.starts:%Y-%m-%d %H:%M} to {block.ends:%Y-%m-%d %H:%M} UTC" in text
    assert f"save at {block.save_signal_at:%d %H:%M}, down to 0 at {block.scale_down_at:%d %H:%M}" in text


def test_unresolved_pins_are_listed_and_pinned_plans_have_none() -> None:
    plan = unpinned_plan_of("starter-p5en")
    text = words(shown(plan))
    assert f"unresolved {len(plan.unresolved)} pins" in text
    assert "moerl lock starter-p5en" in text
    assert all(pin in text for pin in plan.unresolved)
    assert "unresolved" not in shown(plan_of("starter-p5en"))


def test_faults_come_before_warnings_and_markup_in_a_value_is_kept() -> None:
    found = Finding(rule="a.b", key="k", value="[/red] :warning:", why="it is wrong", fix="Write c.")
    buffer = io.StringIO()
    print_findings((replace(found, severity="warning"), found), "x.yaml", Console(file=buffer, width=40))
    text = "x.yaml: k: [/red] :warning:, it is wrong. Write c. [a.b]"
    assert buffer.getvalue() == f"fault {text}\nwarning {text}\n"
