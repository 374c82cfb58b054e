"""Pure functions that build pod specs from the Plan. Charts and the TorchX scheduler use the same ones.

Nothing is inherited: every GPU pod states resources, shared memory, security context and variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import (
    EFA_RESOURCE,
    GPU_RESOURCE,
    HUGE_PAGES_RESOURCE,
    LABEL_DOMAIN,
    TAINT_EFFECTS,
    PoolPlan,
    scaled_outside,
)

Spec = dict[str, Any]
SHM_PATH, HUGE_PAGES_PATH = "/dev/shm", "/dev/hugepages"  # noqa: S108 - a mount point, not a file
LOCAL_CACHE_PATH = "/mnt/k8s-disks/0/moerl"
"""Directory of the nodes' NVMe RAID (nodeadm mounts it at /mnt/k8s-disks/0) that survives pods, not nodes."""


def quantity(resources: PodResources) -> dict[str, str]:
    """A PodResources as Kubernetes quantities; requests and limits are the same map."""
    quantities = {"cpu": f"{resources.cpu_millis}m", "memory": f"{resources.memory_mib}Mi"}
    if resources.ephemeral_gib:
        quantities["ephemeral-storage"] = f"{resources.ephemeral_gib}Gi"
    if resources.gpus:
        quantities[GPU_RESOURCE] = str(resources.gpus)
    if resources.efa:
        quantities[EFA_RESOURCE] = str(resources.efa)
    if resources.huge_pages_mib:
        quantities[HUGE_PAGES_RESOURCE] = f"{resources.huge_pages_mib}Mi"
    return quantities


def container(
    name: str,
    image: str,
    resources: PodResources,
    *,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    mounts: Sequence[Spec] = (),
    ports: Mapping[str, int] | None = None,
    security: Spec | None = None,
    **fields: Any,
) -> Spec:
    """One container whose requests equal its limits. `security` defaults to `restricted()`.

    Raises ValueError for an empty image: an undefined one would go out as it is and wait for ever.
    """
    if not image:
        raise ValueError(f"container {name}: the image is empty")
    both = quantity(resources)
    spec: Spec = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": both, "limits": dict(both)},
        "securityContext": security if security is not None else restricted(),
    }
    if command:
        spec["command"] = list(command)
    if args:
        spec["args"] = list(args)
    if variables:
        spec["env"] = [{"name": key, "value": value} for key, value in sorted(variables.items())]
    if mounts:
        spec["volumeMounts"] = list(mounts)
    if ports:
        spec["ports"] = [{"name": key, "containerPort": port} for key, port in ports.items()]
    return spec | fields


def restricted() -> Spec:
    """What the restricted Pod Security level asks for."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def rdma() -> Spec:
    """A process that registers memory with EFA: root with IPC_LOCK and nothing else.

    The capability does nothing for another user: locked memory then stays at 8 MiB and NCCL falls back to TCP.
    """
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def privileged() -> Spec:
    """System agents that load modules or read every device."""
    return {"privileged": True, "runAsUser": 0}


def shm(resources: PodResources) -> tuple[Spec, Spec]:
    """(volume, mount) of /dev/shm, sized: an unsized one takes half the node."""
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{resources.shm_mib}Mi"}}
    return volume, {"name": "shm", "mountPath": SHM_PATH}


def huge_pages() -> tuple[Spec, Spec]:
    """(volume, mount) of the pod's huge pages."""
    volume = {"name": "huge-pages", "emptyDir": {"medium": "HugePages"}}
    return volume, {"name": "huge-pages", "mountPath": HUGE_PAGES_PATH}


def local_cache(sub_path: str, mount_path: str) -> tuple[Spec, Spec]:
    """(volume, mount) of a directory on the node's NVMe that outlives the pod: models and JIT kernels."""
    volume = {
        "name": sub_path,
        "hostPath": {"path": f"{LOCAL_CACHE_PATH}/{sub_path}", "type": "DirectoryOrCreate"},
    }
    return volume, {"name": sub_path, "mountPath": mount_path}


def scratch_volume(claim: str, name: str, mount_path: str, *, read_only: bool = False) -> tuple[Spec, Spec]:
    """(volume, mount) of a persistent volume claim."""
    volume = {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}
    return volume, {"name": name, "mountPath": mount_path, "readOnly": read_only}


def on_pool(pool: PoolPlan) -> Spec:
    """Node selector and tolerations that bring a pod to this pool and no other."""
    return {
        "nodeSelector": {f"{LABEL_DOMAIN}/pool": pool.name},
        "tolerations": [
            {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": TAINT_EFFECTS[taint.effect]}
            for taint in pool.taints
        ],
    }


def on_pools(pools: Sequence[PoolPlan]) -> Spec:
    """Affinity to any of the pools, and tolerations for everything: a DaemonSet must reach a node whatever taints a user
    adds to its pool. Raises ValueError for no pool: such a DaemonSet would want 0 pods and nobody would be told."""
    if not pools:
        raise ValueError("a DaemonSet needs at least one pool")
    expression = {"key": f"{LABEL_DOMAIN}/pool", "operator": "In", "values": [pool.name for pool in pools]}
    term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}},
        "tolerations": [{"operator": "Exists"}],
    }


def base_variables(plan: Plan) -> dict[str, str]:
    """What every pod of a run is told: no client has to ask metadata for its region."""
    return {
        "AWS_REGION": plan.region,
        "AWS_DEFAULT_REGION": plan.region,
        "AWS_STS_REGIONAL_ENDPOINTS": "regional",
        "MOERL_ENVIRONMENT": plan.name,
    }


def gdrcopy(variables: Mapping[str, str]) -> dict[str, str]:
    """Asks the NVIDIA runtime for /dev/gdrdrv where device-side networking is on, which does not start without it."""
    return {"NVIDIA_GDRCOPY": "enabled"} if "NCCL_GIN_TYPE" in variables else {}


def queued(queue: str) -> dict[str, str]:
    """Labels that put a suspended workload into a Kueue queue, with the priority class of the same name."""
    return {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": queue}


def counted(pool: PoolPlan) -> dict[str, str]:
    """Annotation of a queued pod on a pool whose nodes Kueue counts before it admits a workload (its flavor has a
    topology). None where an autoscaler brings nodes only for pods that already wait."""
    return {} if scaled_outside(pool) == "autoscaler" else {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}


def with_pod_ip(spec: Spec) -> Spec:
    """The container with its pod's address as POD_IP, so that a server can bind that instead of every interface."""
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return spec | {"env": [address, *spec.get("env", [])]}


def pod_template(labels: Mapping[str, str], spec: Spec, annotations: Mapping[str, str] | None = None) -> Spec:
    """Metadata and spec of a pod template."""
    metadata: Spec = {"labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"metadata": metadata, "spec": spec}
