"""Charts of third-party controllers: pinned to what the control-plane test bed ran, where it ran them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType

from infra.catalog.facts import Pin, Source, Unresolved
from infra.catalog.kubernetes import FLOOR

_NO_FLOORS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One chart.

    `version` is the chart's, `app_version` the software's. `repository` is a Helm repository URL or, with `oci://`,
    the registry path without the chart's name. `min_kubernetes` is the lowest minor version that the chart or its
    project states, or this package's own floor where neither states one. `min_version_by_instance_type` gives, for an
    agent that carries a list of types, the first chart version that knows each. `digest` pins the chart's content once
    resolved. `helm` is false where this package renders a DaemonSet of its own in the chart's place and takes the image's
    version alone from it. `crds_in_folder` says that the chart carries its CRDs in `crds/`, which Helm installs once and
    never upgrades.
    """

    name: str
    chart: str
    version: Pin
    app_version: Pin
    repository: str
    namespace: str
    min_kubernetes: str
    digest: Pin
    helm: bool = True
    crds_in_folder: bool = False
    min_version_by_instance_type: Mapping[str, str] = field(default_factory=lambda: _NO_FLOORS)
    source: Source


def _digest(chart: str, version: str, repository: str) -> Unresolved:
    location = f"{repository}/{chart}" if repository.startswith("oci://") else f"{chart} --repo {repository}"
    return Unresolved(
        what=f"sha256 of chart {chart} {version}",
        command=f"helm pull {location} --version {version} && sha256sum {chart}-{version}.tgz",
    )


def _controller(
    name: str,
    *,
    chart: str | None = None,
    version: str,
    app_version: str,
    repository: str,
    namespace: str,
    min_kubernetes: str,
    helm: bool = True,
    crds_in_folder: bool = False,
    min_version_by_instance_type: Mapping[str, str] = _NO_FLOORS,
    source: Source,
) -> Controller:
    chart = chart or name
    return Controller(
        name=name,
        chart=chart,
        version=version,
        app_version=app_version,
        repository=repository,
        namespace=namespace,
        min_kubernetes=min_kubernetes,
        digest=_digest(chart, version, repository),
        helm=helm,
        crds_in_folder=crds_in_folder,
        min_version_by_instance_type=min_version_by_instance_type,
        source=source,
    )


# First chart version whose list of instance types has the type (history of values.yaml in aws/eks-charts).
_EFA_PLUGIN_FLOORS: Mapping[str, str] = MappingProxyType(
    {
        "p4d.24xlarge": "v0.4.2",
        "p4de.24xlarge": "v0.4.4",
        "p5.48xlarge": "v0.4.2",
        "p5e.48xlarge": "v0.5.5",
        "p5en.48xlarge": "v0.5.6",
        "p6-b200.48xlarge": "v0.5.9",
        "p6-b300.48xlarge": "v0.5.23",
    }
)

