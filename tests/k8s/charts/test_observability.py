"""Monitors find the pods that export, on the port and the labels that those pods have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k8s.charts import observability, rollout, workers
from k8s.manifest import Object
from tests.shipped import IMAGE, SHIPPED, plan_of


def of_kind(kind: str, name: str = "reference-p5en") -> dict[str, Object]:
    made = observability.objects(plan_of(name))
    return {item["metadata"]["name"]: item for item in made if item["kind"] == kind}


def run_pods(name: str) -> list[dict[str, Any]]:
    """Pod templates of engines and workers."""
    plan = plan_of(name)
    found = []
    for item in (*rollout.objects(plan, image=IMAGE), *workers.objects(plan, image=IMAGE)):
        if item["kind"] == "LeaderWorkerSet":
            group = item["spec"]["leaderWorkerTemplate"]
            found += [group[key] for key in ("leaderTemplate", "workerTemplate") if key in group]
        elif "template" in item["spec"]:
            found.append(item["spec"]["template"])
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_every_engine_and_worker_is_scraped_on_a_port_it_has(name: str) -> None:
    monitors = of_kind("PodMonitor", name).values()
    for pod in run_pods(name):
        labels = pod["metadata"]["labels"]
        ports = {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", [])}
        hits = [
            monitor["spec"]
            for monitor in monitors
            if monitor["spec"]["namespaceSelector"]["matchNames"] == ["rl"]
            and all(
                labels.get(term["key"]) in term["values"] for term in monitor["spec"]["selector"]["matchExpressions"]
            )
        ]
        assert len(hits) == 1
        assert {endpoint["port"] for endpoint in hits[0]["podMetricsEndpoints"]} <= ports


def test_an_engines_own_metrics_come_through_its_agent() -> None:
    endpoints = of_kind("PodMonitor")["moerl-rollout"]["spec"]["podMetricsEndpoints"]
    assert [endpoint["path"] for endpoint in endpoints] == ["/metrics", "/engine/metrics"]


def test_the_trainers_head_shows_its_own_series_and_the_frameworks() -> None:
    endpoints = of_kind("PodMonitor")["moerl-trainer"]["spec"]["podMetricsEndpoints"]
    assert [endpoint["path"] for endpoint in endpoints] == ["/metrics", "/framework/metrics"]


def test_pool_and_role_come_from_labels_that_pods_and_nodes_have() -> None:
    def sources(monitor: str) -> dict[str, str]:
        (relabelings, *_) = [
            each["relabelings"] for each in of_kind("PodMonitor")[monitor]["spec"]["podMetricsEndpoints"]
        ]
        return {each["targetLabel"]: each["sourceLabels"][0] for each in relabelings}

    pod = run_pods("reference-p5en")[0]["metadata"]["labels"]
    node = plan_of("reference-p5en").pool("rollout").labels
    meta = "__meta_kubernetes_{}_label_{}"
    for monitor, of, labels in (("moerl-rollout", "pod", pod), ("moerl-node-agents", "node", node)):
        known = {meta.format(of, key.replace(".", "_").replace("/", "_")) for key in labels}
        found = sources(monitor)
        assert {found["pool"], found["role"]} <= known
        assert found["node"] == "__meta_kubernetes_pod_node_name"


def test_node_labels_are_fetched_only_where_they_are_used() -> None:
    for name, monitor in of_kind("PodMonitor").items():
        uses_node = "node_label" in json.dumps(monitor["spec"]["podMetricsEndpoints"])
        assert monitor["spec"]["attachMetadata"]["node"] == uses_node, name


def test_a_scrape_ends_before_the_next_begins() -> None:
    for monitor in of_kind("PodMonitor").values():
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert int(endpoint["scrapeTimeout"][:-1]) < int(endpoint["interval"][:-1])


def test_operator_and_grafana_find_their_objects() -> None:
    for kind in ("PodMonitor", "PrometheusRule"):
        assert all(item["metadata"]["labels"]["release"] == "kube-prometheus-stack" for item in of_kind(kind).values())
    boards = of_kind("ConfigMap")
    assert len(boards) == 2
    for board in boards.values():
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((key, text),) = board["data"].items()
        assert key.endswith(".json")
        assert json.loads(text)["panels"]
