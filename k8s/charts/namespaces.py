"""Namespaces and their Pod Security levels.

The run's namespace enforces nothing through Pod Security, because its GPU pods need IPC_LOCK and a host path, which
no level but privileged admits: it warns and audits at baseline, and the policy of `admission` does the refusing.
Agents of this package are privileged. So is the monitoring namespace, for its node exporter. Controllers are restricted.
"""

from __future__ import annotations

from infra.catalog.controllers import CONTROLLERS
from infra.config.plan import Plan
from k8s.manifest import Object, obj
from k8s.names import MONITORING_NAMESPACE, RUN_NAMESPACE, SYSTEM_NAMESPACE

POD_SECURITY = "pod-security.kubernetes.io"
MODES = ("enforce", "audit", "warn")
PRE_EXISTING = frozenset({"kube-system"})


def objects(plan: Plan) -> tuple[Object, ...]:
    """Every namespace that the manifests and the controllers' charts use, but those that a cluster is born with."""
    controllers = {controller.namespace for controller in CONTROLLERS.values()} - PRE_EXISTING - {MONITORING_NAMESPACE}
    return (
        _namespace(plan, RUN_NAMESPACE, enforce="privileged", report="baseline"),
        _namespace(plan, SYSTEM_NAMESPACE, enforce="privileged", report="privileged"),
        _namespace(plan, MONITORING_NAMESPACE, enforce="privileged", report="baseline"),
        *(_namespace(plan, name, enforce="restricted", report="restricted") for name in sorted(controllers)),
    )


def _namespace(plan: Plan, name: str, *, enforce: str, report: str) -> Object:
    """Levels are pinned to the cluster's version: `latest` would change what is refused on a control-plane upgrade."""
    levels = {"enforce": enforce, "audit": report, "warn": report}
    labels = {f"{POD_SECURITY}/{mode}": levels[mode] for mode in MODES}
    labels |= {f"{POD_SECURITY}/{mode}-version": f"v{plan.kubernetes.version}" for mode in MODES}
    return obj("v1", "Namespace", name, labels=labels)
