"""The trainer: a RayJob, admitted as a gang, on the fixed pool.

It is created, never applied (`kubectl create`): Kueue turns `suspend` off when it admits the job, and a second apply would
either fail on that field or stop the run. Its name ends in a digest of all that it is made of, so a changed image or flag
is a new object beside the old one: KubeRay leaves the pods of an existing RayJob as they are and says nothing.

What the image is started with:

    preflight node --pool POOL         init, workers: proves node and image before they join the gang
    weights fetch --pool POOL --below DIR
                                       init, all: the serving and the reference model to the node's NVMe, once a node (locks)
    checkpoint restore --to DIR        init, where scratch is: the newest committed checkpoint, or nothing
    checkpoint upload --from DIR       native sidecar, where scratch is: uploads what a save leaves, verifies, commits; on
                                       SIGTERM it finishes the save that it is at
    preflight fabric --pool POOL --service NAME:PORT --nodes N
                                       init, workers, last: all of them meet under the run's headless Service and prove NCCL,
                                       and DeepEP where the run uses it between nodes, over EFA
    trainer --config DIR               the entrypoint, on the head: train.py with the flags of DIR/flags.json; serves the
                                       metrics of the whole run, which its other processes report to it

MOERL_RUN is the name of the job, MOERL_ATTEMPT that of its Ray cluster, which KubeRay makes anew for each attempt. `trainer`
takes the run's lease first, since of two trainers only one may commit, and ends after its last checkpoint is committed. On a
resume it puts the export of that step in the place of `--hf-checkpoint`. With scratch on NVMe every worker restores and
uploads its own files, and the head has scratch for the save signal alone; with FSx one sidecar, on the head, sees all files,
and every attempt has a directory of its own.

Submission mode is K8sJob. In HTTP mode KubeRay 1.5 asks a lost head for the job for ever, with all GPUs held; here the
submitter follows the log, and its failure ends the run: so a head whose process is lost ends it. The submitter may retry:
once a cluster is up KubeRay makes no second head, so nothing is submitted twice. A lost node, the head's or a worker's, is
another matter: Kueue suspends the job, all pods go, and with a node in its place a new attempt starts, `backoffLimit: 0` or
not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from infra.catalog import CATALOG
from infra.config.outputs import Outputs
from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import LABEL_DOMAIN
from k8s import pods
from k8s.charts import storage
from k8s.charts.trainer_pods import CONFIG_PATH, RUN_LABEL, fabric, head, submitter, worker
from k8s.flags import miles, slime
from k8s.manifest import Object, component, obj
from k8s.names import RUN_NAMESPACE, TRAINER, TRAINER_QUEUE
from k8s.ports import FRAMEWORK_METRICS_PORT, METRICS_PORT

FLAGS_FILE = "flags.json"
ENTRYPOINT = (
    f"python -m moerl_runtime trainer --config {CONFIG_PATH}"
    f" --metrics-port {METRICS_PORT} --framework-metrics-port {FRAMEWORK_METRICS_PORT}"
)
"""Ray hands this to a shell, so nothing of the environment file is in it."""
SUBMITTER_RETRIES = 2
KEEP_CLUSTER_SECONDS = 300
"""After the end, for the last log lines; GPUs stand idle meanwhile."""
OBJECT_STORE_SHARE = 2
"""Ray's object store has half of shared memory; NCCL and data loading have the other."""


def objects(plan: Plan, *, image: str, outputs: Outputs | None = None) -> tuple[Object, ...]:
    """ConfigMap with the flags, the Service where workers meet, and the RayJob, to be created together. `image` is the run's,
    by digest.

    Raises EnvironmentFault for trainer flags of the file that cannot work, ValueError unless `storage.ready`.
    """
    claim = storage.claim_name(plan, outputs)
    return _run(plan, _run_name(plan, image, claim), image, claim)


def run_name(plan: Plan, *, image: str, outputs: Outputs | None = None) -> str:
    """`trainer-` and eight digits of a digest over image, flags and every other field of the job."""
    return _run_name(plan, image, storage.claim_name(plan, outputs))


