"""The trainer's RayJob: a gang that runs once, with the Plan's numbers, under a name that its content decides."""

from __future__ import annotations

import json
import re

import pytest

from infra.catalog import CATALOG
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE
from k8s import pods
from k8s.charts import trainer
from k8s.flags.sglang_rules import parse
from tests.k8s.renders import outputs_of
from tests.shipped import IMAGE, SHIPPED, plan_of

R, P5, S = "reference-p5en", "p5", "starter-p5en"
OTHER = IMAGE[:-1] + "1"
BASELINE = {
    "software": "baseline",
    "workload.rollout.precision": "bf16",
    "workload.trainer.expert_parallel": 8,
    "checkpoints.scratch": "fsx",
}


def job_of(plan, image: str = IMAGE) -> dict:
    (job,) = (item for item in trainer.objects(plan, image=image, outputs=outputs_of(plan)) if item["kind"] == "RayJob")
    return job


def config_of(plan) -> dict:
    (config,) = (
        item for item in trainer.objects(plan, image=IMAGE, outputs=outputs_of(plan)) if item["kind"] == "ConfigMap"
    )
    return config


def cluster_of(plan) -> dict:
    return job_of(plan)["spec"]["rayClusterSpec"]


@pytest.mark.parametrize("name", SHIPPED)
def test_it_is_admitted_as_a_gang_and_runs_once(name) -> None:
    job = job_of(plan_of(name))
    spec = job["spec"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "trainer"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "trainer"
    assert spec["suspend"] is True
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["backoffLimit"] == 0
    assert spec["rayClusterSpec"]["enableInTreeAutoscaling"] is False
    assert "gcsFaultToleranceOptions" not in spec["rayClusterSpec"]


def test_a_lost_head_ends_the_run() -> None:
    """HTTP mode asks a head that is gone for ever; the submitter that follows the log fails, and the job with it."""
    spec = job_of(plan_of(R))["spec"]
    assert spec["submissionMode"] == "K8sJobMode"
    assert spec["submitterPodTemplate"]["spec"]["restartPolicy"] == "Never"
    assert spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("name", SHIPPED)
def test_workers_follow_from_the_flags(name) -> None:
    """C8: fewer workers than the flags need wait for ever."""
    plan = plan_of(name)
    (group,) = cluster_of(plan)["workerGroupSpecs"]
    flags = parse(json.loads(config_of(plan)["data"]["flags.json"]))
    nodes, gpus = int(flags["--actor-num-nodes"]), int(flags["--actor-num-gpus-per-node"])
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == nodes
    assert group["rayStartParams"]["num-gpus"] == str(gpus)
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["requests"][GPU_RESOURCE] == str(gpus)


@pytest.mark.parametrize(("name", "efa"), [(R, 16), (P5, 32), ("p6-b200", 8)])
def test_a_worker_takes_all_of_a_nodes_devices(name, efa) -> None:
    """B05: a part of the EFA devices passes an all-reduce and breaks point-to-point traffic."""
    plan = plan_of(name)
    assert plan.pool(plan.workload.trainer.pool).efa_per_node == efa
    (container,) = cluster_of(plan)["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    requests = container["resources"]["requests"]
    assert requests == container["resources"]["limits"] == pods.quantity(plan.workload.trainer.pods.worker)
    assert requests[EFA_RESOURCE] == str(efa)
    assert requests[HUGE_PAGES_RESOURCE] == "5120Mi"


def test_the_head_offers_nothing() -> None:
    """B41: a head on a GPU node otherwise advertises the node's GPUs, and Ray puts ranks there."""
    head = cluster_of(plan_of(R))["headGroupSpec"]
    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    (container,) = head["template"]["spec"]["containers"]
    assert not {GPU_RESOURCE, EFA_RESOURCE} & set(container["resources"]["requests"])


def test_the_dashboard_binds_the_pod_alone() -> None:
    """KubeRay's own default is every interface."""
    assert cluster_of(plan_of(R))["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "$POD_IP"


def test_the_object_store_fits_shared_memory_beside_nccl() -> None:
    cluster = cluster_of(plan_of(R))
    for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0]):
        (shm,) = (volume for volume in group["template"]["spec"]["volumes"] if volume["name"] == "shm")
        size = int(shm["emptyDir"]["sizeLimit"].removesuffix("Mi")) * 2**20
        assert 0 < int(group["rayStartParams"]["object-store-memory"]) <= size // 2


def test_the_name_follows_from_all_content() -> None:
    """B43: KubeRay keeps the pods of an existing object, so a change has to be a new one."""
    plan = plan_of(S)
    name = trainer.run_name(plan, image=IMAGE)
    assert re.fullmatch(r"trainer-[0-9a-f]{8}", name)
    assert name == trainer.run_name(plan_of(S), image=IMAGE)
    changed = [
        trainer.run_name(plan, image=OTHER),
        trainer.run_name(plan_of(S, {"workload.trainer.flags": {"lr": "2e-6"}}), image=IMAGE),
        trainer.run_name(plan_of(S, {"workload.save_interval": 10}), image=IMAGE),
        trainer.run_name(plan_of(S, {"pools.trainer.nodes": 4}), image=IMAGE),
    ]
    assert len({name, *changed}) == 1 + len(changed)


def test_name_labels_and_config_belong_together() -> None:
    plan = plan_of(S)
    name, job, config = trainer.run_name(plan, image=IMAGE), job_of(plan), config_of(plan)
    assert job["metadata"]["name"] == config["metadata"]["name"] == name
    assert config["immutable"] is True
    cluster = job["spec"]["rayClusterSpec"]
    for template in (cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]):
        assert template["metadata"]["labels"]["moerl.io/run"] == name
        assert {"name": name} in [volume.get("configMap") for volume in template["spec"]["volumes"]]
    # KubeRay cuts a RayJob's name above 47 characters.
    assert len(name) <= 47


