"""What Prometheus scrapes, what it alerts on, and what Grafana shows of it.

Monitors sit in the monitoring namespace and find pods by component. Every series gets `node`, `pool` and `role`: for the
run's pods from the pod, for agents of the node (EFA and DCGM exporters) from the node's own labels, so that a rule can set
a node's bytes beside what its pod does. The operator of kube-prometheus-stack takes objects with its release's label.
"""

from __future__ import annotations

import json
from typing import Any

from infra.config.plan import Plan
from infra.config.pool_plan import LABEL_DOMAIN
from k8s import alerts, dashboards
from k8s.charts.router import ROUTER
from k8s.manifest import Object, component, obj
from k8s.names import BUFFER, ENVIRONMENT, MONITORING_NAMESPACE, ROLLOUT, RUN_NAMESPACE, SYSTEM_NAMESPACE, TRAINER
from k8s.ports import METRICS_PORT_NAME

API = "monitoring.coreos.com/v1"
RELEASE = {"release": "kube-prometheus-stack"}
DASHBOARD_LABEL = {"grafana_dashboard": "1"}
"""The label that the stack's Grafana sidecar loads by default."""
DCGM_EXPORTER, EFA_EXPORTER = "dcgm-exporter", "efa-exporter"
SCRAPE_SECONDS, SCRAPE_TIMEOUT_SECONDS = 15, 10
SAMPLE_LIMIT = 50_000
"""Series of one pod; an engine with every scheduler's histograms has a few thousand."""


def objects(plan: Plan) -> tuple[Object, ...]:
    """Monitors, rules and dashboards."""
    return (
        _pod_monitor(ROLLOUT, (ROLLOUT,), RUN_NAMESPACE, paths=("/metrics", "/engine/metrics")),
        _pod_monitor(TRAINER, (TRAINER,), RUN_NAMESPACE, paths=("/metrics", "/framework/metrics")),
        _pod_monitor("workers", (ENVIRONMENT, BUFFER, ROUTER), RUN_NAMESPACE),
        _pod_monitor("node-agents", (DCGM_EXPORTER, EFA_EXPORTER), SYSTEM_NAMESPACE, of_node=True),
        obj(
            API,
            "PrometheusRule",
            "moerl-run",
            namespace=MONITORING_NAMESPACE,
            labels=RELEASE,
            spec={"groups": alerts.groups(plan)},
        ),
        _dashboard("fleet", dashboards.fleet(plan)),
        _dashboard("run", dashboards.run(plan)),
    )


def _pod_monitor(
    name: str,
    components: tuple[str, ...],
    namespace: str,
    *,
    paths: tuple[str, ...] = ("/metrics",),
    of_node: bool = False,
) -> Object:
    (key,) = component(name)
    return obj(
        API,
        "PodMonitor",
        f"moerl-{name}",
        namespace=MONITORING_NAMESPACE,
        labels=RELEASE,
        spec={
            "namespaceSelector": {"matchNames": [namespace]},
            "selector": {"matchExpressions": [{"key": key, "operator": "In", "values": list(components)}]},
            "attachMetadata": {"node": of_node},
            "sampleLimit": SAMPLE_LIMIT,
            "podMetricsEndpoints": [_endpoint(path, of_node) for path in paths],
        },
    )


def _endpoint(path: str, of_node: bool) -> dict[str, Any]:
    source = "__meta_kubernetes_node_label" if of_node else "__meta_kubernetes_pod_label"
    prefix = f"{source}_{LABEL_DOMAIN.replace('.', '_')}"
    return {
        "port": METRICS_PORT_NAME,
        "path": path,
        "interval": f"{SCRAPE_SECONDS}s",
        "scrapeTimeout": f"{SCRAPE_TIMEOUT_SECONDS}s",
        # The target's own `pool` or `node` would be a user's: ours win.
        "honorLabels": False,
        "relabelings": [
            {"action": "replace", "sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
            {"action": "replace", "sourceLabels": [f"{prefix}_pool"], "targetLabel": "pool"},
            {
                "action": "replace",
                "sourceLabels": [f"{prefix}_{'role' if of_node else 'component'}"],
                "targetLabel": "role",
            },
        ],
    }


def _dashboard(name: str, dashboard: dict[str, Any]) -> Object:
    return obj(
        "v1",
        "ConfigMap",
        f"moerl-dashboard-{name}",
        namespace=MONITORING_NAMESPACE,
        labels=DASHBOARD_LABEL,
        data={f"moerl-{name}.json": json.dumps(dashboard, indent=1, sort_keys=True)},
    )
