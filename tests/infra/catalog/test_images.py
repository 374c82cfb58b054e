"""Third-party images: exact tags, the version of the chart they stand for, and the registry that a region's nodes reach."""

import re

import pytest

from infra.catalog import CATALOG
from infra.catalog.controllers import CONTROLLERS
from infra.catalog.images import AUTOSCALER_TAGS, EKS_REGISTRY_ACCOUNTS, IMAGES, ContainerImage, eks_registry
from infra.catalog.kubernetes import KUBERNETES_VERSIONS

EACH = pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)


@EACH
def test_tag_is_exact_and_no_digest_is_made_up(image: ContainerImage) -> None:
    for tag in (image.tag, *image.tag_by_kubernetes.values()):
        assert re.fullmatch(r"v?\d+\.\d+\.\d+(-[\d.]+)?(-distroless)?", tag)
    assert image.tag in image.digest.command
    assert image.repository in image.digest.command


@EACH
def test_repository_names_its_registry_or_is_a_path_in_that_of_eks(image: ContainerImage) -> None:
    host = image.repository.partition("/")[0]
    assert ("." in host) != image.in_eks_registry
    assert image.repository_in("us-west-2").endswith(image.repository)
    assert "." in image.repository_in("us-west-2").partition("/")[0]


@pytest.mark.parametrize(
    ("image", "controller"),
    [
        ("nvidia-device-plugin", "nvidia-device-plugin"),
        ("efa-device-plugin", "aws-efa-k8s-device-plugin"),
        ("dcgm-exporter", "dcgm-exporter"),
        ("kuberay-operator", "kuberay-operator"),
        ("kueue", "kueue"),
        ("lws", "lws"),
        ("keda-operator", "keda"),
        ("keda-metrics-apiserver", "keda"),
        ("keda-admission-webhooks", "keda"),
    ],
)
def test_image_is_the_build_that_the_pinned_chart_names(image: str, controller: str) -> None:
    assert str(CONTROLLERS[controller].app_version).lstrip("v") in IMAGES[image].tag


def test_b33_the_efa_plugin_image_is_that_of_a_chart_which_knows_every_type_with_efa() -> None:
    """No key of the environment file changes the plugin's version, so there is no lower one to refuse."""
    plugin = CONTROLLERS["aws-efa-k8s-device-plugin"]
    assert IMAGES["efa-device-plugin"].tag == plugin.app_version
    pinned = tuple(int(part) for part in str(plugin.version).lstrip("v").split("."))
    for name, instance in CATALOG.instances.items():
        if instance.efa_devices:
            floor = plugin.min_version_by_instance_type[name]
            assert tuple(int(part) for part in floor.lstrip("v").split(".")) <= pinned, name


def test_the_autoscaler_has_a_release_of_every_minor_version_of_the_catalog() -> None:
    assert set(AUTOSCALER_TAGS) == set(KUBERNETES_VERSIONS)
    for minor, tag in AUTOSCALER_TAGS.items():
        assert tag.startswith(f"v{minor}.")
        assert IMAGES["cluster-autoscaler"].tag_for(minor) == tag


def test_the_registry_of_eks_is_in_the_nodes_own_region_and_partition() -> None:
    assert eks_registry("us-west-2") == "602401143452.dkr.ecr.us-west-2.amazonaws.com"
    assert eks_registry("me-south-1") == "558608220178.dkr.ecr.me-south-1.amazonaws.com"
    assert eks_registry("cn-north-1") == "918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn"
    assert all(re.fullmatch(r"\d{12}", account) for account in EKS_REGISTRY_ACCOUNTS.values())
