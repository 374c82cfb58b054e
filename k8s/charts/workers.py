"""Environment and buffer workers: one on each node of their pools.

    environment   `moerl_runtime environment --pool POOL --listen IP:PORT`: steps and rewards of episodes for the rollout
                  agents. It may run what a model wrote: no AWS role, no API token, no way out, a read-only root.
    buffer        `moerl_runtime buffer --pool POOL --listen IP:PORT`: finished samples in memory, so that the trainer reads
                  a batch from two hosts and not object by object. S3 stays the truth; a sample's host follows from its
                  id and the ordinal, which is why these pods have lasting names.

Both answer `/live` and `/ready` where they serve, and metrics on the metrics port. How much memory and how many processes
they have they read from their own cgroup.
"""

from __future__ import annotations

from typing import Any

from infra.config.plan import Plan
from infra.config.pool_plan import LABEL_DOMAIN
from infra.config.workload_plan import CpuWorkerPlan
from k8s import pods
from k8s.charts import run_config
from k8s.daemonsets import NO_GPUS
from k8s.manifest import Object, component, obj
from k8s.names import BUFFER, ENVIRONMENT, RUN_NAMESPACE, WORKER_PRIORITY
from k8s.ports import BUFFER_PORT, ENVIRONMENT_PORT, METRICS_PORT, METRICS_PORT_NAME, SERVE_PORT_NAME

Spec = dict[str, Any]

PORTS = {ENVIRONMENT: ENVIRONMENT_PORT, BUFFER: BUFFER_PORT}
GRACE_SECONDS = {ENVIRONMENT: 60, BUFFER: 30}
"""An environment lets its steps end; a buffer holds copies alone."""
TMP_GIB = 4


def objects(plan: Plan, *, image: str) -> tuple[Object, ...]:
    """Workloads of every environment and buffer pool, and one Service per role. `image` is the run's, by digest."""
    workers = plan.workload.cpu_workers
    made = tuple(_deployment(plan, worker, image) for worker in workers if worker.role == ENVIRONMENT)
    made += tuple(_stateful_set(plan, worker, image) for worker in workers if worker.role == BUFFER)
    roles = [role for role in (ENVIRONMENT, BUFFER) if any(worker.role == role for worker in workers)]
    return (*(_service(role) for role in roles), *made)


def worker_name(worker: CpuWorkerPlan) -> str:
    """Name of the Deployment or StatefulSet of a pool."""
    return f"{worker.role}-{worker.pool}"


def _deployment(plan: Plan, worker: CpuWorkerPlan, image: str) -> Object:
    """No replica count: KEDA owns it."""
    return obj(
        "apps/v1",
        "Deployment",
        worker_name(worker),
        namespace=RUN_NAMESPACE,
        labels=component(ENVIRONMENT),
        spec={
            "selector": {"matchLabels": _labels(worker)},
            # Pods fill their nodes, so a new one cannot stand beside an old one.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
            "template": _pod(plan, worker, image),
        },
    )


def _stateful_set(plan: Plan, worker: CpuWorkerPlan, image: str) -> Object:
    return obj(
        "apps/v1",
        "StatefulSet",
        worker_name(worker),
        namespace=RUN_NAMESPACE,
        labels=component(BUFFER),
        spec={
            "replicas": worker.replicas_max,
            "serviceName": BUFFER,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": _labels(worker)},
            "template": _pod(plan, worker, image),
        },
    )


def _service(role: str) -> Object:
    """Environments share an address; each buffer has its own."""
    port = {"name": SERVE_PORT_NAME, "port": PORTS[role], "targetPort": SERVE_PORT_NAME, "protocol": "TCP"}
    spec: Spec = {"type": "ClusterIP", "selector": component(role), "ports": [port]}
    if role == BUFFER:
        spec["clusterIP"] = "None"
    return obj("v1", "Service", role, namespace=RUN_NAMESPACE, labels=component(role), spec=spec)


def _labels(worker: CpuWorkerPlan) -> dict[str, str]:
    return component(worker.role) | {f"{LABEL_DOMAIN}/pool": worker.pool}


def _pod(plan: Plan, worker: CpuWorkerPlan, image: str) -> Spec:
    port = PORTS[worker.role]
    config, config_mount = run_config.volume()
    container = pods.container(
        worker.role,
        image,
        worker.pod,
        command=["python", "-m", "moerl_runtime", worker.role],
        args=["--pool", worker.pool, "--listen", f"$(POD_IP):{port}"],
        variables=pods.base_variables(plan) | NO_GPUS,
        mounts=[
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a mount point of the pod's own
            config_mount,
        ],
        ports={SERVE_PORT_NAME: port, METRICS_PORT_NAME: METRICS_PORT},
        security=pods.restricted() | {"readOnlyRootFilesystem": True},
        startupProbe=_probe("/live", port, period_seconds=5, failures=60),
        livenessProbe=_probe("/live", port, period_seconds=30, failures=10),
        readinessProbe=_probe("/ready", port, period_seconds=10, failures=3),
    )
    return pods.pod_template(
        _labels(worker),
        {
            "serviceAccountName": worker.role,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": WORKER_PRIORITY,
            "terminationGracePeriodSeconds": GRACE_SECONDS[worker.role],
            **pods.on_pool(plan.pool(worker.pool)),
            "containers": [pods.with_pod_ip(container)],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": f"{TMP_GIB}Gi"}},
                config,
            ],
        },
    )


def _probe(path: str, port: int, *, period_seconds: int, failures: int) -> Spec:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
