"""Jobs that people start: queued, whole nodes, and all that they need to meet."""

from __future__ import annotations

import argparse

import pytest

from infra.catalog import CATALOG
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from k8s import pods
from k8s.charts import jobs
from moerl_runtime.preflight import fabric
from moerl_runtime.weights import cli, prepare
from tests.shipped import IMAGE, SHIPPED, plan_of

R, P6, S = "reference-p5en", "p6-b200", "starter-p5en"


def files_of(name: str, changes=None) -> dict[str, tuple]:
    return {
        file.name.removeprefix("jobs/").removesuffix(".yaml"): file.objects
        for file in jobs.files(plan_of(name, changes), image=IMAGE)
    }


def job(objects: tuple) -> dict:
    (found,) = (item for item in objects if item["kind"] == "Job")
    return found


def pod(objects: tuple) -> dict:
    return job(objects)["spec"]["template"]["spec"]


def arguments(objects: tuple) -> dict[str, str]:
    args = pod(objects)["containers"][0]["args"]
    args = args[: args.index("--")] if "--" in args else args
    return dict(zip(args[::2], args[1::2], strict=True))


def test_what_a_plan_has_jobs_for() -> None:
    """DeepEP is measured where engines use it, NCCL between nodes where there are several."""
    assert set(files_of(R)) == {
        "prepare",
        "preflight-trainer",
        "nccl-trainer",
        "preflight-rollout",
        "nccl-rollout",
        "deepep-rollout",
        "smoke",
    }
    assert set(files_of(P6)) == {"prepare", "preflight-trainer", "nccl-trainer", "preflight-rollout", "smoke"}


