"""Pods of the trainer: what comes first, what outlasts a save, who sees the driver, where files lie."""

from __future__ import annotations

import re

import pytest

from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from k8s import pods
from k8s.charts import rollout, storage, trainer, trainer_pods
from k8s.flags.miles import trainer_flags
from k8s.flags.sglang_rules import parse
from tests.k8s.renders import outputs_of
from tests.shipped import IMAGE, SHIPPED, plan_of

R, P5, S = "reference-p5en", "p5", "starter-p5en"  # FSx; NVMe; NVMe
NAME = "trainer-00000000"


def claim_of(plan) -> str | None:
    return storage.claim_name(plan, outputs_of(plan))


def head(plan) -> dict:
    return trainer_pods.head(plan, NAME, IMAGE, claim_of(plan))["spec"]


def worker(plan) -> dict:
    return trainer_pods.worker(plan, NAME, IMAGE, claim_of(plan))["spec"]


def submitter(plan) -> dict:
    return trainer_pods.submitter(plan, NAME, IMAGE)["spec"]


def names(spec: dict) -> list[str]:
    return [item["name"] for item in spec.get("initContainers", ())]


def env(container: dict) -> dict[str, str]:
    return {item["name"]: item.get("value") for item in container["env"]}


def step(spec: dict, name: str) -> dict:
    (found,) = (item for item in spec["initContainers"] if item["name"] == name)
    return found


def mounts(container: dict) -> dict[str, dict]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def arguments(container: dict) -> dict[str, str]:
    written = container.get("args", [])
    return dict(zip(written[::2], written[1::2], strict=True))


def seconds(probe: dict) -> int:
    return probe["periodSeconds"] * probe["failureThreshold"]


def test_a_node_is_proven_before_anything_is_loaded_on_it() -> None:
    spec = worker(plan_of(P5))
    assert names(spec) == ["preflight", "fetch", "restore", "fabric", "upload"]
    main = spec["containers"][0]
    for proof in (step(spec, "preflight"), step(spec, "fabric")):
        assert proof["resources"] == main["resources"]
        assert env(proof) == env(main)


def test_links_are_proven_after_all_that_a_pod_may_fail_at_alone() -> None:
    """A pod that KubeRay makes anew finds nobody to meet, so only the start of the gang itself comes after it."""
    for name, has in (
        (R, ["preflight", "fetch", "fabric"]),
        (S, ["preflight", "fetch", "restore", "fabric", "upload"]),
    ):
        plan = plan_of(name)
        spec = worker(plan)
        assert names(spec) == has
        arguments = step(spec, "fabric")["args"]
        assert arguments[:2] == ["--pool", "trainer"]
        assert arguments[2:] == [
            *("--service", f"{NAME}-fabric.rl.svc:29500"),
            *("--nodes", str(plan.workload.trainer.workers)),
        ]
        assert "fabric" not in names(head(plan))


@pytest.mark.parametrize(
    "changes",
    [
        {"workload.trainer.prove_fabric": False},
        {"pools.trainer.nodes": 1, "workload.trainer.expert_parallel": 8},
        {"pools.trainer.efa": False, "workload.trainer.expert_parallel": 8},
    ],
)
def test_links_are_not_proven_where_there_are_none_or_the_file_says_so(changes) -> None:
    plan = plan_of(S, changes)
    assert names(worker(plan)) == ["preflight", "fetch", "restore", "upload"]
    assert [item["kind"] for item in trainer.objects(plan, image=IMAGE)] == ["ConfigMap", "RayJob"]


@pytest.mark.parametrize(("name", "on_head", "on_workers"), [(R, True, False), (P5, False, True), (S, False, True)])
def test_checkpoints_are_uploaded_where_their_files_are(name, on_head, on_workers) -> None:
    """FSx shows one pod everything; on NVMe each node has its own ranks' files."""
    plan = plan_of(name)
    for spec, has in ((head(plan), on_head), (worker(plan), on_workers)):
        assert ({"restore", "upload"} <= set(names(spec))) == has
        if has:
            assert step(spec, "upload")["restartPolicy"] == "Always"
            assert "restartPolicy" not in step(spec, "restore")
            assert step(spec, "upload")["resources"]["requests"] == pods.quantity(plan.workload.trainer.pods.uploader)
            assert arguments(step(spec, "restore"))["--to"] == arguments(step(spec, "upload"))["--from"]


def test_on_shared_scratch_no_two_attempts_write_one_path() -> None:
    """The pods of a job that was deleted use their grace while those of the next one restore."""
    plan = plan_of(R)
    attempts = []
    for attempt in ("trainer-0-aaaaa", "trainer-0-bbbbb"):
        places = set()
        for spec in (head(plan), worker(plan)):
            for container in (*spec["initContainers"], *spec["containers"]):
                if "scratch" in mounts(container):
                    places.add(on_file_system(container, attempt))
        attempts.append(places)
    (one,), (other,) = attempts
    assert one == f"{NAME}/trainer-0-aaaaa/checkpoints"
    assert other == f"{NAME}/trainer-0-bbbbb/checkpoints"


