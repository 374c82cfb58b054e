"""Service accounts, and who may talk to the Kubernetes API: preflight, and of the run nobody else.

AWS roles come by EKS Pod Identity, which projects a token of its own; it needs no automatic API token. A rollout leader
knows its group from the variables of LeaderWorkerSet, and KubeRay, Kueue and KEDA act with their own accounts.
"""

from __future__ import annotations

from infra.config.plan import Plan
from k8s.manifest import Object, obj
from k8s.names import MONITORING_NAMESPACE, PREFLIGHT, RUN_NAMESPACE, SERVICE_ACCOUNTS, SYSTEM_NAMESPACE

RBAC = "rbac.authorization.k8s.io"
NODE_READER = "moerl-preflight"
API_READERS = frozenset({PREFLIGHT})
"""Preflight compares what nodes offer (EFA devices, GPUs) with the Plan: a node short of one device leaves a pod pending
without a word."""


def objects(_plan: Plan) -> tuple[Object, ...]:
    """Accounts of the run, default accounts without a token, and the one role."""
    return (
        *(_account(RUN_NAMESPACE, name, token=name in API_READERS) for name in SERVICE_ACCOUNTS),
        *(_account(name, "default", token=False) for name in (RUN_NAMESPACE, SYSTEM_NAMESPACE, MONITORING_NAMESPACE)),
        obj(
            f"{RBAC}/v1",
            "ClusterRole",
            NODE_READER,
            rules=[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}],
        ),
        obj(
            f"{RBAC}/v1",
            "ClusterRoleBinding",
            NODE_READER,
            roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": NODE_READER},
            subjects=[
                {"kind": "ServiceAccount", "name": name, "namespace": RUN_NAMESPACE} for name in sorted(API_READERS)
            ],
        ),
    )


def _account(namespace: str, name: str, *, token: bool) -> Object:
    return obj("v1", "ServiceAccount", name, namespace=namespace, automountServiceAccountToken=token)
