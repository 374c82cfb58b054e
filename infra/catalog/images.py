"""Third-party container images that charts and the image project name, and the registries that hold them.

A tag says which build is meant; only its digest says that it is still the one that was looked up, and that differs from
day to day where a tag is moved. So a digest is a pin, and `moerl lock` resolves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType

from infra.catalog.controllers import CONTROLLERS
from infra.catalog.facts import Source, Unresolved
from infra.catalog.kubernetes import FLOOR

_NO_TAGS: Mapping[str, str] = MappingProxyType({})

EKS_REGISTRY_ACCOUNT = "602401143452"
EKS_REGISTRY_ACCOUNTS: Mapping[str, str] = MappingProxyType(
    {
        "af-south-1": "877085696533",
        "ap-east-1": "800184023465",
        "ap-east-2": "533267051163",
        "ap-south-2": "900889452093",
        "ap-southeast-3": "296578399912",
        "ap-southeast-4": "491585149902",
        "ap-southeast-5": "151610086707",
        "ap-southeast-6": "333609536671",
        "ap-southeast-7": "121268973566",
        "ca-west-1": "761377655185",
        "cn-north-1": "918309763551",
        "cn-northwest-1": "961992271922",
        "eu-central-2": "900612956339",
        "eu-south-1": "590381155156",
        "eu-south-2": "455263428931",
        "il-central-1": "066635153087",
        "me-central-1": "759879836304",
        "me-south-1": "558608220178",
        "mx-central-1": "730335286997",
        "us-gov-east-1": "151742754352",
        "us-gov-west-1": "013241004608",
    }
)
"""Accounts of the registries of EKS that are not EKS_REGISTRY_ACCOUNT, which serves every other region."""
# The copy carries no date. Given is the earliest that its content allows.
EKS_REGISTRIES_SOURCE = Source(
    title="Amazon EKS user guide, container image registries for add-ons",
    url="https://github.com/awsdocs/amazon-eks-user-guide/blob/1cc6ebb4a163f7f42689fdb6860cc4e93a03d24e/latest/ug/workloads/add-ons-images.adoc",
    as_of=date(2026, 1, 15),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImage:
    """One image.

    `repository` has the registry in front, but with `in_eks_registry`: then it is a path in the registry that EKS keeps
    in each region, which needs AWS credentials and is reached without a way out to the internet. `tag_by_kubernetes`
    takes the place of `tag` for software whose version has to match the cluster's minor version.
    """

    name: str
    repository: str
    tag: str
    tag_by_kubernetes: Mapping[str, str] = field(default_factory=lambda: _NO_TAGS)
    in_eks_registry: bool = False
    digest: Unresolved
    source: Source

    def tag_for(self, kubernetes_version: str) -> str:
        """The tag for a cluster of that minor version."""
        return self.tag_by_kubernetes.get(kubernetes_version, self.tag)

    def repository_in(self, region: str) -> str:
        """The repository with its registry, as a node of that region pulls it."""
        return f"{eks_registry(region)}/{self.repository}" if self.in_eks_registry else self.repository


def eks_registry(region: str) -> str:
    """Host name of the registry of EKS in a region."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{eks_registry_account(region)}.dkr.ecr.{region}.{suffix}"


def eks_registry_account(region: str) -> str:
    return EKS_REGISTRY_ACCOUNTS.get(region, EKS_REGISTRY_ACCOUNT)


def _image(
    name: str,
    repository: str,
    tag: str,
    *,
    tag_by_kubernetes: Mapping[str, str] = _NO_TAGS,
    in_eks_registry: bool = False,
    source: Source,
) -> ContainerImage:
    what = f"digest of {repository}:{tag}"
    if in_eks_registry:
        command = (
            "aws ecr batch-get-image --region <region> --registry-id <registry account> "
            f"--repository-name {repository} --image-ids imageTag={tag} "
            "--query 'images[0].imageId.imageDigest' --output text"
        )
    else:
        command = f"docker buildx imagetools inspect {repository}:{tag} --format '{{{{.Manifest.Digest}}}}'"
    return ContainerImage(
        name=name,
        repository=repository,
        tag=tag,
        tag_by_kubernetes=tag_by_kubernetes,
        in_eks_registry=in_eks_registry,
        digest=Unresolved(what=what, command=command),
        source=source,
    )


