"""One file of metric names, and rules and dashboards that name no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from infra.config.gates_plan import GatesPlan
from infra.config.plan import Plan
from k8s import alerts, dashboards
from k8s.metrics import METRICS, TARGET_LABELS
from tests.k8s.promql import read
from tests.shipped import SHIPPED, plan_of


def expressions(plan: Plan) -> Iterator[tuple[str, str]]:
    """(where, expression) of every rule and every panel."""
    for group in alerts.groups(plan):
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    for make in (dashboards.fleet, dashboards.run):
        dashboard = make(plan)
        yield from ((dashboard["title"], expression) for expression in dashboards.expressions(dashboard))


def faults(expression: str) -> list[str]:
    """What is wrong with an expression, by the data file."""
    found, wrong = read(expression), []
    known: set[str] = set(TARGET_LABELS)
    for name, labels, counted in found.selectors:
        metric = METRICS.get(name)
        if metric is None:
            wrong.append(f"{name} is not in the data file")
            continue
        known |= set(metric.labels)
        wrong += [f"{name} has no label {label}" for label in labels if label not in (*metric.labels, *TARGET_LABELS)]
        if counted != (metric.kind == "counter"):
            wrong.append(f"{name} is a {metric.kind}")
    return wrong + [f"no series has a label {label}" for label in found.grouped if label not in known]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_expression_is_well_formed_and_names_known_metrics_and_labels(name: str) -> None:
    checked = 0
    for where, expression in expressions(plan_of(name)):
        assert faults(expression) == [], where
        checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("moerl_agent_redy", "not in the data file"),
        ('moerl_agent_ready{phase="x"}', "has no label phase"),
        ("rate(moerl_agent_ready[5m])", "is a gauge"),
        ("sum(moerl_agent_tasks_total)", "is a counter"),
        ("sum by (phase) (moerl_agent_ready)", "no series has a label phase"),
    ],
)
def test_the_check_finds_what_is_wrong(expression: str, wrong: str) -> None:
    assert any(wrong in fault for fault in faults(expression))


def test_every_metric_is_used_and_has_an_exporter_with_version() -> None:
    used = {
        name
        for environment in SHIPPED
        for _, text in expressions(plan_of(environment))
        for name, _, _ in read(text).selectors
    }
    assert used == set(METRICS)
    assert all(metric.exporter.version and metric.exporter.source and metric.help for metric in METRICS.values())


def test_counters_of_this_package_end_in_total() -> None:
    ours = [metric for metric in METRICS.values() if metric.name.startswith("moerl_")]
    assert all((metric.kind == "counter") == metric.name.endswith("_total") for metric in ours)


def rules_of(plan: Plan) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in alerts.groups(plan) for rule in group["rules"]}


def test_the_outcomes_that_exit_code_zero_hides_each_have_a_rule() -> None:
    assert {
        "MoerlRewardNearZero",
        "MoerlRepetition",
        "MoerlWeightVersionMix",
        "MoerlTaskAge",
        "MoerlStepStalled",
        "MoerlEfaSilentTrainer",
        "MoerlEfaSilentEngine",
        "MoerlPreflightFailed",
        "MoerlDrainOverBudget",
    } <= set(rules_of(plan_of("reference-p5en")))


def test_outcome_rules_have_the_bounds_that_the_entrypoint_has() -> None:
    plan = plan_of("reference-p5en")
    gates = GatesPlan(enforced=True, repetition_share_max=0.11, truncated_share_max=0.22, reward_near_zero=0.33)
    rules = rules_of(replace(plan, workload=replace(plan.workload, gates=gates)))
    assert rules["MoerlRepetition"]["expr"].endswith("> 0.11")
    assert rules["MoerlTruncated"]["expr"].endswith("> 0.22")
    assert "< 0.33 and" in rules["MoerlRewardNearZero"]["expr"]


def test_a_save_is_warned_of_before_it_is_as_long_as_the_health_window() -> None:
    plan = plan_of("reference-p5en")
    trainer = replace(plan.workload.trainer, save_seconds_max=1_000)
    rule = rules_of(replace(plan, workload=replace(plan.workload, trainer=trainer)))["MoerlSaveNearWindow"]
    assert rule["expr"] == "max(moerl_trainer_save_seconds) > 800"
    assert "After 1000 s" in rule["annotations"]["description"]


def test_efa_silence_is_asked_of_those_that_should_speak() -> None:
    """Engines of one node send nothing over EFA, and a trainer of one node neither."""
    assert "MoerlEfaSilentEngine" not in rules_of(plan_of("p6-b200"))
    plan = plan_of("reference-p5en")
    alone = replace(plan, workload=replace(plan.workload, trainer=replace(plan.workload.trainer, workers=1)))
    assert "MoerlEfaSilentTrainer" not in rules_of(alone)
    assert 'pool="trainer"' in rules_of(plan)["MoerlEfaSilentTrainer"]["expr"]
    assert 'pool="rollout"' in rules_of(plan)["MoerlEfaSilentEngine"]["expr"]


@pytest.mark.parametrize("save_seconds_max", [60, 600, 784, 5_000])
def test_no_rule_takes_the_longest_save_for_a_silent_or_stalled_trainer(save_seconds_max: int) -> None:
    """A save is part of the phase `train` and sends nothing by RDMA."""
    plan = plan_of("reference-p5en")
    trainer = replace(plan.workload.trainer, save_seconds_max=save_seconds_max)
    rules = rules_of(replace(plan, workload=replace(plan.workload, trainer=trainer)))
    windows = re.findall(r"\[(\d+)m\]", rules["MoerlEfaSilentTrainer"]["expr"])
    assert len(windows) == 3
    # One scrape before the save and one after it are in the window too.
    assert all(int(minutes) * 60 >= save_seconds_max + 60 for minutes in windows)
    limit = rules["MoerlStepStalled"]["expr"].rpartition("> ")[2]
    assert int(limit) == alerts.STEP_SECONDS + save_seconds_max


def test_engines_may_lag_as_far_as_samples_that_are_trained_on() -> None:
    rules = rules_of(plan_of("reference-p5en", {"workload.trainer.flags": {"max-weight-staleness": 4}}))
    for name in ("MoerlWeightVersionMix", "MoerlWeightsNotTaken"):
        assert rules[name]["expr"].endswith("> 4")


def test_the_drain_rule_has_the_plans_budget() -> None:
    plan = plan_of("reference-p5en")
    rollout = plan.workload.rollouts[0]
    changed = replace(rollout, engine=replace(rollout.engine, drain_budget_seconds=77))
    plan = replace(plan, workload=replace(plan.workload, rollouts=(changed,)))
    assert rules_of(plan)["MoerlDrainOverBudget"]["expr"].endswith("> 77")


@pytest.mark.parametrize("name", SHIPPED)
def test_rules_and_their_texts_are_complete(name: str) -> None:
    for rule in rules_of(plan_of(name)).values():
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert all(rule["annotations"][key].strip() for key in ("summary", "description"))
        templated = set(re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]))
        aggregated = rule["expr"].startswith(("max", "sum", "min"))
        assert templated <= set(read(rule["expr"]).grouped if aggregated else TARGET_LABELS), rule["alert"]