def on_file_system(container: dict, attempt: str) -> str:
    """Where the container's checkpoint directory lies on the volume, its variables filled in as the kubelet does."""
    variables = env(container) | {"MOERL_ATTEMPT": attempt}

    def filled(text: str) -> str:
        return re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], text)

    mount = mounts(container)["scratch"]
    written = arguments(container)
    path = filled(written.get("--to") or written.get("--from") or plan_of(R).storage.checkpoint_path)
    assert path.startswith(mount["mountPath"] + "/")
    if "--attempts" in written:
        assert written["--attempts"] == mount["mountPath"]
    return "/".join(filter(None, (filled(mount.get("subPathExpr", "")), path.removeprefix(mount["mountPath"] + "/"))))


def test_a_pod_has_its_nodes_nvme_to_itself() -> None:
    """Scratch is a directory of the node there, and the pod before it holds the GPUs until its last save is stored."""
    for name in (P5, S):
        plan = plan_of(name)
        assert plan.workload.trainer.pods.worker.gpus == plan.pool(plan.workload.trainer.pool).gpus_per_node
        uploader = step(worker(plan), "upload")
        assert arguments(uploader)["--from"] == plan.storage.checkpoint_path
        assert "--attempts" not in arguments(uploader)
        assert "subPathExpr" not in mounts(uploader)["scratch"]


def test_a_run_without_checkpoints_uploads_none() -> None:
    plan = plan_of(S, {"workload.no_checkpoint": True})
    assert not {"restore", "upload"} & {*names(head(plan)), *names(worker(plan))}


@pytest.mark.parametrize("name", SHIPPED)
def test_ray_calls_no_node_dead_during_a_save(name) -> None:
    """B64: the save starves the node's agent for minutes."""
    plan = plan_of(name)
    variables = env(head(plan)["containers"][0])
    rounds = int(variables["RAY_health_check_failure_threshold"])
    period, timeout = (int(variables[f"RAY_health_check_{part}_ms"]) for part in ("period", "timeout"))
    assert rounds * (period + timeout) >= plan.workload.trainer.save_seconds_max * 1000


def test_the_window_grows_with_the_model() -> None:
    small, large = plan_of(S, {"pools.trainer.nodes": 4}), plan_of("p6-b200")
    rounds = [int(env(head(plan)["containers"][0])["RAY_health_check_failure_threshold"]) for plan in (small, large)]
    assert rounds[0] < rounds[1]


@pytest.mark.parametrize("name", SHIPPED)
def test_kubelet_kills_nothing_during_a_save_or_a_compile(name) -> None:
    plan = plan_of(name)
    for spec in (head(plan), worker(plan)):
        (container,) = spec["containers"]
        assert seconds(container["startupProbe"]) >= 1800
        assert seconds(container["livenessProbe"]) >= 2 * plan.workload.trainer.save_seconds_max
        # KubeRay adds its own, of ten minutes and with wget, wherever one is missing.
        assert {"livenessProbe", "readinessProbe"} <= set(container)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["timeoutSeconds"] < container[probe]["periodSeconds"]
        assert spec["terminationGracePeriodSeconds"] >= plan.workload.trainer.save_seconds_max


def test_probes_ask_ray_itself_and_run_as_python(monkeypatch) -> None:
    """The command is run here, against recorded answers: the head is alive when its raylet and its control service are."""
    asked: list[str] = []
    (container,) = head(plan_of(R))["containers"]
    *python, code = container["livenessProbe"]["exec"]["command"]
    assert python == ["python", "-I", "-c"]
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: asked.append((url, timeout)))
    exec(code, {})  # noqa: S102 - the probe's own code is what is tested
    assert [url for url, _ in asked] == [
        "http://127.0.0.1:52365/api/local_raylet_healthz",
        "http://10.0.0.7:8265/api/gcs_healthz",
    ]
    assert all(2 * timeout <= container["livenessProbe"]["timeoutSeconds"] for _, timeout in asked)
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]


def test_the_memory_monitor_leaves_a_save_alone() -> None:
    """B63: it kills ranks at the peak of a save; the pod has its own limit."""
    for spec in (head(plan_of(R)), worker(plan_of(R))):
        assert env(spec["containers"][0])["RAY_memory_monitor_refresh_ms"] == "0"


