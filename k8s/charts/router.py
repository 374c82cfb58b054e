"""The router of broadcast mode: one stable address in front of engines whose weights the trainer broadcasts.

Engines are registered by their agents. The router's own discovery is off: it keeps pods that are gone (sgl-project/sglang
32322, 30270, 26842). Its health checks are quick, since by default a dead worker stays for three minutes.
"""

from __future__ import annotations

from typing import Any

from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from k8s import pods
from k8s.daemonsets import NO_GPUS
from k8s.manifest import Object, component, obj
from k8s.names import ROLLOUT, RUN_NAMESPACE, TRAINER, WORKER_PRIORITY
from k8s.ports import ENGINE_PORT, METRICS_PORT, METRICS_PORT_NAME, ROUTER_PORT

ROUTER = "router"
URL = f"http://{ROUTER}.{RUN_NAMESPACE}.svc:{ROUTER_PORT}"
RESOURCES = PodResources(cpu_millis=2_000, memory_mib=4_096, ephemeral_gib=2)
SHUTDOWN_SECONDS, GRACE_SECONDS = 90, 110
REQUEST_SECONDS = 1_800
FLAGS = (
    ("--host", "$(POD_IP)"),
    ("--port", str(ROUTER_PORT)),
    ("--policy", "cache_aware"),
    ("--health-check-interval-secs", "10"),
    ("--health-check-timeout-secs", "5"),
    ("--health-failure-threshold", "2"),
    ("--request-timeout-secs", str(REQUEST_SECONDS)),
    ("--shutdown-grace-period-secs", str(SHUTDOWN_SECONDS)),
    ("--prometheus-host", "$(POD_IP)"),
    ("--prometheus-port", str(METRICS_PORT)),
    ("--log-level", "info"),
)
"""Of sglang-router 0.3.2 (router_args.py of its wheel); the image of every stack carries it, since the trainer imports it."""


def objects(plan: Plan, *, image: str) -> tuple[Object, ...]:
    """Deployment, Service, and the flows that broadcast mode adds to the run's network policies."""
    system = next(pool for pool in plan.pools if pool.role == "system")
    router = pods.container(
        ROUTER,
        image,
        RESOURCES,
        command=["python", "-m", "sglang_router.launch_router"],
        args=[text for flag in FLAGS for text in flag],
        variables=pods.base_variables(plan) | NO_GPUS,
        ports={"http": ROUTER_PORT, METRICS_PORT_NAME: METRICS_PORT},
        startupProbe=_probe("/liveness", failures=60, period_seconds=5),
        livenessProbe=_probe("/liveness", failures=6, period_seconds=10),
        readinessProbe=_probe("/readiness", failures=3, period_seconds=10),
    )
    account = obj("v1", "ServiceAccount", ROUTER, namespace=RUN_NAMESPACE, automountServiceAccountToken=False)
    spec = {
        "serviceAccountName": ROUTER,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": WORKER_PRIORITY,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **pods.on_pool(system),
        "containers": [pods.with_pod_ip(router)],
    }
    selector = {"matchLabels": component(ROUTER)}
    deployment = obj(
        "apps/v1",
        "Deployment",
        ROUTER,
        namespace=RUN_NAMESPACE,
        labels=component(ROUTER),
        spec={
            # The tree that makes it cache-aware lives in one process.
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": selector,
            "template": pods.pod_template(component(ROUTER), spec),
        },
    )
    service = obj(
        "v1",
        "Service",
        ROUTER,
        namespace=RUN_NAMESPACE,
        labels=component(ROUTER),
        spec={
            "type": "ClusterIP",
            "selector": component(ROUTER),
            "ports": [{"name": "http", "port": ROUTER_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    )
    return account, deployment, service, *_flows()


def _probe(path: str, *, failures: int, period_seconds: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": ROUTER_PORT},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _flows() -> tuple[Object, ...]:
    """Router to engines, trainer and agents to the router, trainer to engines (weight updates over HTTP and NCCL)."""
    every = [{"protocol": "TCP"}]
    to_engine = [{"protocol": "TCP", "port": ENGINE_PORT}]
    to_router = [{"protocol": "TCP", "port": ROUTER_PORT}]
    return (
        _flow("router", ROUTER, came=((ROLLOUT, to_router), (TRAINER, to_router)), goes=((ROLLOUT, to_engine),)),
        _flow(
            "broadcast-engines",
            ROLLOUT,
            came=((ROUTER, to_engine), (TRAINER, every)),
            goes=((ROUTER, to_router), (TRAINER, every)),
        ),
        _flow("broadcast-trainer", TRAINER, came=((ROLLOUT, every),), goes=((ROUTER, to_router), (ROLLOUT, every))),
    )


def _flow(name: str, of: str, *, came: tuple[Any, ...], goes: tuple[Any, ...]) -> Object:
    def peers(direction: str, flows: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [
            {direction: [{"podSelector": {"matchLabels": component(peer)}}], "ports": ports} for peer, ports in flows
        ]

    return obj(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        name,
        namespace=RUN_NAMESPACE,
        spec={
            "podSelector": {"matchLabels": component(of)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": peers("from", came),
            "egress": peers("to", goes),
        },
    )
