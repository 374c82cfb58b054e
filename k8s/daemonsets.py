"""DaemonSets of this package: they reach exactly the pools they are for, and ask for what the Plan took off every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.catalog.daemonsets import DAEMONSETS
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import PoolPlan
from k8s.manifest import Object, component, obj
from k8s.names import SYSTEM_NAMESPACE
from k8s.pods import Spec, on_pools, pod_template

AGENTS_ACCOUNT = "agents"
"""Service account of these pods. None of them talks to the API server or to AWS."""
NODE_CRITICAL = "system-node-critical"
NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""For pods of the run's image that take no GPU: CUDA base images ask for all of them by this variable, and the node's
container runtime would hand them out beside the device plugin's account."""


def requests(name: str) -> PodResources:
    """What the catalog says this DaemonSet asks of a node. KeyError for a name that it does not list."""
    for entry in DAEMONSETS:
        if entry.name == name:
            return PodResources(cpu_millis=entry.cpu_millis, memory_mib=entry.memory_mib)
    raise KeyError(name)


def daemonset(
    name: str,
    pools: Sequence[PoolPlan],
    container: Spec,
    *,
    volumes: Sequence[Spec] = (),
    priority: str,
    max_unavailable: int | str,
    grace_seconds: int,
    annotations: Mapping[str, str] | None = None,
    **pod_fields: object,
) -> Object:
    """One container on every node of the pools. An update replaces `max_unavailable` nodes' pods at a time."""
    labels = {"app.kubernetes.io/name": name, **component(name)}
    spec: Spec = {
        **on_pools(pools),
        "serviceAccountName": AGENTS_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": grace_seconds,
        "containers": [container],
        **pod_fields,
    }
    if volumes:
        spec["volumes"] = list(volumes)
    return obj(
        "apps/v1",
        "DaemonSet",
        name,
        namespace=SYSTEM_NAMESPACE,
        labels=labels,
        spec={
            "selector": {"matchLabels": component(name)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": max_unavailable}},
            "revisionHistoryLimit": 3,
            "template": pod_template(labels, spec, annotations),
        },
    )


def host_path(name: str, path: str, *, mount_path: str | None = None, read_only: bool = True) -> tuple[Spec, Spec]:
    """(volume, mount) of a directory of the node, at the same place unless `mount_path` says otherwise."""
    volume = {"name": name, "hostPath": {"path": path, "type": "Directory"}}
    return volume, {"name": name, "mountPath": mount_path or path, "readOnly": read_only}
