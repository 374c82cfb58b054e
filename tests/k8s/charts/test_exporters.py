"""Exporters: what they read, where they listen, and that they export what rules and dashboards name."""

from __future__ import annotations

import csv
import re

import pytest

from k8s import metrics
from k8s.charts import exporters
from k8s.charts.observability import DCGM_EXPORTER, EFA_EXPORTER
from k8s.manifest import Object
from k8s.metrics import METRICS
from tests.shipped import IMAGE, SHIPPED, plan_of


def rendered(image: str | None = IMAGE) -> dict[str, Object]:
    found = exporters.objects(plan_of("reference-p5en"), image=image)
    return {item["metadata"]["name"]: item for item in found}


def main(item: Object) -> Object:
    (one,) = item["spec"]["template"]["spec"]["containers"]
    return one  # type: ignore[no-any-return]


def test_counters_are_csv_of_three_fields_as_the_exporter_reads_them() -> None:
    """A comma in a text would make a fourth field, and the exporter ends at the first line that has not three."""
    rows = list(csv.reader(exporters.counters().splitlines()))
    assert {len(row) for row in rows} == {3}
    assert {kind for _, kind, _ in rows} == {"gauge", "counter"}
    assert all(re.fullmatch(r"DCGM_FI_(DEV|PROF)_[A-Z0-9_]+", name) for name, _, _ in rows)
    assert len({name for name, _, _ in rows}) == len(rows)
    assert any("," in text for _, _, text in rows)


def test_every_dcgm_metric_that_a_rule_or_dashboard_may_name_is_exported_as_its_kind() -> None:
    exported = {name: kind for name, kind, _ in csv.reader(exporters.counters().splitlines())}
    named = {metric.name: metric.kind for metric in METRICS.values() if metric.exporter is metrics.DCGM}
    assert named
    assert named.items() <= exported.items()


def test_dcgm_reads_its_counters_from_the_rendered_map_and_starts_anew_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def annotation() -> str:
        return rendered()["dcgm-exporter"]["spec"]["template"]["metadata"]["annotations"]["moerl.io/counters"]

    item = rendered()["dcgm-exporter"]
    file = main(item)["args"][-1]
    (mount,) = (mount for mount in main(item)["volumeMounts"] if file.startswith(mount["mountPath"]))
    (volume,) = (v for v in item["spec"]["template"]["spec"]["volumes"] if v["name"] == mount["name"])
    config = rendered()[volume["configMap"]["name"]]
    assert config["data"][file.removeprefix(f"{mount['mountPath']}/")] == exporters.counters()
    before = annotation()
    monkeypatch.setattr(exporters, "DIAGNOSTICS", exporters.DIAGNOSTICS[1:])
    assert annotation() != before


def test_they_listen_on_the_pods_own_address() -> None:
    dcgm, efa = main(rendered()["dcgm-exporter"]), main(rendered()["efa-exporter"])
    listen = {entry["name"]: entry.get("value") for entry in dcgm["env"]}["DCGM_EXPORTER_LISTEN"]
    for address, one in ((listen, dcgm), (efa["args"][1], efa)):
        host, _, port = address.rpartition(":")
        assert host == "$(POD_IP)"
        assert one["env"][0]["name"] == "POD_IP"
        assert one["ports"] == [{"name": "metrics", "containerPort": int(port)}]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert one[probe]["httpGet"]["port"] == int(port)


def test_the_efa_exporter_reads_the_hosts_sysfs_and_can_write_nothing() -> None:
    item = rendered()["efa-exporter"]
    one = main(item)
    (mount,) = one["volumeMounts"]
    (volume,) = item["spec"]["template"]["spec"]["volumes"]
    assert (volume["hostPath"]["path"], mount["readOnly"]) == ("/sys", True)
    assert one["args"][one["args"].index("--sysfs") + 1] == mount["mountPath"]
    assert one["securityContext"]["runAsNonRoot"] is True
    assert one["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in one["env"]


def test_dcgm_has_the_one_capability_that_profiling_needs() -> None:
    context = main(rendered()["dcgm-exporter"])["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert not context.get("privileged")
    assert context["allowPrivilegeEscalation"] is False


def test_monitors_look_for_these_components_and_this_port() -> None:
    for component in (DCGM_EXPORTER, EFA_EXPORTER):
        labels = rendered()[component]["spec"]["template"]["metadata"]["labels"]
        assert labels["moerl.io/component"] == component


@pytest.mark.parametrize("name", SHIPPED)
def test_without_an_image_the_efa_exporter_is_left_out_by_name(name: str) -> None:
    plan = plan_of(name)
    assert {item["metadata"]["name"] for item in exporters.objects(plan, image=None)} == {
        "dcgm-counters",
        "dcgm-exporter",
    }
    (said,) = exporters.left_out(plan, image=None)
    assert said.startswith("DaemonSet efa-exporter:")
    assert exporters.left_out(plan, image=IMAGE) == ()


def test_an_environment_without_efa_has_no_efa_exporter_and_misses_none() -> None:
    off = {
        "pools.trainer.efa": False,
        "pools.rollout.efa": False,
        "workload.trainer.expert_parallel": 8,
        "workload.rollout.gpus_per_engine": 8,
        "workload.rollout.expert_parallel": 8,
    }
    plan = plan_of("starter-p5en", off)
    assert "efa-exporter" not in {item["metadata"]["name"] for item in exporters.objects(plan, image=IMAGE)}
    assert exporters.left_out(plan, image=None) == ()