def test_workers_of_a_run_have_a_name_of_their_own_to_meet_at() -> None:
    """Created with the run and named after it: those of another run, the head and the submitter do not count as nodes."""
    plan = plan_of(R)
    config, service, job = trainer.objects(plan, image=IMAGE, outputs=outputs_of(plan))
    assert service["kind"] == "Service"
    assert service["metadata"]["name"] == f"{job['metadata']['name']}-fabric"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert config["metadata"]["labels"]["moerl.io/run"] == service["spec"]["selector"]["moerl.io/run"]
    cluster, selector = job["spec"]["rayClusterSpec"], service["spec"]["selector"].items()
    worker, head = cluster["workerGroupSpecs"][0]["template"], cluster["headGroupSpec"]["template"]
    assert selector <= worker["metadata"]["labels"].items()
    for other in (head, job["spec"]["submitterPodTemplate"]):
        assert not selector <= other["metadata"]["labels"].items()
    (fabric,) = (item for item in worker["spec"]["initContainers"] if item["name"] == "fabric")
    assert f"{service['metadata']['name']}.rl.svc:{service['spec']['ports'][0]['port']}" in fabric["args"]
    # A name would be looked up among the main containers' ports alone.
    assert [port["containerPort"] for port in fabric["ports"]] == [service["spec"]["ports"][0]["targetPort"]]


def test_the_entrypoint_holds_nothing_of_the_file() -> None:
    """A shell reads it."""
    assert {job_of(plan_of(name))["spec"]["entrypoint"] for name in SHIPPED} == {trainer.ENTRYPOINT}
    assert re.fullmatch(r"[a-z0-9_ /-]+", trainer.ENTRYPOINT)


def test_flags_and_engine_list_are_in_the_config() -> None:
    miles = config_of(plan_of(S))["data"]
    assert parse(json.loads(miles["flags.json"]))["--sglang-config"] == "/etc/moerl-trainer/sglang.yaml"
    assert miles["sglang.yaml"] == "sglang: []\n"
    slime = config_of(plan_of(S, BASELINE))["data"]
    assert set(slime) == {"flags.json"}
    assert "--debug-train-only" in json.loads(slime["flags.json"])
    assert CATALOG.software["baseline"].framework == "slime"


def test_no_pod_is_evicted_by_a_drain() -> None:
    (budget,) = trainer.budget(plan_of(S))
    spec = job_of(plan_of(S))["spec"]
    workers = spec["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]
    assert budget["spec"]["minAvailable"] == workers + 2, "workers, head, submitter; a share counts no RayCluster"
    templates = [
        spec["submitterPodTemplate"],
        spec["rayClusterSpec"]["headGroupSpec"]["template"],
        spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"],
    ]
    selector = budget["spec"]["selector"]["matchLabels"].items()
    assert all(selector <= template["metadata"]["labels"].items() for template in templates)


@pytest.mark.parametrize("image", ["", "repository/x:latest", "repository/x"])
def test_an_image_without_a_digest_is_refused(image) -> None:
    with pytest.raises(ValueError, match="image"):
        trainer.objects(plan_of(S), image=image)
