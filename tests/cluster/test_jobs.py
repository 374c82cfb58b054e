"""The jobs that people start, by the real Kueue and scheduler, and that the trainer takes its nodes back from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infra.config.plan import Plan
from infra.local.kubernetes.api import Object
from infra.local.kubernetes.fleet import expected_pods
from k8s.charts.jobs import FOLDER
from k8s.charts.queueing import API as KUEUE_API
from k8s.manifest import ManifestFile
from k8s.names import RUN_NAMESPACE, TRAINER
from k8s.render import TRAINER_FILE
from tests.k8s.renders import rendered

from .bed import Bed
from .fleet import REFERENCE, Fleet, create_trainer, start

pytestmark = pytest.mark.cluster

ON_THE_TRAINER = "nccl-trainer"


def job_files() -> dict[str, ManifestFile]:
    """All but the trainer; last the one that is to be in the trainer's way."""
    found = {
        file.name.removeprefix(f"{FOLDER}/").removesuffix(".yaml"): file
        for file in rendered(REFERENCE).files
        if file.name.startswith(f"{FOLDER}/") and file.name != TRAINER_FILE
    }
    return {name: found[name] for name in sorted(found, key=lambda name: (name == ON_THE_TRAINER, name))}


@pytest.fixture(scope="module")
def fleet(start_bed: Callable[[Plan], Bed]) -> Fleet:
    """Every node, no engine: jobs find their pools idle."""
    return start(start_bed)


@pytest.mark.parametrize("name", job_files())
def test_a_job_is_admitted_and_all_its_pods_run_each_on_a_node(fleet: Fleet, name: str) -> None:
    stored = [fleet.bed.api.create(item).item for item in job_files()[name].objects]
    job = next(item for item in stored if item["kind"] == "Job")
    wanted = job["spec"]["parallelism"]
    running = fleet.bed.until(f"{name} running", lambda: len(found := _running(fleet, job)) == wanted and found)
    assert _admitted(fleet, job)
    assert len({pod["spec"]["nodeName"] for pod in running}) == wanted
    if name != ON_THE_TRAINER:
        for item in stored:
            fleet.bed.api.request("DELETE", fleet.bed.api.path_of(item), query={"propagationPolicy": "Background"})
        fleet.bed.until(f"{name} gone", lambda: not _pods(fleet, job))


def test_the_trainer_takes_its_nodes_back_from_a_job(fleet: Fleet) -> None:
    (job,) = fleet.bed.api.list("batch/v1", "Job", RUN_NAMESPACE)
    assert job["metadata"]["name"] == ON_THE_TRAINER
    assert len(_running(fleet, job)) == fleet.plan.workload.trainer.workers
    create_trainer(fleet)
    fleet.bed.until("trainer running", lambda: len(fleet.running(TRAINER)) == expected_pods(fleet.plan)[TRAINER])
    assert _pods(fleet, job) == []
    assert not _admitted(fleet, job)


def _pods(fleet: Fleet, job: Object) -> list[Object]:
    return fleet.bed.pods(selector=f"batch.kubernetes.io/job-name={job['metadata']['name']}")


def _running(fleet: Fleet, job: Object) -> list[Object]:
    return [pod for pod in _pods(fleet, job) if pod["status"].get("phase") == "Running"]


def _admitted(fleet: Fleet, job: Object) -> bool:
    """What Kueue says of the workload that stands for the job."""
    (workload,) = (
        item
        for item in fleet.bed.api.list(KUEUE_API, "Workload", RUN_NAMESPACE)
        if any(owner["uid"] == job["metadata"]["uid"] for owner in item["metadata"]["ownerReferences"])
    )
    conditions = workload.get("status", {}).get("conditions", ())
    return any((item["type"], item["status"]) == ("Admitted", "True") for item in conditions)
