"""Pods of the run that the admission policy must admit or refuse; any evaluator, or a real API server, can run them.

Each pod is whole and valid but for what the case is about. `refused_with` is part of the policy's message; None means
that the pod is admitted. A real server takes `ephemeralContainers` through the subresource of a running pod alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from k8s.pods import container, local_cache, on_pool, quantity, rdma, restricted
from tests.shipped import IMAGE, plan_of

Pod = dict[str, Any]
PLAN = plan_of("reference-p5en")
WORKER = PLAN.workload.trainer.pods.worker
HEAD = PLAN.workload.trainer.pods.head
AGENT = PLAN.workload.rollouts[0].pods.agent
CACHE = "/mnt/k8s-disks/0/moerl"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    pod: Pod
    refused_with: str | None = None

    def __str__(self) -> str:
        return self.name


def pod(*containers: Pod, **spec: Any) -> Pod:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "case", "namespace": "rl", "labels": {"moerl.io/component": "trainer"}},
        "spec": {
            **on_pool(PLAN.pool("trainer")),
            "serviceAccountName": "trainer",
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": list(containers),
            **spec,
        },
    }


def worker() -> Pod:
    """What a trainer worker looks like: whole node, root with IPC_LOCK, local cache."""
    volume, mount = local_cache("models", "/models")
    return pod(container("worker", IMAGE, WORKER, security=rdma(), mounts=[mount]), volumes=[volume])


def agent() -> Pod:
    """A rollout pod: restricted agent, engine as a native sidecar."""
    engine = container("engine", IMAGE, WORKER, security=rdma(), restartPolicy="Always")
    return pod(container("agent", IMAGE, AGENT), initContainers=[engine])


def plain() -> Pod:
    return pod(container("main", IMAGE, HEAD))


def changed(base: Callable[[], Pod], change: Callable[[Pod], object]) -> Pod:
    """The pod of `base` after `change` of its spec."""
    made = base()
    change(made["spec"])
    return made


def first(**fields: Any) -> Callable[[Pod], object]:
    return lambda spec: spec["containers"][0].update(fields)


def sidecar(**fields: Any) -> Callable[[Pod], object]:
    return lambda spec: spec["initContainers"][0].update(fields)


def security(**fields: Any) -> Pod:
    return {"securityContext": restricted() | fields}


def debugger(**fields: Any) -> Callable[[Pod], object]:
    """Adds an ephemeral container, as `kubectl debug` does."""
    made = {"name": "debugger", "image": IMAGE, "securityContext": restricted(), **fields}
    return lambda spec: spec.update(ephemeralContainers=[made])


def host_path(path: str, kind: str | None = "DirectoryOrCreate") -> Callable[[Pod], object]:
    source = {"path": path} | ({"type": kind} if kind else {})
    return lambda spec: spec.update(volumes=[{"name": "host", "hostPath": source}])


def resources(requests: Pod, limits: Pod) -> Pod:
    return {"resources": {"requests": requests, "limits": limits}}


WHOLE = quantity(WORKER)
LESS_CPU = WHOLE | {"cpu": "1"}
NO_GPU = {key: value for key, value in WHOLE.items() if key != GPU}
NO_USER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
IPC = {"drop": ["ALL"], "add": ["IPC_LOCK"]}

ADMITTED: tuple[Case, ...] = (
    Case("trainer-worker", worker()),
    Case("rollout-pod-with-sidecar", agent()),
    Case("restricted-pod", plain()),
    Case(
        "user-from-pod",
        changed(
            plain, lambda spec: (first(securityContext=NO_USER)(spec), spec.update(securityContext={"runAsUser": 1000}))
        ),
    ),
    Case("non-root-without-number", changed(plain, first(securityContext=NO_USER | {"runAsNonRoot": True}))),
    Case("ephemeral-restricted", changed(worker, debugger())),
    Case("directory-of-the-cache", changed(plain, host_path(f"{CACHE}/jit-cache", "Directory"))),
    Case(
        "cpu-burst-without-devices",
        changed(plain, first(**resources({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}))),
    ),
)

REFUSED: tuple[Case, ...] = (
    Case("host-network", changed(worker, lambda spec: spec.update(hostNetwork=True)), "hostNetwork"),
    Case("host-pid", changed(plain, lambda spec: spec.update(hostPID=True)), "hostPID"),
    Case("host-ipc", changed(plain, lambda spec: spec.update(hostIPC=True)), "hostIPC"),
    Case("host-port", changed(plain, first(ports=[{"containerPort": 80, "hostPort": 80}])), "hostPort"),
    Case("privileged", changed(plain, first(securityContext={"privileged": True, "runAsUser": 0})), "privileged"),
    Case(
        "privileged-sidecar",
        changed(agent, sidecar(securityContext=rdma() | {"privileged": True, "allowPrivilegeEscalation": True})),
        "privileged",
    ),
    Case(
        "privileged-ephemeral",
        changed(worker, debugger(securityContext={"privileged": True, "runAsUser": 1000})),
        "privileged",
    ),
    Case(
        "sys-admin",
        changed(worker, first(securityContext=rdma() | {"capabilities": {"add": ["IPC_LOCK", "SYS_ADMIN"]}})),
        "IPC_LOCK",
    ),
    Case(
        "sys-ptrace-ephemeral", changed(worker, debugger(**security(capabilities={"add": ["SYS_PTRACE"]}))), "IPC_LOCK"
    ),
    Case(
        "net-raw-init",
        changed(agent, sidecar(securityContext=rdma() | {"capabilities": {"add": ["IPC_LOCK", "NET_RAW"]}})),
        "IPC_LOCK",
    ),
    Case(
        "root-without-ipc-lock",
        changed(plain, first(securityContext=NO_USER | {"runAsUser": 0})),
        "only to lock memory",
    ),
    Case(
        "root-from-pod",
        changed(
            plain, lambda spec: (first(securityContext=NO_USER)(spec), spec.update(securityContext={"runAsUser": 0}))
        ),
        "only to lock memory",
    ),
    Case("user-not-stated", changed(plain, first(securityContext=NO_USER)), "only to lock memory"),
    Case(
        "no-security-context",
        changed(plain, lambda spec: spec["containers"][0].pop("securityContext")),
        "only to lock memory",
    ),
    Case("root-ephemeral", changed(worker, debugger(securityContext={"runAsUser": 0})), "only to lock memory"),
    Case("efa-as-user", changed(worker, first(**security(capabilities=IPC))), "EFA devices needs runAsUser 0"),
    Case("efa-without-ipc-lock", changed(worker, first(**security())), "EFA devices needs runAsUser 0"),
    Case("efa-sidecar-as-user", changed(agent, sidecar(**security())), "EFA devices needs runAsUser 0"),
    Case("gpu-with-burst", changed(worker, first(**resources(LESS_CPU, WHOLE))), "requests equal to limits"),
    Case("gpu-sidecar-with-burst", changed(agent, sidecar(**resources(LESS_CPU, WHOLE))), "requests equal to limits"),
    Case(
        "efa-with-burst", changed(worker, first(**resources(NO_GPU | {"cpu": "1"}, NO_GPU))), "requests equal to limits"
    ),
    Case("host-root", changed(plain, host_path("/")), "host paths"),
    Case("container-socket", changed(plain, host_path("/run/containerd/containerd.sock", "Socket")), "host paths"),
    Case("infiniband-devices", changed(plain, host_path("/dev/infiniband", "Directory")), "host paths"),
    Case("all-of-the-cache", changed(plain, host_path(CACHE)), "host paths"),
    Case("below-the-cache", changed(plain, host_path(f"{CACHE}/models/link")), "host paths"),
    Case("beside-the-cache", changed(plain, host_path(f"{CACHE}-2/models")), "host paths"),
    Case("host-path-without-type", changed(plain, host_path(f"{CACHE}/models", None)), "host paths"),
    Case("image-by-tag", changed(plain, first(image="docker.io/library/busybox:1.37")), "digest"),
    Case("image-without-tag", changed(worker, first(image="busybox")), "digest"),
    Case("init-image-by-tag", changed(agent, sidecar(image="busybox:latest")), "digest"),
    Case("ephemeral-image-by-tag", changed(worker, debugger(image="busybox:latest")), "digest"),
    Case("short-digest", changed(plain, first(image="x@sha256:abc")), "digest"),
    Case("seccomp-unconfined", changed(plain, first(**security(seccompProfile={"type": "Unconfined"}))), "Unconfined"),
    Case(
        "seccomp-unconfined-pod",
        changed(plain, lambda spec: spec.update(securityContext={"seccompProfile": {"type": "Unconfined"}})),
        "Unconfined",
    ),
    Case(
        "sysctl",
        changed(
            plain,
            lambda spec: spec.update(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]}),
        ),
        "sysctls",
    ),
    Case(
        "proc-unmasked",
        changed(plain, lambda spec: (first(**security(procMount="Unmasked"))(spec), spec.update(hostUsers=False))),
        "procMount",
    ),
)

CASES: tuple[Case, ...] = (*ADMITTED, *REFUSED)
