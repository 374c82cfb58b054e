"""The bed itself: the versions it runs, that it stays on loopback, ends whole, and shows the plan's nodes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from infra.catalog import CATALOG
from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE
from infra.local.kubernetes import cluster, processes
from infra.local.kubernetes.api import Object
from infra.local.kubernetes.fleet import addon_daemonsets, why_pending
from infra.local.kubernetes.programs import PROGRAMS, Programs, versions
from infra.local.processes import listening_addresses, start_ticks
from k8s.checks.quantities import quantity
from k8s.names import RUN_NAMESPACE
from k8s.schemas import locked_schemas
from tests.shipped import plan_of

from .bed import Bed, refusal

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def bed(start_bed: Callable[[Plan], Bed]) -> Bed:
    return start_bed(plan_of("reference-p5en"))


@pytest.mark.parametrize(("chart", "program"), [("kueue", "kueue"), ("kuberay-operator", "kuberay"), ("lws", "lws")])
def test_the_catalog_pins_the_controllers_that_run_here(chart: str, program: str) -> None:
    assert CATALOG.controllers[chart].app_version == f"v{versions()[program]}"


def test_the_default_environments_run_on_this_minor_version(bed: Bed) -> None:
    served = bed.api.request("GET", "/version")[0]["gitVersion"]
    assert served == f"v{versions()['kube-apiserver']}"
    assert served.startswith(f"v{plan_of('reference-p5en').kubernetes.version}.")


def test_every_program_listens_on_loopback_alone(bed: Bed) -> None:
    ports = {name: [(host, port) for host, port in listening_addresses(pid)] for name, pid in bed.cluster.pids.items()}
    assert {name for name, found in ports.items() if not found} == {"kwok"}
    assert {host for found in ports.values() for host, _ in found} == {"127.0.0.1"}


def test_nobody_without_a_certificate_is_heard(bed: Bed) -> None:
    pool = urllib3.PoolManager(ca_certs=str(bed.api.authority), retries=False)
    assert pool.request("GET", f"{bed.cluster.url}/api").status == 401


def test_keys_are_for_their_owner_alone(bed: Bed) -> None:
    open_to_others = [
        path
        for path in bed.cluster.folder.rglob("*")
        if path.suffix in (".key", ".kubeconfig") or path.name == "kubeconfig"
        if path.stat().st_mode & 0o077
    ]
    assert open_to_others == []


def test_the_kubeconfig_reaches_the_api_server(bed: Bed) -> None:
    config = yaml.safe_load(bed.cluster.kubeconfig.read_text(encoding="utf-8"))
    assert config["clusters"][0]["cluster"]["server"] == bed.cluster.url
    assert {"client-certificate-data", "client-key-data"} <= set(config["users"][0]["user"])


def test_the_started_control_plane_is_found_by_its_folder(bed: Bed, tmp_path: Path) -> None:
    found = cluster.status(bed.cluster.folder)
    assert found == bed.cluster
    assert cluster.status(tmp_path) is None


def test_real_webhooks_default_and_validate(bed: Bed) -> None:
    """What no schema does: LWS fills in the network, Kueue suspends, and LWS refuses a fleet that could never be renewed."""
    stored = bed.api.create(_leader_worker_set(), dry_run=True).item
    assert stored["spec"]["networkConfig"] == {"subdomainPolicy": "Shared"}
    assert bed.api.create(_job(), dry_run=True).item["spec"]["suspend"] is True
    stuck = {"maxUnavailable": "25%", "maxSurge": 0}
    fault = refusal(
        lambda: bed.api.create(
            _leader_worker_set(rolloutStrategy={"type": "RollingUpdate", "rollingUpdateConfiguration": stuck}),
            dry_run=True,
        )
    )
    assert fault is not None
    assert 'webhook "vleaderworkerset.kb.io" denied' in fault.message


def _leader_worker_set(**fields: Any) -> Object:
    template = {"size": 2, "workerTemplate": {"spec": {"containers": [{"name": "c", "image": "c"}]}}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "hooks", "namespace": RUN_NAMESPACE},
        "spec": {"leaderWorkerTemplate": template, **fields},
    }


def _job() -> Object:
    spec = {"containers": [{"name": "c", "image": "c"}], "restartPolicy": "Never"}
    labels = {"kueue.x-k8s.io/queue-name": "any"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "hooks", "namespace": RUN_NAMESPACE, "labels": labels},
        "spec": {"template": {"spec": spec}},
    }


@pytest.fixture(scope="module")
def nodes(bed: Bed) -> dict[str, Object]:
    """All nodes of the environment by name, as they are stored."""
    bed.add_nodes(plan_of("reference-p5en"))
    return {node["metadata"]["name"]: node for node in bed.ready_nodes()}


EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
CAPACITY = {"reservation": "ON_DEMAND", "on_demand": "ON_DEMAND", "spot": "SPOT"}


def test_nodes_are_those_of_the_plan(nodes: dict[str, Object]) -> None:
    """48 GPU nodes with the plan's devices, the CPU pools, and every pool's labels and taints."""
    plan, stored = plan_of("reference-p5en"), nodes
    assert len(stored) == sum(pool.size.max for pool in plan.pools)
    assert sum(1 for node in stored.values() if GPU_RESOURCE in node["status"]["allocatable"]) == 48
    for pool in plan.pools:
        for index in range(pool.size.max):
            node = stored[f"{pool.name}-{index}"]
            has = node["status"]["allocatable"]
            assert has.get(GPU_RESOURCE, "0") == str(pool.gpus_per_node)
            assert has.get(EFA_RESOURCE, "0") == str(pool.efa_per_node)
            assert has[HUGE_PAGES_RESOURCE] == (f"{pool.huge_pages_mib}Mi" if pool.huge_pages_mib else "0")
            assert pool.labels.items() <= node["metadata"]["labels"].items()
            assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] in pool.zones
            assert node["metadata"]["labels"]["eks.amazonaws.com/capacityType"] == CAPACITY[pool.capacity.type]
            assert quantity(has["cpu"]) == Fraction(pool.allocatable.cpu_millis, 1000)
            assert quantity(has["memory"]) == pool.allocatable.memory_mib * 2**20
            assert [
                (taint["key"], taint.get("value", ""), taint["effect"]) for taint in node["spec"].get("taints", ())
            ] == [(taint.key, taint.value, EFFECTS[taint.effect]) for taint in pool.taints]
    assert len({node["spec"]["providerID"] for node in stored.values()}) == len(stored)


def test_add_ons_fit_on_every_node(bed: Bed, nodes: dict[str, Object]) -> None:
    addons = addon_daemonsets()
    bed.apply(addons)
    wanted = len(addons) * len(nodes)
    placed = bed.until("add-ons on every node", lambda: len(bed.running("kube-system")) >= wanted and wanted)
    assert placed == wanted


@pytest.mark.usefixtures("nodes")
def test_the_real_scheduler_says_why_a_pod_waits(bed: Bed) -> None:
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "too-large", "namespace": "default"},
        "spec": {
            "containers": [
                {"name": "c", "image": "c", "resources": {"limits": {GPU_RESOURCE: "8", EFA_RESOURCE: "33"}}}
            ],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    bed.api.create(pod)
    reason = bed.until(
        "a reason", lambda: why_pending(bed.api.get("v1", "Pod", "too-large", "default") or {"status": {}})
    )
    assert f"Insufficient {EFA_RESOURCE}" in reason


def test_schemas_are_locked_as_the_modules_carry_them(programs: Programs) -> None:
    """The fast checks read the same definitions that the real controllers bring."""
    digests = {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("kueue-crds", "lws-crds", "kuberay-crds")
        for path in programs.asset(folder).glob("*.yaml")
    }
    ours = {
        schema.file: schema.sha256 for schema in locked_schemas() if schema.controller in ("kueue", "kuberay", "lws")
    }
    assert {file for file, digest in ours.items() if digest not in digests} == set()
    assert len(ours) >= 5


def test_the_group_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Also when that is killed and can clean nothing up."""
    source = (
        "import sys, time; from pathlib import Path; from infra.local.kubernetes.processes import Group\n"
        "group = Group(Path(sys.argv[1]))\n"
        "group.start('one', ['sleep', '600']); group.start('two', ['sleep', '600'])\n"
        "print(*group.pids().values(), flush=True); time.sleep(600)\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as parent:
        assert parent.stdout is not None
        started = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(started) == 2
        assert all(start_ticks(pid) for pid in started)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(start_ticks(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(start_ticks(pid) for pid in started)


def test_a_program_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    group = processes.Group(tmp_path)
    try:
        group.start("broken", ["sh", "-c", "echo the reason; exit 3"])
        with pytest.raises(processes.ProcessFault, match=r"broken exited with 3:\nthe reason"):
            group.wait("broken", lambda: False, 10)
    finally:
        group.end()


def test_every_program_has_a_pinned_module() -> None:
    assert {program.name for program in PROGRAMS} == set(versions())
