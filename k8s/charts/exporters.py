"""Exporters of GPU nodes: DCGM for GPUs, one for EFA's hardware counters. Monitors find both by component and by the port
name `metrics`.

One owner of DCGM on a node: the CloudWatch add-on's exporter is switched off where the add-on is configured.

What the run's image does here: `python -m moerl_runtime efa-exporter --listen HOST:PORT --sysfs DIR` serves
/metrics, with the names that `k8s.metrics` lists for it, and /health, from DIR/class/infiniband/*/ports/*/hw_counters.
"""

from __future__ import annotations

import csv
import hashlib
import io

from infra.config.plan import Plan
from k8s import metrics
from k8s.daemonsets import NO_GPUS, daemonset, host_path, requests
from k8s.manifest import Object, obj
from k8s.metrics import METRICS
from k8s.names import SYSTEM_NAMESPACE, SYSTEM_PRIORITY
from k8s.pods import Spec, container, restricted, with_pod_ip
from k8s.ports import METRICS_PORT, METRICS_PORT_NAME

DCGM_PORT = 9_400
SAMPLE_MILLIS = 15_000
"""As often as Prometheus scrapes."""
COUNTERS, COUNTERS_FILE, COUNTERS_PATH = "dcgm-counters", "counters.csv", "/etc/moerl-dcgm"
HOST_SYSFS = "/host/sys"

DIAGNOSTICS: tuple[tuple[str, str, str], ...] = (
    ("DCGM_FI_DEV_FB_FREE", "gauge", "GPU memory free, in MiB."),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature, in C."),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature, in C."),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw, in W."),
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock, in MHz."),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit ECC errors since the driver was loaded."),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for uncorrectable errors."),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed."),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries."),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "NVLink bandwidth counters over all lanes."),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of cycles with the memory interface active."),
)
"""Exported for people who look into one node; no rule and no dashboard names them."""


def objects(plan: Plan, *, image: str | None) -> tuple[Object, ...]:
    """`image` is the run's own, by digest; the EFA exporter is left out without it."""
    found = list(_dcgm(plan))
    if image is not None and any(pool.efa_per_node for pool in plan.pools):
        found.append(_efa(plan, image))
    return tuple(found)


def left_out(plan: Plan, *, image: str | None) -> tuple[str, ...]:
    if image is not None or not any(pool.efa_per_node for pool in plan.pools):
        return ()
    return ("DaemonSet efa-exporter: it runs the run's image, whose digest is not known yet",)


def counters() -> str:
    """DCGM's fields to export, as the exporter's CSV (field, kind, text): what rules and dashboards name, then diagnostics."""
    named = [(metric.name, metric.kind, metric.help) for metric in METRICS.values() if metric.exporter is metrics.DCGM]
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows((*named, *DIAGNOSTICS))
    return lines.getvalue()


def _dcgm(plan: Plan) -> tuple[Object, Object]:
    """SYS_ADMIN is what DCGM's profiling fields need (tensor and memory activity); all other capabilities are dropped."""
    name, text = "dcgm-exporter", counters()
    pods, pods_mount = host_path("pod-resources", "/var/lib/kubelet/pod-resources")
    healthy = _healthy(DCGM_PORT)
    exporter = container(
        name,
        plan.images[name],
        requests(name),
        args=["-f", f"{COUNTERS_PATH}/{COUNTERS_FILE}"],
        variables={
            "DCGM_EXPORTER_INTERVAL": str(SAMPLE_MILLIS),
            "DCGM_EXPORTER_KUBERNETES": "true",
            "DCGM_EXPORTER_LISTEN": f"$(POD_IP):{DCGM_PORT}",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "NVIDIA_VISIBLE_DEVICES": "all",
        },
        mounts=[pods_mount, {"name": "counters", "mountPath": COUNTERS_PATH, "readOnly": True}],
        ports={METRICS_PORT_NAME: DCGM_PORT},
        security={
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        startupProbe=healthy | {"failureThreshold": 30},
        livenessProbe=healthy | {"failureThreshold": 6},
        readinessProbe=dict(healthy),
    )
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    exporter = with_pod_ip(exporter | {"env": [node, *exporter["env"]]})
    return (
        obj("v1", "ConfigMap", COUNTERS, namespace=SYSTEM_NAMESPACE, data={COUNTERS_FILE: text}),
        daemonset(
            name,
            [pool for pool in plan.pools if pool.is_gpu],
            exporter,
            volumes=[pods, {"name": "counters", "configMap": {"name": COUNTERS}}],
            priority=SYSTEM_PRIORITY,
            max_unavailable="10%",
            grace_seconds=10,
            # The exporter reads its fields once: a change has to make new pods.
            annotations={"moerl.io/counters": hashlib.sha256(text.encode()).hexdigest()[:16]},
        ),
    )


def _efa(plan: Plan, image: str) -> Object:
    """Reads the host's sysfs: the one that a pod sees belongs to the pod's network namespace, where the kernel shows RDMA
    devices without their hardware counters."""
    name = "efa-exporter"
    sysfs, sysfs_mount = host_path("sysfs", "/sys", mount_path=HOST_SYSFS)
    healthy = _healthy(METRICS_PORT)
    exporter = container(
        name,
        image,
        requests(name),
        command=["python", "-m", "moerl_runtime", "efa-exporter"],
        args=["--listen", f"$(POD_IP):{METRICS_PORT}", "--sysfs", HOST_SYSFS],
        variables=NO_GPUS,
        mounts=[sysfs_mount],
        ports={METRICS_PORT_NAME: METRICS_PORT},
        security=restricted() | {"readOnlyRootFilesystem": True},
        startupProbe=healthy | {"failureThreshold": 30},
        livenessProbe=healthy | {"failureThreshold": 6},
        readinessProbe=dict(healthy),
    )
    return daemonset(
        name,
        [pool for pool in plan.pools if pool.efa_per_node],
        with_pod_ip(exporter),
        volumes=[sysfs],
        priority=SYSTEM_PRIORITY,
        max_unavailable="10%",
        grace_seconds=5,
    )


def _healthy(port: int) -> Spec:
    return {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 10, "timeoutSeconds": 5}
