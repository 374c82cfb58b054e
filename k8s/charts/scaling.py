"""KEDA: engines follow the task queue, environment workers follow the engines.

The queue is counted with what is in flight: a task leaves the queue only when its last sample is stored, so a fleet that
scaled on waiting tasks alone would end engines that still work. A pool wants one engine for each `queue_length` tasks, which
is what an engine takes where the pool is alone; the trainer's window of tasks starts as many as `engines_busy`.

Scaling in stops engines, and a stopped engine hands its tasks back; so it is slow, and scaling out is not. KEDA reads the
queue with its own operator's role, and is the only owner of the replica counts.
"""

from __future__ import annotations

from typing import Any

from infra.config.plan import Plan
from k8s.charts.rollout import fleet_name
from k8s.charts.workers import worker_name
from k8s.manifest import Object, component, obj
from k8s.names import ENVIRONMENT, ROLLOUT, RUN_NAMESPACE

API = "keda.sh/v1alpha1"
QUEUE_READER = "task-queue-reader"
POLLING_SECONDS = 15
COOLDOWN_SECONDS = 900
"""From the last task to no engine at all: longer than the trainer's step, so that a save does not empty the fleet."""
STABILIZATION_SECONDS = 600
SCALE_IN_PERCENT, SCALE_IN_PERIOD_SECONDS = 25, 300
CPU_UTILIZATION_PERCENT = 70


def objects(plan: Plan) -> tuple[Object, ...]:
    """One ScaledObject per rollout pool and per environment pool that has a range, and the identity they read with."""
    reader = obj(
        API,
        "TriggerAuthentication",
        QUEUE_READER,
        namespace=RUN_NAMESPACE,
        spec={"podIdentity": {"provider": "aws", "identityOwner": "keda"}},
    )
    engines = tuple(
        _scaled(
            fleet_name(rollout),
            ROLLOUT,
            target=("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
            least=rollout.engine.engines_min,
            most=rollout.geometry.engines_max,
            triggers=[_queue_trigger(plan, rollout.queue_length)],
        )
        for rollout in plan.workload.rollouts
    )
    tasks_per_engine = min(rollout.engine.tasks_max for rollout in plan.workload.rollouts)
    workers = tuple(
        _scaled(
            worker_name(worker),
            ENVIRONMENT,
            target=("apps/v1", "Deployment"),
            least=worker.replicas_min,
            most=worker.replicas_max,
            # The queue wakes the first worker, which its own load cannot; from there the busier of the two decides.
            triggers=[_queue_trigger(plan, tasks_per_engine), _cpu_trigger()],
        )
        for worker in plan.workload.cpu_workers
        if worker.role == "environment"
    )
    return (reader, *engines, *workers)


def _scaled(
    name: str, part: str, *, target: tuple[str, str], least: int, most: int, triggers: list[dict[str, Any]]
) -> Object:
    api_version, kind = target
    behavior = {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": POLLING_SECONDS}],
            "selectPolicy": "Max",
        },
        "scaleDown": {
            "stabilizationWindowSeconds": STABILIZATION_SECONDS,
            "policies": [{"type": "Percent", "value": SCALE_IN_PERCENT, "periodSeconds": SCALE_IN_PERIOD_SECONDS}],
            "selectPolicy": "Max",
        },
    }
    return obj(
        API,
        "ScaledObject",
        name,
        namespace=RUN_NAMESPACE,
        labels=component(part),
        spec={
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": name},
            "minReplicaCount": least,
            "maxReplicaCount": most,
            "pollingInterval": POLLING_SECONDS,
            "cooldownPeriod": COOLDOWN_SECONDS,
            "advanced": {
                # Deleting the ScaledObject must not start engines.
                "restoreToOriginalReplicaCount": False,
                "horizontalPodAutoscalerConfig": {"name": f"keda-{name}", "behavior": behavior},
            },
            "triggers": triggers,
        },
    )


def _queue_trigger(plan: Plan, tasks_per_replica: int) -> dict[str, Any]:
    return {
        "type": "aws-sqs-queue",
        "metricType": "AverageValue",
        "authenticationRef": {"name": QUEUE_READER, "kind": "TriggerAuthentication"},
        "metadata": {
            "queueURL": plan.queue.task_url,
            "awsRegion": plan.region,
            "queueLength": str(tasks_per_replica),
            "activationQueueLength": "0",
            "scaleOnInFlight": "true",
        },
    }


def _cpu_trigger() -> dict[str, Any]:
    return {"type": "cpu", "metricType": "Utilization", "metadata": {"value": str(CPU_UTILIZATION_PERCENT)}}
