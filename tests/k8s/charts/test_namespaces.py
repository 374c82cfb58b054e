"""Every namespace that something is put into exists, at the strictest Pod Security level that its pods allow."""

from __future__ import annotations

import pytest

from infra.catalog.controllers import CONTROLLERS
from k8s.charts import namespaces
from k8s.names import MONITORING_NAMESPACE, RUN_NAMESPACE, SYSTEM_NAMESPACE
from tests.shipped import plan_of

LEVELS = {
    item["metadata"]["name"]: {
        key.partition("/")[2]: value
        for key, value in item["metadata"]["labels"].items()
        if key.startswith("pod-security.kubernetes.io/")
    }
    for item in namespaces.objects(plan_of("reference-p5en"))
}


def test_every_controller_has_its_namespace() -> None:
    wanted = {controller.namespace for controller in CONTROLLERS.values()} - {"kube-system"}
    assert LEVELS.keys() == wanted | {RUN_NAMESPACE, SYSTEM_NAMESPACE, MONITORING_NAMESPACE}


@pytest.mark.parametrize("name", LEVELS)
def test_level_is_stated_in_every_mode_at_the_clusters_version(name: str) -> None:
    assert LEVELS[name].keys() == {
        mode + suffix for mode in ("enforce", "audit", "warn") for suffix in ("", "-version")
    }
    versions = {value for key, value in LEVELS[name].items() if key.endswith("-version")}
    assert versions == {f"v{plan_of('reference-p5en').kubernetes.version}"}


def test_only_agents_monitoring_and_the_run_may_hold_privileged_pods() -> None:
    privileged = {name for name, levels in LEVELS.items() if levels["enforce"] == "privileged"}
    assert privileged == {RUN_NAMESPACE, SYSTEM_NAMESPACE, MONITORING_NAMESPACE}
    assert {LEVELS[name]["enforce"] for name in LEVELS.keys() - privileged} == {"restricted"}


def test_the_run_warns_and_audits_at_baseline() -> None:
    assert (LEVELS[RUN_NAMESPACE]["warn"], LEVELS[RUN_NAMESPACE]["audit"]) == ("baseline", "baseline")
