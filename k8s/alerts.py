"""Alert rules of a run. They ask for outcomes: exit code 0 and ready pods are what reward 0 and a TCP fallback look like too.

Expressions are PromQL over the names in `k8s.metrics` and nothing else; numbers that the Plan has come from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from infra.config.plan import Plan
from k8s.names import PREFLIGHT, RUN_NAMESPACE

Severity = Literal["critical", "warning"]

TASK_AGE_SECONDS = 3_600
STEP_SECONDS = 3_600
"""Without the save that a step may end with."""
RDMA_MINUTES = 10
SAVE_SHARE = 0.8
"""Of the plan's longest save, from which health windows and communication timeouts follow."""
TRAINING_SHARE = 0.2
"""Of the time that RDMA is counted over, so that a run which mostly waits for samples does not count as one that should
send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule. `lasts` is how long the expression must hold, as Prometheus writes durations."""

    name: str
    expression: str
    lasts: str
    severity: Severity
    summary: str
    action: str

    def rule(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action},
        }


def outcome_alerts(plan: Plan) -> tuple[Alert, ...]:
    """Whether what is trained on makes sense. Engines may lag as far behind as samples that are still trained on."""
    stale, gates = plan.workload.batch.staleness_versions, plan.workload.gates
    return (
        Alert(
            name="MoerlRewardNearZero",
            expression=f"abs(max(moerl_trainer_reward_mean)) < {gates.reward_near_zero} and max(moerl_trainer_step) > 3",
            lasts="30m",
            severity="critical",
            summary="The mean reward is {{ $value }}.",
            action="Read samples of the last batch; garbage from every engine is a split of experts or a weight format.",
        ),
        Alert(
            name="MoerlRepetition",
            expression=f"max(moerl_trainer_repetition_share) > {gates.repetition_share_max}",
            lasts="15m",
            severity="critical",
            summary="{{ $value | humanizePercentage }} of the samples repeat themselves.",
            action="Compare the engines' weight checksums with the published version before training on.",
        ),
        Alert(
            name="MoerlTruncated",
            expression=f"max(moerl_trainer_truncated_share) > {gates.truncated_share_max}",
            lasts="15m",
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the samples hit the length limit.",
            action="Raise the limit, or read samples: a policy that never stops looks the same.",
        ),
        Alert(
            name="MoerlWeightVersionMix",
            expression="max(moerl_agent_weight_version)"
            f" - min(moerl_agent_weight_version and on (pod) moerl_agent_ready == 1) > {stale}",
            lasts="15m",
            severity="warning",
            summary="Engines that take tasks are {{ $value }} versions apart.",
            action="Look at the fetch and reload times of the engine that lags; its samples will be refused as stale.",
        ),
        Alert(
            name="MoerlWeightsNotTaken",
            expression=f"max(moerl_trainer_weight_version) - max(moerl_agent_weight_version) > {stale}",
            lasts="15m",
            severity="critical",
            summary="The whole fleet is {{ $value }} versions behind what the trainer published.",
            action="Check the newest manifest in the weights bucket and the agents' logs.",
        ),
    )


def progress_alerts(plan: Plan) -> tuple[Alert, ...]:
    """Whether the run goes on, and how engines leave it."""
    window_seconds = plan.workload.trainer.save_seconds_max
    budgets = tuple(
        Alert(
            name="MoerlDrainOverBudget",
            expression=f'moerl_agent_draining_seconds{{pool="{rollout.pool}"}} > {rollout.engine.drain_budget_seconds}',
            lasts="0m",
            severity="warning",
            summary="{{ $labels.pod }} has drained for {{ $value }} s.",
            action="Its tasks come back by their lease; find what held the drain before Spot ends one in the middle.",
        )
        for rollout in plan.workload.rollouts
    )
    return (
        Alert(
            name="MoerlTaskAge",
            expression=f"max(moerl_trainer_oldest_task_age_seconds) > {TASK_AGE_SECONDS}",
            lasts="5m",
            severity="warning",
            summary="A task has been out for {{ $value | humanizeDuration }}.",
            action="Too few engines, or a task that fails on each: compare the queue with what is in flight.",
        ),
        Alert(
            name="MoerlStepStalled",
            expression=f"time() - max(moerl_trainer_step_started_timestamp_seconds) > {STEP_SECONDS + window_seconds}",
            lasts="5m",
            severity="critical",
            summary="The step in work began {{ $value | humanizeDuration }} ago.",
            action="The phase on the run dashboard says whether it waits for samples, trains, saves or publishes.",
        ),
        Alert(
            name="MoerlSaveNearWindow",
            expression=f"max(moerl_trainer_save_seconds) > {SAVE_SHARE * window_seconds:.0f}",
            lasts="0m",
            severity="warning",
            summary="The last save took {{ $value | humanizeDuration }}.",
            action=f"After {window_seconds} s Ray may call a healthy node dead: use faster scratch, or more nodes.",
        ),
        Alert(
            name="MoerlNoEngine",
            expression="max(moerl_trainer_tasks_outstanding) > 0 unless on () sum(moerl_agent_ready) > 0",
            lasts="30m",
            severity="warning",
            summary="{{ $value }} tasks wait, and no engine takes any.",
            action="Spot may have no capacity for hours; the capacity events in CloudWatch say so.",
        ),
        Alert(
            name="MoerlEngineSilent",
            expression="sum by (pod) (rate(sglang:generation_tokens_total[10m])) == 0"
            " and on (pod) moerl_agent_tasks_in_flight > 0",
            lasts="10m",
            severity="warning",
            summary="{{ $labels.pod }} holds tasks and generates nothing.",
            action="Read the engine's log; its watchdog ends a stuck one after 15 minutes.",
        ),
        Alert(
            name="MoerlTasksDeadLettered",
            expression='sum(increase(moerl_agent_tasks_total{outcome="dead_lettered"}[30m])) > 0',
            lasts="0m",
            severity="warning",
            summary="{{ $value }} tasks failed too often and were set aside.",
            action="Their reasons are in the trainer's log and in the weights bucket, below samples/RUN/ATTEMPT/dead/.",
        ),
        Alert(
            name="MoerlPreflightFailed",
            expression=f'sum by (job_name) (kube_job_status_failed{{namespace="{RUN_NAMESPACE}",job_name=~"{PREFLIGHT}.*"}})'
            " > 0",
            lasts="0m",
            severity="critical",
            summary="{{ $labels.job_name }} found a node or an image that may not be used.",
            action="Its log ends with one line per check: what, found, needed, how to fix it.",
        ),
        *budgets,
    )


