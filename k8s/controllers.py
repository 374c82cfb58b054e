"""Third-party controllers as data: the Helm values of each, from the Plan.

Every value differs from the chart's default for a reason, or states what must not change with the next chart: requests
equal to limits, contexts of the restricted level (their namespaces enforce it), images by digest, the system pool. Each
watches the run's namespace alone where its chart can be told so. The charts were read at the catalog's versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType

import yaml

from infra.catalog import CATALOG
from infra.config.model_plan import BF16_BYTES
from infra.config.plan import Plan
from infra.config.pool_plan import AUTOSCALER_TAG
from k8s.helm_values import (
    Values,
    container_security,
    image,
    image_parts,
    on_system_pools,
    pod_security,
    resources,
)
from k8s.monitoring_stack import kube_prometheus_stack
from k8s.names import RUN_NAMESPACE

JOIN_MINUTES = 30
"""From admission to a started container: a new GPU node takes ten minutes to join, the image is tens of GiB, and preflight
compiles kernels."""
FABRIC_MINUTES = 12
"""The longest that workers prove the links between their nodes, once the last one has come; a minute or two as a rule."""
READ_MIB_PER_SECOND = 2_048
"""Of one node from S3, with room to spare: a quarter of what a p5en's 100 Gbit/s carry."""
REQUEUES = 3
"""A workload that was evicted that often for pods which did not get ready is deactivated, for a person to look at."""
PROVISION_MINUTES = 30
NEARLY_EMPTY = "0.05"
"""Share of a node's requests (DaemonSets apart) below which the autoscaler may end it. Every worker of the run has a whole
node or a large part of one, so only nodes without any fall below: it never drains one that works."""


def kuberay_operator(plan: Plan) -> Values:
    """One namespace, with a Role and no ClusterRole. Gangs are Kueue's, so no batch scheduler. Probes are the charts' own:
    the injected ones would end a Ray node that saves or compiles for long."""
    return {
        "fullnameOverride": "kuberay-operator",
        "image": image(plan, "kuberay-operator"),
        "singleNamespaceInstall": True,
        "crNamespacedRbacEnable": True,
        "watchNamespace": [RUN_NAMESPACE],
        "batchScheduler": {"enabled": False, "name": ""},
        "leaderElectionEnabled": True,
        "env": [{"name": "ENABLE_PROBES_INJECTION", "value": "false"}],
        "resources": resources(500, 1024),
        "podSecurityContext": pod_security(),
        "securityContext": container_security(),
        **on_system_pools(plan),
    }


def kueue(plan: Plan) -> Values:
    """Two replicas, since its webhooks fail closed for jobs of the run's namespace, the only one that they look at.

    It places gangs, and that is all: left on, node replacement ends a run one of whose nodes was not ready for half a
    minute, past the disruption budget. Off, a node that is deleted, or whose pods were, still takes the whole gang down
    (EvictedDueToNodeFailures), as it must.
    """
    return {
        "fullnameOverride": "kueue",
        "enablePrometheus": False,
        "enableCertManager": False,
        "enableKueueViz": False,
        "controllerManager": {
            "featureGates": [{"name": "TASFailedNodeReplacement", "enabled": False}],
            "replicas": 2,
            "manager": {
                "image": image(plan, "kueue"),
                "resources": resources(1000, 1024),
                "podSecurityContext": pod_security(),
                "containerSecurityContext": container_security(),
            },
            "podDisruptionBudget": {"enabled": True, "minAvailable": 1},
            **on_system_pools(plan),
        },
        "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(kueue_configuration(plan), sort_keys=False)},
    }


def pods_ready_minutes(plan: Plan) -> int:
    """From admission to every pod ready. Trainer pods first fetch two forms of the model and the last checkpoint and prove
    their links, and a timeout that is shorter than that would start a large run again and again without a step."""
    weights_gib = CATALOG.models[plan.workload.model].total_params_b * 1e9 * BF16_BYTES / 2**30
    read_gib = 2 * weights_gib + plan.workload.trainer.checkpoint_gib
    fabric = FABRIC_MINUTES if plan.workload.trainer.prove_fabric else 0
    return JOIN_MINUTES + ceil(read_gib * 1024 / READ_MIB_PER_SECOND / 60) + fabric


def kueue_configuration(plan: Plan) -> Values:
    """All pods of a workload are ready within the timeout, or it gives its quota back and waits. Jobs and RayJobs that name
    a queue are queued; pods, rollouts and the RayCluster that a queued RayJob makes are not."""
    ready = f"{pods_ready_minutes(plan)}m"
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443", "enableClusterQueueResources": True},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        "clientConnection": {"qps": 50, "burst": 100},
        "manageJobsWithoutQueueName": False,
        "managedJobsNamespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": RUN_NAMESPACE}},
        "waitForPodsReady": {
            "timeout": ready,
            "recoveryTimeout": ready,
            # Another workload may be admitted meanwhile: quotas are whole nodes, so two gangs cannot hold half each.
            "blockAdmission": False,
            "requeuingStrategy": {
                "timestamp": "Eviction",
                "backoffLimitCount": REQUEUES,
                "backoffBaseSeconds": 60,
                "backoffMaxSeconds": 600,
            },
        },
        "integrations": {"frameworks": ["batch/job", "ray.io/rayjob"]},
    }


