"""The trainer starts whole or not at all, and engines that wait for Spot never keep it from starting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infra.config.plan import Plan
from infra.local.kubernetes.api import Object
from infra.local.kubernetes.fleet import expected_pods, scale_up
from k8s.charts.queueing import API as KUEUE_API
from k8s.names import ROLLOUT, RUN_NAMESPACE, TRAINER

from .bed import Bed
from .fleet import Fleet, create_trainer, replace, start

pytestmark = pytest.mark.cluster
SPOT_NODES = 32


@pytest.fixture(scope="module")
def short(start_bed: Callable[[Plan], Bed]) -> Fleet:
    """One trainer node short, no Spot node at all, and every engine asked for."""
    made = start(start_bed, missing={"trainer": 1, "rollout": SPOT_NODES})
    scale_up(made.bed.api, made.plan)
    made.bed.until("engines waiting", lambda: len(made.pods(ROLLOUT)) >= SPOT_NODES // 2)
    create_trainer(made)
    return made


def test_with_one_node_short_nothing_is_admitted_and_kueue_says_why(short: Fleet) -> None:
    fits = "allows to fit only 15 out of 16 pod(s)"
    short.bed.until("the reason", lambda: any(fits in reason for reason in _reasons(short)))
    assert not _admitted(short)
    assert short.pods(TRAINER) == []


def test_with_the_node_back_all_of_it_starts_while_the_spot_fleet_still_waits(short: Fleet) -> None:
    replace(short, "trainer", 1)
    wanted = expected_pods(short.plan)[TRAINER]
    short.bed.until("trainer running", lambda: len(short.running(TRAINER)) == wanted)
    assert _admitted(short)
    assert short.running(ROLLOUT) == []
    assert len(short.pods(ROLLOUT)) >= SPOT_NODES // 2


def test_the_workers_of_the_run_and_nobody_else_stand_behind_the_name_where_they_meet(short: Fleet) -> None:
    """What its DNS records are made of, each with the port, which only an init container names."""
    workers = [pod for pod in short.pods(TRAINER) if pod["metadata"]["labels"]["moerl.io/part"] == "worker"]
    (run,) = {pod["metadata"]["labels"]["moerl.io/run"] for pod in workers}
    names = sorted(pod["metadata"]["name"] for pod in workers)
    slices = short.bed.until("endpoints", lambda: _complete(short, f"{run}-fabric", len(workers)))
    endpoints = [endpoint for item in slices for endpoint in item["endpoints"]]
    assert sorted(endpoint["targetRef"]["name"] for endpoint in endpoints) == names
    assert len(names) == short.plan.workload.trainer.workers
    assert all(endpoint["conditions"]["ready"] for endpoint in endpoints)
    assert {port["port"] for item in slices for port in item["ports"]} == {29_500}


def _complete(fleet: Fleet, service: str, count: int) -> list[Object]:
    """EndpointSlices of a Service once they hold so many endpoints."""
    found = fleet.bed.api.list("discovery.k8s.io/v1", "EndpointSlice", RUN_NAMESPACE)
    own = [item for item in found if item["metadata"]["labels"].get("kubernetes.io/service-name") == service]
    return own if sum(len(item["endpoints"]) for item in own) == count else []


def _reasons(fleet: Fleet) -> list[str]:
    events = fleet.bed.api.list("v1", "Event", RUN_NAMESPACE)
    return [
        event["message"]
        for event in events
        if (event["involvedObject"]["kind"], event["reason"]) == ("Workload", "Pending")
    ]


def _admitted(fleet: Fleet) -> bool:
    (workload,) = fleet.bed.api.list(KUEUE_API, "Workload", RUN_NAMESPACE)
    conditions = workload.get("status", {}).get("conditions", ())
    return any((item["type"], item["status"]) == ("Admitted", "True") for item in conditions)