def fabric_alerts(plan: Plan) -> tuple[Alert, ...]:
    """Whether EFA carries what it should, and GPUs are sound. NCCL falls back to TCP without a word."""
    trainer = plan.workload.trainer
    alerts = []
    if trainer.workers > 1 and plan.pool(trainer.pool).efa_per_node:
        # The phase `train` includes Megatron's own save, which sends nothing: the longest one must not fill the window.
        minutes = max(RDMA_MINUTES, ceil(trainer.save_seconds_max / 60) + 1)
        alerts.append(
            Alert(
                name="MoerlEfaSilentTrainer",
                expression=f"{_rdma_rate(trainer.pool, minutes)} == 0"
                f' and on () max(avg_over_time(moerl_trainer_phase{{phase="train"}}[{minutes}m])) > {TRAINING_SHARE}',
                lasts="5m",
                severity="critical",
                summary="{{ $labels.node }} trains and sends nothing by RDMA.",
                action="Look for `efa` in the NCCL_DEBUG=INFO lines of its worker; run the preflight Job on the pool.",
            )
        )
    for rollout in plan.workload.rollouts:
        if rollout.pods.pods_per_group > 1 and rollout.pods.engine.efa:
            alerts.append(
                Alert(
                    name="MoerlEfaSilentEngine",
                    expression=f"{_rdma_rate(rollout.pool, RDMA_MINUTES)} == 0"
                    f' and on (node) sum by (node) (sglang:num_running_reqs{{pool="{rollout.pool}"}}) > 0',
                    lasts="5m",
                    severity="critical",
                    summary="{{ $labels.node }} generates as part of a larger engine and sends nothing by RDMA.",
                    action="Expert traffic goes over TCP: compare the image's libfabric with the driver, run preflight.",
                )
            )
    return (
        *alerts,
        Alert(
            name="MoerlEfaErrors",
            expression="sum by (node) (rate(node_amazonefa_rdma_write_wr_err[10m])"
            " + rate(node_amazonefa_rdma_read_wr_err[10m])) > 0",
            lasts="10m",
            severity="warning",
            summary="RDMA requests of {{ $labels.node }} fail.",
            action="One peer that went away explains a burst; errors that stay do not: replace the node.",
        ),
        Alert(
            name="MoerlGpuXid",
            expression="max by (node, gpu) (DCGM_FI_DEV_XID_ERRORS) > 0",
            lasts="1m",
            severity="warning",
            summary="GPU {{ $labels.gpu }} of {{ $labels.node }} reported Xid {{ $value }}.",
            action="NVIDIA's list of Xids says which end a job and which need a new node.",
        ),
    )


def groups(plan: Plan) -> list[dict[str, Any]]:
    """Rule groups of a PrometheusRule."""
    return [
        {"name": f"moerl-{name}", "interval": "30s", "rules": [alert.rule() for alert in alerts]}
        for name, alerts in (
            ("outcomes", outcome_alerts(plan)),
            ("progress", progress_alerts(plan)),
            ("fabric", fabric_alerts(plan)),
        )
    ]


def _rdma_rate(pool: str, minutes: int) -> str:
    """Bytes a second that each node of the pool moves by RDMA on its own account."""
    return (
        f'sum by (node) (rate(node_amazonefa_rdma_write_bytes{{pool="{pool}"}}[{minutes}m])'
        f' + rate(node_amazonefa_rdma_read_bytes{{pool="{pool}"}}[{minutes}m]))'
    )