CONTROLLERS: Mapping[str, Controller] = MappingProxyType(
    {
        controller.name: controller
        for controller in (
            _controller(
                "nvidia-device-plugin",
                version="0.20.0",
                app_version="0.20.0",
                repository="https://nvidia.github.io/k8s-device-plugin",
                namespace="kube-system",
                min_kubernetes="1.10",
                helm=False,
                # From 0.19 it takes the uverbs devices unless mofedEnabled is false; gdrcopyEnabled gives /dev/gdrdrv.
                source=Source(
                    title="NVIDIA/k8s-device-plugin v0.20.0, chart and values",
                    url="https://github.com/NVIDIA/k8s-device-plugin/tree/v0.20.0/deployments/helm/nvidia-device-plugin",
                    as_of=date(2026, 8, 19),
                ),
            ),
            _controller(
                "aws-efa-k8s-device-plugin",
                version="v0.5.30",
                app_version="v0.5.20",
                repository="https://aws.github.io/eks-charts",
                namespace="kube-system",
                min_kubernetes=FLOOR,
                helm=False,
                min_version_by_instance_type=_EFA_PLUGIN_FLOORS,
                source=Source(
                    title="aws/eks-charts stable/aws-efa-k8s-device-plugin at 52396092, and its history",
                    url="https://github.com/aws/eks-charts/tree/5239609242f3430be50fb0b714a24d3ef2b47983/stable/aws-efa-k8s-device-plugin",
                    as_of=date(2026, 8, 3),
                ),
            ),
            _controller(
                "kuberay-operator",
                version="1.5.0",
                app_version="v1.5.0",
                repository="https://ray-project.github.io/kuberay-helm/",
                namespace="kuberay-system",
                min_kubernetes=FLOOR,
                crds_in_folder=True,
                source=Source(
                    title="ray-project/kuberay v1.5.0, helm-chart/kuberay-operator",
                    url="https://github.com/ray-project/kuberay/tree/v1.5.0/helm-chart/kuberay-operator",
                    as_of=date(2025, 11, 4),
                ),
            ),
            _controller(
                "kueue",
                version="0.17.0",
                app_version="v0.17.0",
                repository="oci://registry.k8s.io/kueue/charts",
                namespace="kueue-system",
                min_kubernetes="1.29",
                source=Source(
                    title="kubernetes-sigs/kueue v0.17.0, README and charts/kueue",
                    url="https://github.com/kubernetes-sigs/kueue/tree/v0.17.0/charts/kueue",
                    as_of=date(2026, 3, 31),
                ),
            ),
            # The newest whose Go module could be had, so the newest that the test bed can run.
            _controller(
                "lws",
                version="0.9.0",
                app_version="v0.9.0",
                repository="oci://registry.k8s.io/lws/charts",
                namespace="lws-system",
                min_kubernetes="1.26",
                crds_in_folder=True,
                source=Source(
                    title="kubernetes-sigs/lws v0.9.0, charts/lws and installation page",
                    url="https://github.com/kubernetes-sigs/lws/tree/v0.9.0/charts/lws",
                    as_of=date(2026, 6, 17),
                ),
            ),
            _controller(
                "keda",
                version="2.20.1",
                app_version="2.20.1",
                repository="https://kedacore.github.io/charts",
                namespace="keda",
                min_kubernetes="1.23",
                source=Source(
                    title="kedacore/charts v2.20.1, keda/Chart.yaml",
                    url="https://github.com/kedacore/charts/blob/v2.20.1/keda/Chart.yaml",
                    as_of=date(2026, 6, 8),
                ),
            ),
            _controller(
                "cluster-autoscaler",
                version="9.59.1",
                app_version="1.35.0",
                repository="https://kubernetes.github.io/autoscaler",
                namespace="kube-system",
                min_kubernetes=FLOOR,
                source=Source(
                    title="kubernetes/autoscaler cluster-autoscaler/charts/cluster-autoscaler/Chart.yaml at 0d4abcf0",
                    url="https://github.com/kubernetes/autoscaler/blob/0d4abcf00242deb0f65404698a76eadc1480f0c7/cluster-autoscaler/charts/cluster-autoscaler/Chart.yaml",
                    as_of=date(2026, 8, 22),
                ),
            ),
            # The last chart with prometheus-operator 0.93.0, whose custom resources the manifests are checked against.
            _controller(
                "kube-prometheus-stack",
                version="88.3.0",
                app_version="v0.93.0",
                repository="https://prometheus-community.github.io/helm-charts",
                namespace="monitoring",
                min_kubernetes="1.25",
                crds_in_folder=True,
                source=Source(
                    title="prometheus-community/helm-charts charts/kube-prometheus-stack before 44bd7da3",
                    url="https://github.com/prometheus-community/helm-charts/commits/main/charts/kube-prometheus-stack/Chart.yaml",
                    as_of=date(2026, 8, 18),
                ),
            ),
            _controller(
                "dcgm-exporter",
                version="4.8.2",
                app_version="4.8.2",
                repository="https://nvidia.github.io/dcgm-exporter/helm-charts",
                namespace="monitoring",
                min_kubernetes="1.19",
                helm=False,
                source=Source(
                    title="NVIDIA/dcgm-exporter tag 4.5.3-4.8.2, deployment/Chart.yaml",
                    url="https://github.com/NVIDIA/dcgm-exporter/blob/4.5.3-4.8.2/deployment/Chart.yaml",
                    as_of=date(2026, 5, 12),
                ),
            ),
        )
    }
)