def _app_version(controller: str) -> str:
    return str(CONTROLLERS[controller].app_version)


_RAN = {name: CONTROLLERS[name].source for name in CONTROLLERS}

# Newest release of each minor version by the tags of kubernetes/autoscaler.
AUTOSCALER_TAGS: Mapping[str, str] = MappingProxyType(
    {
        "1.31": "v1.31.5",
        "1.32": "v1.32.7",
        "1.33": "v1.33.6",
        "1.34": "v1.34.5",
        "1.35": "v1.35.2",
        "1.36": "v1.36.1",
    }
)

IMAGES: Mapping[str, ContainerImage] = MappingProxyType(
    {
        image.name: image
        for image in (
            _image(
                "nvidia-device-plugin",
                "nvcr.io/nvidia/k8s-device-plugin",
                f"v{_app_version('nvidia-device-plugin')}",
                source=_RAN["nvidia-device-plugin"],
            ),
            # The chart's own repository, in the node's region; a public copy exists, with anonymous pull limits.
            _image(
                "efa-device-plugin",
                "eks/aws-efa-k8s-device-plugin",
                _app_version("aws-efa-k8s-device-plugin"),
                in_eks_registry=True,
                source=_RAN["aws-efa-k8s-device-plugin"],
            ),
            _image(
                "dcgm-exporter",
                "nvcr.io/nvidia/k8s/dcgm-exporter",
                f"4.5.3-{_app_version('dcgm-exporter')}-distroless",
                source=_RAN["dcgm-exporter"],
            ),
            _image(
                "kuberay-operator",
                "quay.io/kuberay/operator",
                _app_version("kuberay-operator"),
                source=_RAN["kuberay-operator"],
            ),
            # In the repository the charts of kueue and lws name a staging registry; released ones name these.
            _image("kueue", "registry.k8s.io/kueue/kueue", _app_version("kueue"), source=_RAN["kueue"]),
            _image("lws", "registry.k8s.io/lws/lws", _app_version("lws"), source=_RAN["lws"]),
            _image("keda-operator", "ghcr.io/kedacore/keda", _app_version("keda"), source=_RAN["keda"]),
            _image(
                "keda-metrics-apiserver",
                "ghcr.io/kedacore/keda-metrics-apiserver",
                _app_version("keda"),
                source=_RAN["keda"],
            ),
            _image(
                "keda-admission-webhooks",
                "ghcr.io/kedacore/keda-admission-webhooks",
                _app_version("keda"),
                source=_RAN["keda"],
            ),
            # Not a chart's: the image project lists with it what the run's image is made of.
            _image(
                "syft",
                "ghcr.io/anchore/syft",
                "v1.45.0",
                source=Source(
                    title="anchore/syft release v1.45.0, in use at joshuasing/starlink_exporter pull request 243",
                    url="https://github.com/anchore/syft/releases/tag/v1.45.0",
                    as_of=date(2026, 6, 8),
                ),
            ),
            _image(
                "cluster-autoscaler",
                "registry.k8s.io/autoscaling/cluster-autoscaler",
                AUTOSCALER_TAGS[FLOOR],
                tag_by_kubernetes=AUTOSCALER_TAGS,
                source=Source(
                    title="kubernetes/autoscaler, release tags cluster-autoscaler-1.31.5 to 1.36.1",
                    url="https://github.com/kubernetes/autoscaler/tags",
                    as_of=date(2026, 8, 22),
                ),
            ),
        )
    }
)
