"""Pod templates of the trainer: head, workers, submitter.

The head stands on a trainer node without a GPU. NVIDIA_VISIBLE_DEVICES is `none` there: `void` would leave libcuda out,
which the driver loads at import, and the `all` of CUDA images would show every GPU to a container that asked for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from infra.config.model_plan import MODELS_PATH
from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import LABEL_DOMAIN
from k8s import pods
from k8s.charts import meeting, run_config, storage
from k8s.charts.rollout import image_digest
from k8s.manifest import Object, component
from k8s.names import TRAINER, TRAINER_PRIORITY
from k8s.pods import Spec
from k8s.ports import METRICS_PORT, METRICS_PORT_NAME

CONFIG_PATH = "/etc/moerl-trainer"
"""Flags of the run, in the run's own ConfigMap."""
RUN_LABEL = f"{LABEL_DOMAIN}/run"
PART_LABEL = f"{LABEL_DOMAIN}/part"
"""head, worker or submitter."""
DASHBOARD_PORT, GCS_PORT, AGENT_HTTP_PORT = 8265, 6379, 52365
JIT_PATH = "/jit"
HEALTH_PERIOD_SECONDS, HEALTH_TIMEOUT_SECONDS = 10, 20
PROBE_PERIOD_SECONDS, PROBE_TIMEOUT_SECONDS = 30, 20
STARTUP_SECONDS = 1_800
SUBMITTER_GRACE_SECONDS = 30
HEAD_CUDA = {"NVIDIA_VISIBLE_DEVICES": "none", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
NO_CUDA = {"NVIDIA_VISIBLE_DEVICES": "void"}


def head(plan: Plan, name: str, image: str, claim: str | None) -> Spec:
    """`claim` is `storage.claim_name`'s."""
    resources = plan.workload.trainer.pods.head
    shm, shm_mount = pods.shm(resources)
    volumes, mounts = _shared(plan, name, claim)
    container = pods.container(
        "ray-head",
        image,
        resources,
        variables=_variables(plan, name) | HEAD_CUDA | _ray_health(plan),
        mounts=[shm_mount, *mounts],
        ports={"gcs-server": GCS_PORT, "dashboard": DASHBOARD_PORT, METRICS_PORT_NAME: METRICS_PORT},
        # It needs no EFA, but it reads and removes files of ranks, which are root.
        security=pods.rdma(),
        **_probes(
            plan,
            f"http://127.0.0.1:{AGENT_HTTP_PORT}/api/local_raylet_healthz",
            f"http://{{POD_IP}}:{DASHBOARD_PORT}/api/gcs_healthz",
        ),
    )
    restore, upload = _checkpoints(plan, name, image, resources, claim) if claim else ([], [])
    init = [_fetch(plan, name, image, resources), *restore, *upload]
    return _pod(plan, name, "head", init=init, container=container, volumes=[shm, *volumes])


def worker(plan: Plan, name: str, image: str, claim: str | None) -> Spec:
    """As `head`."""
    resources = plan.workload.trainer.pods.worker
    shm, shm_mount = pods.shm(resources)
    volumes, mounts = _shared(plan, name, claim)
    # One directory per image, as the engines have: a kernel is named after its includes, not after what they contain.
    jit, jit_mount = pods.local_cache(f"jit-{image_digest(image)}", JIT_PATH)
    volumes, mounts = [shm, jit, *volumes], [shm_mount, jit_mount, *mounts]
    if resources.huge_pages_mib:
        pages, pages_mount = pods.huge_pages()
        volumes, mounts = [pages, *volumes], [pages_mount, *mounts]
    variables = _variables(plan, name) | {
        "TRITON_CACHE_DIR": f"{JIT_PATH}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{JIT_PATH}/inductor",
        "EP_JIT_CACHE_DIR": f"{JIT_PATH}/deep_ep",
        **pods.gdrcopy(plan.workload.trainer.variables),
        **plan.workload.trainer.variables,
    }
    container = pods.container(
        "ray-worker",
        image,
        resources,
        variables=variables,
        mounts=mounts,
        security=pods.rdma(),
        **_probes(plan, f"http://127.0.0.1:{AGENT_HTTP_PORT}/api/local_raylet_healthz"),
    )

    def preflight(part: str, step: str, *arguments: str, **fields: Any) -> Spec:
        return pods.container(
            step,
            image,
            # The same devices: an init container's are handed on to the main one.
            resources,
            command=["python", "-m", "moerl_runtime", "preflight", part],
            args=["--pool", plan.workload.trainer.pool, *arguments],
            variables=variables,
            mounts=mounts,
            security=pods.rdma(),
            **fields,
        )

    init = [preflight("node", "preflight"), _fetch(plan, name, image, resources)]
    restore, upload = ([], []) if claim else _checkpoints(plan, name, image, resources, claim)
    init += restore
    if plan.workload.trainer.prove_fabric:
        # After all that one pod may fail at alone: a pod that comes again finds nobody to meet.
        where = meeting.by_service(fabric_name(name), plan.workload.trainer.workers)
        init.append(preflight("fabric", "fabric", *where, ports={meeting.PORT_NAME: meeting.PORT}))
    init += upload
    template = _pod(plan, name, "worker", init=init, container=container, volumes=volumes)
    apart = {"matchLabels": {RUN_LABEL: name, PART_LABEL: "worker"}}
    template["spec"]["affinity"] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": apart, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    return template


def fabric_name(name: str) -> str:
    """The Service under which the workers of run `name` find each other."""
    return f"{name}-fabric"


def fabric(name: str) -> Object:
    """That Service."""
    labels = component(TRAINER) | {RUN_LABEL: name}
    return meeting.service(fabric_name(name), labels=labels, selector=labels | {PART_LABEL: "worker"})


def submitter(plan: Plan, name: str, image: str) -> Spec:
    """KubeRay fills in the command: submit unless the job is there, then follow its log."""
    container = pods.container(
        "submitter",
        image,
        plan.workload.trainer.pods.submitter,
        variables=pods.base_variables(plan) | NO_CUDA | {"HOME": "/tmp"},  # noqa: S108 - the user has no other home
    )
    return _pod(plan, name, "submitter", init=[], container=container, volumes=[])


def _pod(plan: Plan, name: str, part: str, *, init: Sequence[Spec], container: Spec, volumes: Sequence[Spec]) -> Spec:
    trainer = plan.workload.trainer
    spec = {
        "serviceAccountName": TRAINER,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": TRAINER_PRIORITY,
        "restartPolicy": "Never",
        # For the uploader, which is stopped last and may be at a save.
        "terminationGracePeriodSeconds": SUBMITTER_GRACE_SECONDS if part == "submitter" else trainer.save_seconds_max,
        **pods.on_pool(plan.pool(trainer.pool)),
        **({"initContainers": [_placed(item) for item in init]} if init else {}),
        "containers": [_placed(container)],
        **({"volumes": list(volumes)} if volumes else {}),
    }
    labels = component(TRAINER) | {RUN_LABEL: name, PART_LABEL: part}
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", **pods.counted(plan.pool(trainer.pool))}
    return pods.pod_template(labels, spec, annotations)


def _placed(container: Spec) -> Spec:
    """Tells the container its attempt, which is the name of its Ray cluster, and its address."""
    attempt = {
        "name": "MOERL_ATTEMPT",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['ray.io/cluster']"}},
    }
    return pods.with_pod_ip(container | {"env": [attempt, *container.get("env", [])]})


def _shared(plan: Plan, name: str, claim: str | None) -> tuple[list[Spec], list[Spec]]:
    """Volumes and mounts of head and workers: plan, flags, models (read-only), scratch."""
    plan_volume, plan_mount = run_config.volume()
    models, models_mount = pods.local_cache("models", MODELS_PATH)
    scratch, scratch_mount = storage.scratch(plan, claim)
    flags = {"name": "trainer-config", "configMap": {"name": name}}
    flags_mount = {"name": "trainer-config", "mountPath": CONFIG_PATH, "readOnly": True}
    return (
        [plan_volume, flags, models, scratch],
        [plan_mount, flags_mount, models_mount | {"readOnly": True}, scratch_mount],
    )


def _fetch(plan: Plan, name: str, image: str, resources: PodResources) -> Spec:
    _, plan_mount = run_config.volume()
    _, models_mount = pods.local_cache("models", MODELS_PATH)
    return pods.container(
        "fetch",
        image,
        _without_devices(resources),
        command=["python", "-m", "moerl_runtime", "weights", "fetch"],
        args=["--pool", plan.workload.trainer.pool, "--below", MODELS_PATH],
        variables=_variables(plan, name) | NO_CUDA,
        mounts=[plan_mount, models_mount],
        # Directories of the node belong to root.
        security=pods.rdma(),
    )


def _checkpoints(
    plan: Plan, name: str, image: str, resources: PodResources, claim: str | None
) -> tuple[list[Spec], list[Spec]]:
    """(restore, uploader for as long as the pod lives); none for a run without checkpoints."""
    if plan.workload.no_checkpoint:
        return [], []
    _, plan_mount = run_config.volume()
    scratch_mount, path, more = storage.checkpoints(plan, claim)

    def step(verb: str, resources: PodResources, *arguments: str) -> Spec:
        return pods.container(
            verb,
            image,
            resources,
            command=["python", "-m", "moerl_runtime", "checkpoint", verb],
            args=arguments,
            variables=_variables(plan, name) | NO_CUDA,
            mounts=[plan_mount, scratch_mount],
            security=pods.rdma(),
        )

    upload = step("upload", plan.workload.trainer.pods.uploader, "--from", path, *more) | {"restartPolicy": "Always"}
    return [step("restore", _without_devices(resources), "--to", path, *more)], [upload]


def _without_devices(resources: PodResources) -> PodResources:
    """It runs before the main container, so it may have all that this one gets."""
    return replace(resources, gpus=0, efa=0, huge_pages_mib=0, shm_mib=0)


def _variables(plan: Plan, name: str) -> dict[str, str]:
    return pods.base_variables(plan) | {
        "MOERL_RUN": name,
        "PYTHONUNBUFFERED": "1",
        # Megatron asserts it where tensor or context parallelism is above 1.
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        # The pod has its limit; Ray's own monitor kills healthy ranks at the peak of a save.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _ray_health(plan: Plan) -> dict[str, str]:
    """The control service calls a node dead after the longest stall of a save, not after Ray's minute."""
    window = plan.workload.trainer.save_seconds_max
    return {
        "RAY_health_check_period_ms": str(HEALTH_PERIOD_SECONDS * 1000),
        "RAY_health_check_timeout_ms": str(HEALTH_TIMEOUT_SECONDS * 1000),
        "RAY_health_check_failure_threshold": str(ceil(window / (HEALTH_PERIOD_SECONDS + HEALTH_TIMEOUT_SECONDS))),
    }


def _probes(plan: Plan, *urls: str) -> Spec:
    """Ray's own health, asked from inside. Stated, since KubeRay otherwise adds probes that need wget and count on two
    seconds. Alive is the raylet, not the training: a save or a compile may starve it for as long as the Plan expects."""
    # {POD_IP} is filled in by the probe: a kubelet expands no variables in probes.
    ask = (
        "import os, urllib.request as r; "
        f"[r.urlopen(u.format(**os.environ), timeout={PROBE_TIMEOUT_SECONDS // 2}) for u in {list(urls)!r}]"
    )
    asked: Spec = {
        "exec": {"command": ["python", "-I", "-c", ask]},
        "periodSeconds": PROBE_PERIOD_SECONDS,
        "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
    }
    stall = ceil(plan.workload.trainer.save_seconds_max / PROBE_PERIOD_SECONDS)
    return {
        "startupProbe": {**asked, "failureThreshold": STARTUP_SECONDS // PROBE_PERIOD_SECONDS},
        "livenessProbe": {**asked, "failureThreshold": 2 * stall},
        "readinessProbe": {**asked, "failureThreshold": stall},
    }
