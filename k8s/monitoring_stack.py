"""Helm values of kube-prometheus-stack: Prometheus, Alertmanager, Grafana, node exporter, kube-state-metrics.

Its images are those that the pinned chart names: the chart's digest fixes their tags. Nothing is published outside the
cluster; people reach Grafana by a port-forward. Grafana's admin password is made by the chart and kept in its Secret.
"""

from __future__ import annotations

from infra.config.plan import Plan
from k8s.daemonsets import requests
from k8s.helm_values import Values, on_system_pools, resources
from k8s.names import MONITORING_NAMESPACE

STORAGE_CLASS = "monitoring-gp3"
RETENTION, RETENTION_GIB, VOLUME_GIB = "15d", 90, 100
NODE_EXPORTER = "prometheus-node-exporter"
_NOT_REACHABLE = ("kubeControllerManager", "kubeEtcd", "kubeProxy", "kubeScheduler")
"""EKS runs these out of reach, or on loopback."""
_RULES_WITHOUT_A_TARGET = (
    "etcd",
    "kubeControllerManager",
    "kubeProxy",
    "kubeSchedulerAlerting",
    "kubeSchedulerRecording",
)


def kube_prometheus_stack(plan: Plan) -> Values:
    """CRDs are applied by the install script, server-side, since Helm never upgrades them."""
    place = on_system_pools(plan)
    node_exporter = requests(NODE_EXPORTER)
    return {
        "crds": {"enabled": True, "upgradeJob": {"enabled": False}},
        "defaultRules": {"rules": dict.fromkeys(_RULES_WITHOUT_A_TARGET, False)},
        **{name: {"enabled": False} for name in _NOT_REACHABLE},
        "prometheusOperator": {
            "resources": resources(200, 256),
            "prometheusConfigReloader": {"resources": resources(50, 64)},
            "admissionWebhooks": {"patch": {"resources": resources(50, 64), **place}},
            **place,
        },
        "prometheus": {
            "prometheusSpec": {
                "replicas": 1,
                "resources": resources(2000, 8192),
                "retention": RETENTION,
                "retentionSize": f"{RETENTION_GIB}GB",
                "enableAdminAPI": False,
                "storageSpec": {
                    "volumeClaimTemplate": {
                        "spec": {
                            "storageClassName": STORAGE_CLASS,
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": f"{VOLUME_GIB}Gi"}},
                        }
                    }
                },
                **place,
            }
        },
        "alertmanager": {"alertmanagerSpec": {"replicas": 1, "resources": resources(100, 256), **place}},
        "grafana": {
            "resources": resources(500, 512),
            "rbac": {"namespaced": True},
            "sidecar": {
                "resources": resources(100, 256),
                "dashboards": {"searchNamespace": MONITORING_NAMESPACE},
                "datasources": {"searchNamespace": MONITORING_NAMESPACE},
            },
            "grafana.ini": {"analytics": {"check_for_updates": False, "reporting_enabled": False}},
            "service": {"type": "ClusterIP"},
            "testFramework": {"enabled": False},
            **place,
        },
        "kube-state-metrics": {"resources": resources(200, 512), **place},
        # On the node's network, for its interfaces: there it must not listen on every one of them. On every node, whatever
        # taints a pool has, and for what the Plan took off each node.
        NODE_EXPORTER: {
            "hostPID": False,
            "service": {"listenOnAllInterfaces": False},
            "tolerations": [{"operator": "Exists"}],
            "resources": resources(node_exporter.cpu_millis, node_exporter.memory_mib),
        },
        "extraManifests": [
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": STORAGE_CLASS},
                "provisioner": "ebs.csi.aws.com",
                "parameters": {"type": "gp3", "encrypted": "true"},
                "volumeBindingMode": "WaitForFirstConsumer",
                "reclaimPolicy": "Delete",
                "allowVolumeExpansion": True,
            }
        ],
    }
