"""What DaemonSets request of every node, so that a whole-node pod still fits beside them."""

from dataclasses import dataclass
from datetime import date

from infra.catalog.facts import AS_OF, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSet:
    """Requests of one DaemonSet's pod, all containers together.

    `gpu_only` ones run on nodes with GPUs, `efa_only` ones on nodes with EFA interfaces. The charts of this package read
    their own requests here; those of add-ons are the add-on's defaults, rounded up.
    """

    name: str
    cpu_millis: int
    memory_mib: int
    gpu_only: bool = False
    efa_only: bool = False
    source: Source


_OURS = Source(
    title="set by this package's own charts and by its values of other charts", url="", as_of=AS_OF, computed=True
)
_ADDON = Source(
    title="defaults of the EKS add-ons' charts, rounded up; a live node is read by preflight",
    url="https://docs.aws.amazon.com/eks/latest/userguide/workloads-add-ons-available-eks.html",
    as_of=date(2026, 1, 1),
)

DAEMONSETS: tuple[DaemonSet, ...] = (
    DaemonSet(name="aws-node", cpu_millis=50, memory_mib=128, source=_ADDON),
    DaemonSet(name="kube-proxy", cpu_millis=100, memory_mib=64, source=_ADDON),
    DaemonSet(name="eks-pod-identity-agent", cpu_millis=10, memory_mib=32, source=_ADDON),
    DaemonSet(name="ebs-csi-node", cpu_millis=30, memory_mib=120, source=_ADDON),
    DaemonSet(name="fsx-csi-node", cpu_millis=30, memory_mib=120, source=_ADDON),
    DaemonSet(name="eks-node-monitoring-agent", cpu_millis=10, memory_mib=64, source=_ADDON),
    DaemonSet(name="cloudwatch-agent", cpu_millis=250, memory_mib=128, source=_ADDON),
    DaemonSet(name="fluent-bit", cpu_millis=50, memory_mib=64, source=_ADDON),
    DaemonSet(name="prometheus-node-exporter", cpu_millis=100, memory_mib=128, source=_OURS),
    DaemonSet(name="nvidia-device-plugin", cpu_millis=50, memory_mib=128, gpu_only=True, source=_OURS),
    DaemonSet(name="efa-device-plugin", cpu_millis=20, memory_mib=64, efa_only=True, source=_OURS),
    # It compiles a kernel module on the node; afterwards it only holds the place.
    DaemonSet(name="gdrcopy-loader", cpu_millis=500, memory_mib=512, efa_only=True, source=_OURS),
    DaemonSet(name="dcgm-exporter", cpu_millis=100, memory_mib=512, gpu_only=True, source=_OURS),
    DaemonSet(name="efa-exporter", cpu_millis=20, memory_mib=64, efa_only=True, source=_OURS),
    DaemonSet(name="image-pull", cpu_millis=10, memory_mib=32, gpu_only=True, source=_OURS),
)