def test_the_head_sees_the_driver_and_no_gpu() -> None:
    """B42: the driver library is loaded at import. `none` mounts it without a device, `void` leaves it out, and the `all`
    of CUDA images shows every GPU of the node."""
    plan = plan_of(R)
    assert env(head(plan)["containers"][0])["NVIDIA_VISIBLE_DEVICES"] == "none"
    assert "compute" in env(head(plan)["containers"][0])["NVIDIA_DRIVER_CAPABILITIES"]
    assert head(plan)["nodeSelector"] == worker(plan)["nodeSelector"] == {"moerl.io/pool": "trainer"}
    # What has GPUs is told by the device plugin which; a value here would contradict it.
    for container in (worker(plan)["containers"][0], step(worker(plan), "preflight")):
        assert "NVIDIA_VISIBLE_DEVICES" not in env(container)
    without = [step(head(plan), name) for name in names(head(plan))] + [step(worker(plan), "fetch")]
    without += submitter(plan)["containers"]
    assert {env(container)["NVIDIA_VISIBLE_DEVICES"] for container in without} == {"void"}


@pytest.mark.parametrize("name", SHIPPED)
def test_ranks_have_the_transport_of_the_plan(name) -> None:
    plan = plan_of(name)
    (container,) = worker(plan)["containers"]
    assert plan.workload.trainer.variables.items() <= env(container).items()
    assert env(container)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert container["securityContext"]["runAsUser"] == 0
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_a_trainer_without_deepep_between_nodes_asks_for_no_device_side_networking() -> None:
    plan = plan_of(R)
    assert plan.workload.trainer.geometry.experts_cross_efa
    assert not {"NCCL_GIN_TYPE", "EP_REUSE_NCCL_COMM", "NVIDIA_GDRCOPY"} & env(worker(plan)["containers"][0]).keys()


def test_one_worker_a_node() -> None:
    template = trainer_pods.worker(plan_of(S), NAME, IMAGE, None)
    (term,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    others = (trainer_pods.head(plan_of(S), NAME, IMAGE, None), trainer_pods.submitter(plan_of(S), NAME, IMAGE))
    for other in others:
        assert not term["labelSelector"]["matchLabels"].items() <= other["metadata"]["labels"].items()


@pytest.mark.parametrize("name", SHIPPED)
def test_saves_go_to_scratch_and_never_to_a_mounted_bucket(name) -> None:
    """B59: Mountpoint has no rename. Models are read-only for all but the step that fetches them."""
    plan = plan_of(name)
    for spec in (head(plan), worker(plan)):
        kinds = {kind for volume in spec["volumes"] for kind in set(volume) - {"name"}}
        assert kinds <= {"configMap", "emptyDir", "hostPath", "persistentVolumeClaim"}
        scratch = mounts(spec["containers"][0])["scratch"]
        assert plan.storage.checkpoint_path.startswith(scratch["mountPath"] + "/")
        assert not scratch.get("readOnly")
        assert mounts(spec["containers"][0])["models"]["readOnly"] is True
        assert not mounts(step(spec, "fetch"))["models"].get("readOnly")


def test_trainer_and_engines_start_from_the_same_directory() -> None:
    """Deltas are taken against what the trainer read; engines apply them to what they read."""
    plan = plan_of(R)
    (fleet,) = rollout.objects(plan, image=IMAGE)
    engine = step(fleet["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"], "engine")
    flags = parse(trainer_flags(plan, config_directory="/etc/x"))
    assert parse(engine["args"])["--model-path"] == flags["--hf-checkpoint"]
    assert flags["--hf-checkpoint"].startswith(mounts(worker(plan)["containers"][0])["models"]["mountPath"] + "/")


def test_caches_are_one_per_image() -> None:
    other = trainer_pods.worker(plan_of(S), NAME, IMAGE[:-64] + "f" * 64, None)["spec"]
    caches = [
        {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume and "jit" in volume["name"]}
        for spec in (worker(plan_of(S)), other)
    ]
    assert len(caches[0]) == len(caches[1]) == 1
    assert caches[0] != caches[1]


def test_huge_pages_are_asked_for_and_mounted_together() -> None:
    for efa, wanted in ((True, True), (False, False)):
        spec = worker(plan_of(S, {"pools.trainer.efa": efa, "workload.trainer.expert_parallel": 8}))
        mediums = [volume["emptyDir"].get("medium") for volume in spec["volumes"] if "emptyDir" in volume]
        assert ("HugePages" in mediums) == wanted
        assert (EFA_RESOURCE in spec["containers"][0]["resources"]["requests"]) == wanted


def test_the_submitter_is_small_and_nobody() -> None:
    plan = plan_of(R)
    (container,) = submitter(plan)["containers"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert GPU_RESOURCE not in container["resources"]["requests"]
    # KubeRay writes the command, and takes one that is there for its own.
    assert not {"command", "args"} & set(container)
    assert submitter(plan)["nodeSelector"] == {"moerl.io/pool": "trainer"}


def test_nothing_is_inherited() -> None:
    for spec in (head(plan_of(R)), worker(plan_of(R)), submitter(plan_of(R))):
        assert spec["serviceAccountName"] == "trainer"
        assert spec["automountServiceAccountToken"] is False
        assert spec["priorityClassName"] == "moerl-trainer"
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            assert re.search(r"@sha256:[0-9a-f]{64}$", container["image"])
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