@pytest.mark.parametrize("name", SHIPPED)
def test_all_are_queued_suspended_and_bounded(name) -> None:
    for objects in files_of(name).values():
        for item in objects:
            if item["kind"] == "Job":
                assert item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "batch"
                assert item["spec"]["suspend"] is True
                assert item["spec"]["activeDeadlineSeconds"] > 0
                assert item["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_test_has_a_whole_node_a_pod(name) -> None:
    plan = plan_of(name)
    for title, objects in files_of(name).items():
        if title == "smoke":
            continue
        spec, pool = pod(objects), plan.pool(pod(objects)["nodeSelector"]["moerl.io/pool"])
        requests = spec["containers"][0]["resources"]["requests"]
        assert requests == pods.quantity(plan.workload.node_jobs[pool.name])
        assert requests[GPU_RESOURCE] == str(pool.gpus_per_node)
        assert requests[EFA_RESOURCE] == str(pool.efa_per_node)
        assert job(objects)["spec"]["completions"] == job(objects)["spec"]["parallelism"]


def test_preflight_judges_every_trainer_node_by_itself() -> None:
    plan, objects = plan_of(R), files_of(R)["preflight-trainer"]
    spec = job(objects)["spec"]
    assert spec["completions"] == plan.workload.trainer.workers == 16
    assert spec["completionMode"] == "Indexed"
    assert spec["backoffLimitPerIndex"] == 0
    assert "backoffLimit" not in spec
    assert arguments(objects)["--pool"] == "trainer"
    # It compares what nodes offer with the Plan.
    assert pod(objects)["automountServiceAccountToken"] is True
    assert pod(files_of(R)["prepare"])["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("title", "nodes"), [("preflight-trainer", 16), ("preflight-rollout", 2)])
def test_preflight_of_nodes_that_work_together_goes_on_to_their_links(title, nodes) -> None:
    """They find each other by address, since one that has failed has no say over the others' verdicts."""
    service, item = files_of(R)[title]
    (container,) = item["spec"]["template"]["spec"]["containers"]
    name, _, port = arguments(files_of(R)[title])["--service"].partition(":")
    assert name == f"{service['metadata']['name']}.rl.svc"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == item["spec"]["template"]["metadata"]["labels"]
    assert [str(entry["containerPort"]) for entry in container["ports"]] == [port]
    assert arguments(files_of(R)[title])["--nodes"] == str(item["spec"]["completions"]) == str(nodes)
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]
    # What looks for the links runs inside the same deadline, after the longest wait for the last node.
    assert item["spec"]["activeDeadlineSeconds"] > fabric.PEERS_SECONDS + sum(fabric.SECONDS.values())


def test_preflight_of_nodes_that_work_alone_or_without_efa_stays_on_them() -> None:
    without = {"pools.trainer.efa": False, "workload.trainer.expert_parallel": 8}
    for objects in (files_of(P6)["preflight-rollout"], files_of(R, without)["preflight-trainer"]):
        (item,) = objects
        assert "--service" not in arguments(objects)
        assert "subdomain" not in item["spec"]["template"]["spec"]


@pytest.mark.parametrize("title", ["nccl-trainer", "nccl-rollout", "deepep-rollout", "prepare"])
def test_pods_that_meet_have_a_name_to_meet_at(title) -> None:
    """`JOB-0.SERVICE`: an Indexed Job names its pods so, and the subdomain must be a headless service that selects them."""
    objects = files_of(R)[title]
    service, item = objects
    spec = pod(objects)
    host, _, port = arguments(objects)["--rendezvous"].partition(":")
    assert host == f"{item['metadata']['name']}-0.{service['metadata']['name']}.rl.svc"
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
    assert {port} == {str(entry["containerPort"]) for entry in spec["containers"][0]["ports"]}
    assert arguments(objects)["--nodes"] == str(item["spec"]["completions"])
    assert item["spec"]["backoffLimit"] == 0


def test_two_jobs_never_select_each_others_pods() -> None:
    services = [item for objects in files_of(R).values() for item in objects if item["kind"] == "Service"]
    templates = [job(objects)["spec"]["template"] for title, objects in files_of(R).items() if title != "smoke"]
    for service in services:
        matching = [t for t in templates if service["spec"]["selector"].items() <= t["metadata"]["labels"].items()]
        assert len(matching) == 1


def test_a_bench_runs_with_the_transport_of_what_it_stands_for() -> None:
    plan, files = plan_of(R), files_of(R)
    for title, wanted in (
        ("nccl-trainer", plan.workload.trainer.variables),
        ("deepep-rollout", plan.workload.rollouts[0].variables),
    ):
        have = {item["name"]: item["value"] for item in pod(files[title])["containers"][0]["env"]}
        assert wanted.items() <= have.items()
        assert have.get("NVIDIA_GDRCOPY") == ("enabled" if title == "deepep-rollout" else None)
    assert arguments(files["deepep-rollout"])["--nodes"] == str(plan.workload.rollouts[0].geometry.nodes_per_engine)


def test_a_large_model_is_converted_on_as_many_nodes_as_hold_it() -> None:
    assert job(files_of(R)["prepare"])["spec"]["completions"] == 1
    large = {"workload.model": "deepseek-ai/DeepSeek-V3", "workload.trainer.context_parallel": 1}
    large |= {"workload.trainer.expert_parallel": 32, "workload.trainer.tensor_parallel": 8}
    plan = plan_of(R, large)
    wanted = plan.workload.files.conversion_nodes
    assert wanted == 2
    assert job(files_of(R, large)["prepare"])["spec"]["completions"] == wanted


@pytest.mark.parametrize("name", SHIPPED)
def test_the_image_reads_of_the_prepare_job_what_the_conversion_needs(name) -> None:
    """With the image's own parser: flags of the shape come after all of ours."""
    commands = argparse.ArgumentParser().add_subparsers()
    cli.register(commands)
    written = pod(files_of(name)["prepare"])["containers"][0]
    parsed = commands.choices["weights"].parse_args([*written["command"][4:], *written["args"]])
    plan = plan_of(name)
    assert parsed.nodes == plan.workload.files.conversion_nodes
    assert prepare.layers(parsed.shape) == CATALOG.models[plan.workload.model].layers
    assert parsed.shape[0].startswith("--")


def test_no_secret_is_in_a_file() -> None:
    arn = "arn:aws:secretsmanager:us-west-2:123456789012:secret:hub-token-AbCdEf"
    plan = plan_of(R, {"workload.hub_token_secret_arn": arn})
    assert plan.document()["workload"]["hub_token_secret_arn"] == arn
    (file,) = (file for file in jobs.files(plan, image=IMAGE) if file.name == "jobs/prepare.yaml")
    assert not any("secret" in volume for volume in pod(file.objects)["volumes"])
    assert not any("valueFrom" in item for item in pod(file.objects)["containers"][0]["env"])


def test_the_smoke_trainer_has_memory_for_two_ranks_with_torch() -> None:
    """Measured: 0.83 GiB of two ranks, entrypoint and uploader."""
    (trainer,) = (item for item in files_of(S)["smoke"] if item["metadata"]["name"] == "smoke-trainer")
    (container,) = trainer["spec"]["template"]["spec"]["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    assert int(limit.removesuffix("Mi")) >= 4096


def test_smoke_uses_each_halfs_identity_and_no_gpu() -> None:
    accounts = {}
    for item in files_of(S)["smoke"]:
        spec = item["spec"]["template"]["spec"]
        accounts[item["metadata"]["name"]] = (spec["serviceAccountName"], spec["nodeSelector"]["moerl.io/pool"])
        assert GPU_RESOURCE not in spec["containers"][0]["resources"]["requests"]
        assert spec["containers"][0]["securityContext"]["runAsNonRoot"] is True
    assert accounts == {"smoke-trainer": ("trainer", "trainer"), "smoke-rollout": ("rollout", "rollout")}
