"""Two Grafana dashboards as plain data: the fleet (what generates) and the run (what is learnt)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from infra.config.plan import Plan

Panel = dict[str, Any]
SCHEMA_VERSION = 39
"""Grafana 11 and later read it; newer ones migrate it by themselves."""
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel: a title, a Grafana unit, and (legend, expression) pairs."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    kind: Literal["timeseries", "stat"] = "timeseries"


def fleet(plan: Plan) -> dict[str, Any]:
    """Engines, tasks, tokens, interruptions, EFA and GPUs of the rollout pools."""
    pools = "|".join(rollout.pool for rollout in plan.workload.rollouts)
    of_fleet = f'{{pool=~"{pools}"}}'
    return _dashboard(
        plan,
        "fleet",
        "Rollout fleet",
        (
            Chart(
                title="Engines that take tasks",
                unit="short",
                series=(
                    ("{{pool}}", "sum by (pool) (moerl_agent_ready)"),
                    ("{{pool}}, held back", "sum by (pool) (moerl_agent_held)"),
                ),
                kind="stat",
            ),
            Chart(
                title="Tasks in flight",
                unit="short",
                series=(("{{pool}}", "sum by (pool) (moerl_agent_tasks_in_flight)"),),
                kind="stat",
            ),
            Chart(
                title="Tokens per second",
                unit="short",
                series=(("{{pool}}", f"sum by (pool) (rate(sglang:generation_tokens_total{of_fleet}[5m]))"),),
                kind="stat",
            ),
            Chart(
                title="Tokens per second by engine",
                unit="short",
                series=(("{{pod}}", f"sum by (pod) (rate(sglang:generation_tokens_total{of_fleet}[5m]))"),),
            ),
            Chart(
                title="Requests",
                unit="short",
                series=(
                    ("running", f"sum(sglang:num_running_reqs{of_fleet})"),
                    ("waiting", f"sum(sglang:num_queue_reqs{of_fleet})"),
                    ("retracted", f"sum(sglang:num_retracted_reqs{of_fleet})"),
                ),
            ),
            Chart(
                title="KV cache in use",
                unit="percentunit",
                series=(("{{pod}}", f"max by (pod) (sglang:token_usage{of_fleet})"),),
            ),
            Chart(
                title="Weight version",
                unit="none",
                series=(
                    ("published", "max(moerl_trainer_weight_version)"),
                    ("newest engine", "max(moerl_agent_weight_version)"),
                    ("oldest engine", "min(moerl_agent_weight_version and on (pod) moerl_agent_ready == 1)"),
                ),
            ),
            Chart(
                title="Weight fetch and reload",
                unit="s",
                series=(("{{pod}}", "max by (pod) (moerl_agent_weight_load_seconds)"),),
            ),
            Chart(
                title="Drains",
                unit="short",
                series=(("{{reason}}", "sum by (reason) (increase(moerl_agent_interruptions_total[30m]))"),),
            ),
            Chart(
                title="Time in drain",
                unit="s",
                series=(("{{pod}}", "max by (pod) (moerl_agent_draining_seconds) > 0"),),
            ),
            Chart(
                title="Tasks by outcome",
                unit="short",
                series=(("{{outcome}}", "sum by (outcome) (rate(moerl_agent_tasks_total[5m]))"),),
            ),
            Chart(
                title="Samples stored per second",
                unit="short",
                series=(
                    ("{{pool}}", "sum by (pool) (rate(moerl_agent_samples_total[5m]))"),
                    ("{{pool}}, no grader had time", "sum by (pool) (rate(moerl_agent_grader_busy_total[5m]))"),
                ),
            ),
            Chart(title="EFA bytes per second by node", unit="Bps", series=_efa(of_fleet)),
            Chart(
                title="GPUs busy",
                unit="percent",
                series=(("{{node}}", f"avg by (node) (DCGM_FI_DEV_GPU_UTIL{of_fleet})"),),
            ),
            Chart(
                title="GPU memory",
                unit="mbytes",
                series=(("{{node}}", f"max by (node) (DCGM_FI_DEV_FB_USED{of_fleet})"),),
            ),
            Chart(
                title="Pods by phase",
                unit="short",
                series=(
                    ("{{phase}}", f'sum by (phase) (kube_pod_status_phase{{namespace="{plan.names.namespace}"}})'),
                ),
            ),
        ),
    )


def run(plan: Plan) -> dict[str, Any]:
    """Steps, rewards, queue and fabric of the trainer."""
    of_trainer = f'{{pool="{plan.workload.trainer.pool}"}}'
    return _dashboard(
        plan,
        "run",
        "Training run",
        (
            Chart(title="Step", unit="none", series=(("step", "max(moerl_trainer_step)"),), kind="stat"),
            Chart(
                title="Last checkpoint",
                unit="none",
                series=(("step", "max(moerl_trainer_checkpoint_step)"),),
                kind="stat",
            ),
            Chart(
                title="Age of the step in work",
                unit="s",
                series=(("age", "time() - max(moerl_trainer_step_started_timestamp_seconds)"),),
                kind="stat",
            ),
            Chart(title="Reward", unit="none", series=(("mean", "max(moerl_trainer_reward_mean)"),)),
            Chart(
                title="Samples that are not right",
                unit="percentunit",
                series=(
                    ("repetitive", "max(moerl_trainer_repetition_share)"),
                    ("truncated", "max(moerl_trainer_truncated_share)"),
                ),
            ),
            Chart(
                title="Time by phase",
                unit="percentunit",
                series=(("{{phase}}", "sum by (phase) (rate(moerl_trainer_phase_seconds_total[10m]))"),),
            ),
            Chart(
                title="Tasks outstanding",
                unit="short",
                series=(("outstanding", "max(moerl_trainer_tasks_outstanding)"),),
            ),
            Chart(
                title="Oldest task",
                unit="s",
                series=(("age", "max(moerl_trainer_oldest_task_age_seconds)"),),
            ),
            Chart(
                title="Results",
                unit="short",
                series=(
                    ("{{outcome}}", "sum by (outcome) (rate(moerl_trainer_results_total[5m]))"),
                    ("issued again", "sum(rate(moerl_trainer_tasks_reissued_total[5m]))"),
                ),
            ),
            Chart(
                title="Age of samples",
                unit="none",
                series=(("versions", "max(moerl_trainer_staleness_versions)"),),
            ),
            Chart(title="EFA bytes per second by node", unit="Bps", series=_efa(of_trainer)),
            Chart(
                title="EFA packets dropped",
                unit="short",
                series=(("{{node}}", f"sum by (node) (rate(node_amazonefa_rx_drops{of_trainer}[5m]))"),),
            ),
            Chart(
                title="Tensor cores active",
                unit="percentunit",
                series=(("{{node}}", f"avg by (node) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{of_trainer})"),),
            ),
            Chart(
                title="GPU memory",
                unit="mbytes",
                series=(("{{node}}", f"max by (node) (DCGM_FI_DEV_FB_USED{of_trainer})"),),
            ),
        ),
    )


def expressions(dashboard: dict[str, Any]) -> tuple[str, ...]:
    """Every query of a dashboard."""
    return tuple(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


def _efa(selector: str) -> tuple[tuple[str, str], ...]:
    return (
        ("{{node}} sent", f"sum by (node) (rate(node_amazonefa_tx_bytes{selector}[5m]))"),
        ("{{node}} received", f"sum by (node) (rate(node_amazonefa_rx_bytes{selector}[5m]))"),
        ("{{node}} RDMA", f"sum by (node) (rate(node_amazonefa_rdma_write_bytes{selector}[5m]))"),
    )


def _dashboard(plan: Plan, name: str, title: str, charts: Sequence[Chart]) -> dict[str, Any]:
    return {
        "uid": f"moerl-{plan.name}-{name}",
        "title": f"{title}: {plan.name}",
        "tags": ["moerl", plan.name],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
        },
        "panels": [_panel(index, chart) for index, chart in enumerate(charts)],
    }


def _panel(index: int, chart: Chart) -> Panel:
    per_row = COLUMNS // PANEL_WIDTH
    return {
        "id": index + 1,
        "type": chart.kind,
        "title": chart.title,
        "datasource": DATASOURCE,
        "gridPos": {
            "x": index % per_row * PANEL_WIDTH,
            "y": index // per_row * PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "h": PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": chart.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": DATASOURCE, "legendFormat": legend, "expr": expression}
            for place, (legend, expression) in enumerate(chart.series)
        ],
    }
