import re

import pytest

from infra.catalog.controllers import CONTROLLERS, Controller
from infra.catalog.facts import Unresolved
from infra.catalog.instances import INSTANCES
from infra.catalog.kubernetes import FLOOR

EACH = pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)


def dotted(version: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(version).lstrip("v").split("."))


def test_versions_are_those_that_the_control_plane_test_bed_ran() -> None:
    tested = {"kuberay-operator": "1.5.0", "kueue": "0.17.0", "lws": "0.9.0", "keda": "2.20.1"}
    assert {name: CONTROLLERS[name].version for name in tested} == tested
    assert CONTROLLERS["kube-prometheus-stack"].app_version == "v0.93.0"


@EACH
def test_chart_runs_on_the_oldest_accepted_kubernetes(controller: Controller) -> None:
    assert dotted(controller.min_kubernetes) <= dotted(FLOOR)


@EACH
def test_chart_version_is_exact_and_its_digest_comes_from_that_version(controller: Controller) -> None:
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", str(controller.version))
    assert isinstance(controller.digest, Unresolved)
    assert f"--version {controller.version} " in controller.digest.command
    assert controller.chart in controller.digest.command


@EACH
def test_repository_is_public_and_over_tls(controller: Controller) -> None:
    assert controller.repository.startswith(("https://", "oci://"))


def test_efa_plugin_knows_every_type_with_efa_at_the_pinned_version() -> None:
    plugin = CONTROLLERS["aws-efa-k8s-device-plugin"]
    assert set(plugin.min_version_by_instance_type) == {name for name, type_ in INSTANCES.items() if type_.efa_devices}
    for name, floor in plugin.min_version_by_instance_type.items():
        assert dotted(floor) <= dotted(plugin.version), name


def test_efa_plugin_version_of_the_known_problem_is_below_the_floor_for_p6_b200() -> None:
    floor = CONTROLLERS["aws-efa-k8s-device-plugin"].min_version_by_instance_type["p6-b200.48xlarge"]
    assert dotted("v0.4.4") < dotted(floor)


def test_gpu_plugin_is_new_enough_for_its_mofed_switch() -> None:
    assert dotted(CONTROLLERS["nvidia-device-plugin"].version) >= (0, 19, 0)