def _run_name(plan: Plan, image: str, claim: str | None) -> str:
    unnamed = json.dumps(_run(plan, TRAINER, image, claim), sort_keys=True)
    return f"{TRAINER}-{hashlib.sha256(unnamed.encode()).hexdigest()[:8]}"


def budget(plan: Plan) -> tuple[Object, ...]:
    """No voluntary disruption: the loss of one pod ends the step of all.

    As a number of pods: a RayCluster has no scale subresource, from which alone a budget could count what `maxUnavailable`
    is a share of.
    """
    return (
        obj(
            "policy/v1",
            "PodDisruptionBudget",
            TRAINER,
            namespace=RUN_NAMESPACE,
            labels=component(TRAINER),
            spec={"minAvailable": plan.workload.trainer.pods_running, "selector": {"matchLabels": component(TRAINER)}},
        ),
    )


def _run(plan: Plan, name: str, image: str, claim: str | None) -> tuple[Object, ...]:
    met = (fabric(name),) if plan.workload.trainer.prove_fabric else ()
    return _config(plan, name), *met, _ray_job(plan, name, image, claim)


def _config(plan: Plan, name: str) -> Object:
    data = {FLAGS_FILE: json.dumps(_flags(plan), indent=1) + "\n"}
    if _framework(plan) == "miles":
        data[miles.SGLANG_CONFIG_FILE] = miles.SGLANG_CONFIG
    return obj(
        "v1",
        "ConfigMap",
        name,
        namespace=RUN_NAMESPACE,
        labels=component(TRAINER) | {RUN_LABEL: name},
        immutable=True,
        data=data,
    )


def _flags(plan: Plan) -> Sequence[str]:
    if _framework(plan) == "slime":
        return slime.trainer_flags(plan)
    return miles.trainer_flags(plan, config_directory=CONFIG_PATH)


def _framework(plan: Plan) -> str:
    return CATALOG.software[plan.software].framework


def _ray_job(plan: Plan, name: str, image: str, claim: str | None) -> Object:
    trainer = plan.workload.trainer
    return obj(
        "ray.io/v1",
        "RayJob",
        name,
        namespace=RUN_NAMESPACE,
        labels=component(TRAINER) | {RUN_LABEL: name} | pods.queued(TRAINER_QUEUE),
        annotations={f"{LABEL_DOMAIN}/image": image},
        spec={
            "entrypoint": ENTRYPOINT,
            "submissionMode": "K8sJobMode",
            "submitterConfig": {"backoffLimit": SUBMITTER_RETRIES},
            "submitterPodTemplate": submitter(plan, name, image),
            "suspend": True,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEEP_CLUSTER_SECONDS,
            "backoffLimit": 0,
            "rayClusterSpec": {
                "enableInTreeAutoscaling": False,
                "headGroupSpec": {
                    "serviceType": "ClusterIP",
                    "rayStartParams": {
                        "num-cpus": "0",
                        "num-gpus": "0",
                        # The command line is KubeRay's, and its shell puts the address in.
                        "dashboard-host": "$POD_IP",
                        "object-store-memory": _object_store_bytes(trainer.pods.head),
                    },
                    "template": head(plan, name, image, claim),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "worker",
                        "replicas": trainer.workers,
                        "minReplicas": trainer.workers,
                        "maxReplicas": trainer.workers,
                        "numOfHosts": 1,
                        "rayStartParams": {
                            "num-cpus": str(trainer.pods.worker.cpu_millis // 1000),
                            "num-gpus": str(trainer.pods.worker.gpus),
                            "object-store-memory": _object_store_bytes(trainer.pods.worker),
                        },
                        "template": worker(plan, name, image, claim),
                    }
                ],
            },
        },
    )


def _object_store_bytes(resources: PodResources) -> str:
    return str(resources.shm_mib // OBJECT_STORE_SHARE * 2**20)