def lws(plan: Plan) -> Values:
    """Two replicas: its webhook fails closed for LeaderWorkerSets and their pods."""
    return {
        "fullnameOverride": "lws",
        "replicaCount": 2,
        "image": {"manager": image(plan, "lws")},
        "enablePrometheus": False,
        "enableCertManager": False,
        "enableDisaggregatedSet": False,
        "gangSchedulingManagement": {},
        "resources": resources(500, 512),
        "podSecurityContext": pod_security(),
        "securityContext": container_security(),
        **on_system_pools(plan),
    }


def keda(plan: Plan) -> Values:
    """It may scale what the run scales and read no secret but its own; AWS knows it by EKS Pod Identity of its account."""
    images = {
        key: {"registry": registry, "repository": repository, "tag": tag}
        for key, name in (
            ("keda", "keda-operator"),
            ("metricsApiServer", "keda-metrics-apiserver"),
            ("webhooks", "keda-admission-webhooks"),
        )
        for registry, repository, tag in (image_parts(plan, name),)
    }
    parts = ("operator", "metricServer", "webhooks")
    return {
        "clusterName": plan.names.cluster,
        "watchNamespace": RUN_NAMESPACE,
        "image": {**images, "pullPolicy": "IfNotPresent"},
        "crds": {"install": True},
        "rbac": {
            "create": True,
            "aggregateToDefaultRoles": False,
            "enabledCustomScaledRefKinds": True,
            "scaledRefKinds": [{"apiGroup": "leaderworkerset.x-k8s.io", "kind": "leaderworkersets"}],
        },
        "permissions": {
            "metricServer": {"restrict": {"secret": True}},
            "operator": {"restrict": {"secret": True, "allowAllServiceAccountTokenCreation": False}},
        },
        "serviceAccount": {
            "operator": {"create": True, "name": "keda-operator"},
            "metricServer": {"create": True, "name": "keda-metrics-server"},
            "webhooks": {"create": True, "name": "keda-webhook"},
        },
        "podIdentity": {"aws": {"irsa": {"enabled": False}}},
        "env": [{"name": "AWS_REGION", "value": plan.region}],
        "resources": {part: resources(200, 512) for part in parts},
        "podSecurityContext": {part: pod_security() for part in parts},
        "securityContext": {part: container_security() for part in parts},
        "enableServiceLinks": False,
        "asciiArt": False,
        **on_system_pools(plan),
    }


def cluster_autoscaler(plan: Plan) -> Values:
    """It sees the groups that `moerl pool tag` has given AUTOSCALER_TAG, and no others: EKS tags all managed groups for
    discovery, and it would end the idle nodes of a capacity block, or ask for them before the block starts. Of what it
    sees it ends only nodes that are nearly empty. Pools are not alike, so it balances none."""
    return {
        "fullnameOverride": "cluster-autoscaler",
        "image": image(plan, "cluster-autoscaler"),
        "cloudProvider": "aws",
        "awsRegion": plan.region,
        "autoDiscovery": {
            "clusterName": plan.names.cluster,
            "tags": [
                "k8s.io/cluster-autoscaler/enabled",
                f"k8s.io/cluster-autoscaler/{plan.names.cluster}",
                AUTOSCALER_TAG,
            ],
        },
        "extraArgs": {
            "expander": "least-waste",
            "balance-similar-node-groups": "false",
            "max-node-provision-time": f"{PROVISION_MINUTES}m",
            "scale-down-delay-after-add": "15m",
            "scale-down-unneeded-time": "10m",
            "scale-down-utilization-threshold": NEARLY_EMPTY,
            "scale-down-gpu-utilization-threshold": NEARLY_EMPTY,
            "ignore-daemonsets-utilization": "true",
            "skip-nodes-with-local-storage": "true",
            "skip-nodes-with-system-pods": "true",
            "skip-nodes-with-custom-controller-pods": "true",
            "logtostderr": "true",
            "stderrthreshold": "info",
            "v": "2",
        },
        "rbac": {"create": True, "serviceAccount": {"create": True, "name": "cluster-autoscaler"}},
        "replicaCount": 1,
        "priorityClassName": "system-cluster-critical",
        "resources": resources(500, 1024),
        "securityContext": {**pod_security(), "runAsUser": 65534, "runAsGroup": 65534},
        "containerSecurityContext": container_security(),
        **on_system_pools(plan),
    }


CONTROLLER_VALUES: Mapping[str, Callable[[Plan], Values]] = MappingProxyType(
    {
        "kube-prometheus-stack": kube_prometheus_stack,
        "kuberay-operator": kuberay_operator,
        "kueue": kueue,
        "lws": lws,
        "keda": keda,
        "cluster-autoscaler": cluster_autoscaler,
    }
)
"""Values of each chart that Helm installs, in the order of installation: monitors need the first one's CRDs."""
