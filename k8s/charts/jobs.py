"""Jobs that people start: prepare, preflight, NCCL and DeepEP tests, smoke. One file each below `jobs/`.

They are created, not applied, like the trainer (`kubectl create -f`; `kubectl replace --force -f` runs one again). All wait
in the batch queue. A job on several nodes is an Indexed Job, one whole node a pod, which meet at the first one's name; those
of preflight, each of which has a verdict of its own, find each other as the trainer's workers do.

What the image is started with:

    weights prepare --below DIR --rendezvous HOST:PORT --nodes N -- FLAG...
        BF16 model from the hub, FP8 and torch_dist made of it, all of them to the bucket's models/ prefix; what is there and
        complete is left alone. The flags are the model's shape, for the framework's conversion. The hub token comes from the
        secret that plan.json names, never from a file.
    preflight node --pool POOL [--service NAME:PORT --nodes N]
        node and image, as in every trainer pod, then the links between all nodes of the trainer or of one engine; the job
        proves a pool before a run is created
    bench nccl --pool POOL --rendezvous HOST:PORT --nodes N
        all-reduce, all-to-all, and send-receive, which alone shows a missing EFA device
    bench deepep --pool POOL --rendezvous HOST:PORT --nodes N
        dispatch and combine against plain NCCL, with the geometry of that pool's engines
    smoke trainer, smoke rollout --pool POOL
        a tiny model on CPU through the real queue and buckets; to be run while no engine takes tasks

JOB_COMPLETION_INDEX says which of N a pod is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.catalog import CATALOG
from infra.config.model_plan import MODELS_PATH
from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import LABEL_DOMAIN, PoolPlan
from infra.config.workload_plan import RolloutPlan
from k8s import pods
from k8s.charts import meeting, run_config
from k8s.charts.trainer_pods import NO_CUDA
from k8s.flags.shape import shape
from k8s.manifest import ManifestFile, Object, component, obj
from k8s.names import (
    BATCH_QUEUE,
    PREFLIGHT,
    PREPARE,
    ROLLOUT,
    RUN_NAMESPACE,
    TRAINER,
    WORKER_PRIORITY,
)
from k8s.pods import Spec

FOLDER = "jobs"
JOB_LABEL = f"{LABEL_DOMAIN}/job"
KEEP_SECONDS = 7 * 24 * 3600
"""A finished job and its logs stay for a week."""
GRACE_SECONDS = 30
MINUTE, HOUR = 60, 3600


def files(plan: Plan, *, image: str) -> tuple[ManifestFile, ...]:
    """All jobs of the plan. `image` is the run's, by digest."""
    trainer, run = plan.pool(plan.workload.trainer.pool), plan.workload
    made = {
        "prepare": _prepare(plan, trainer, image),
        f"preflight-{trainer.name}": _preflight(plan, trainer, run.trainer.workers, run.trainer.variables, image),
        f"nccl-{trainer.name}": _bench(plan, "nccl", trainer, run.trainer.workers, run.trainer.variables, image),
    }
    for rollout in run.rollouts:
        pool, nodes = plan.pool(rollout.pool), rollout.geometry.nodes_per_engine
        made[f"preflight-{pool.name}"] = _preflight(plan, pool, nodes, rollout.variables, image)
        if nodes > 1:
            made[f"nccl-{pool.name}"] = _bench(plan, "nccl", pool, nodes, rollout.variables, image)
        if rollout.backend == "deepep_v2":
            made[f"deepep-{pool.name}"] = _bench(plan, "deepep", pool, nodes, rollout.variables, image)
    made["smoke"] = _smoke(plan, run.rollouts[0], image)
    return tuple(ManifestFile(name=f"{FOLDER}/{name}.yaml", objects=objects) for name, objects in made.items())


def _prepare(plan: Plan, pool: PoolPlan, image: str) -> tuple[Object, ...]:
    nodes = plan.workload.files.conversion_nodes
    models, models_mount = pods.local_cache("models", MODELS_PATH)
    flags = shape(CATALOG.models[plan.workload.model], CATALOG.software[plan.software].framework)
    return _on_whole_nodes(
        plan,
        PREPARE,
        pool,
        nodes,
        image,
        command=["weights", "prepare"],
        arguments=[
            *("--below", MODELS_PATH, *meeting.by_first_pod(PREPARE, nodes), "--"),
            *(text for name, values in flags.items() for text in (f"--{name}", *values)),
        ],
        variables=plan.workload.trainer.variables,
        owner=PREPARE,
        deadline_seconds=12 * HOUR,
        together=True,
        extra=[(models, models_mount)],
    )


def _preflight(plan: Plan, pool: PoolPlan, nodes: int, variables: Mapping[str, str], image: str) -> tuple[Object, ...]:
    """One pod a node, each judged by itself, so that one run names every bad node; then all that are to work together."""
    name = f"preflight-{pool.name}"
    several = nodes > 1 and plan.workload.node_jobs[pool.name].efa > 0
    return _on_whole_nodes(
        plan,
        name,
        pool,
        nodes,
        image,
        command=["preflight", "node"],
        arguments=["--pool", pool.name, *(meeting.by_service(name, nodes) if several else ())],
        variables=variables,
        owner=PREFLIGHT,
        deadline_seconds=HOUR,
        together=False,
        meets=several,
    )


def _bench(
    plan: Plan, kind: str, pool: PoolPlan, nodes: int, variables: Mapping[str, str], image: str
) -> tuple[Object, ...]:
    name = f"{kind}-{pool.name}"
    return _on_whole_nodes(
        plan,
        name,
        pool,
        nodes,
        image,
        command=["bench", kind],
        arguments=["--pool", pool.name, *meeting.by_first_pod(name, nodes)],
        variables=variables,
        owner=PREFLIGHT,
        deadline_seconds=HOUR,
        together=True,
    )


def _on_whole_nodes(
    plan: Plan,
    name: str,
    pool: PoolPlan,
    nodes: int,
    image: str,
    *,
    command: Sequence[str],
    arguments: Sequence[str],
    variables: Mapping[str, str],
    owner: str,
    deadline_seconds: int,
    together: bool,
    meets: bool = True,
    extra: Sequence[tuple[Spec, Spec]] = (),
) -> tuple[Object, ...]:
    """An Indexed Job of `nodes` pods, and the headless Service under which they meet where they do. `together` is false where
    each has a verdict of its own."""
    resources = plan.workload.node_jobs[pool.name]
    attached = [run_config.volume(), pods.shm(resources), *extra]
    if resources.huge_pages_mib:
        attached.append(pods.huge_pages())
    container = pods.container(
        "main",
        image,
        resources,
        command=["python", "-m", "moerl_runtime", *command],
        args=arguments,
        variables=pods.base_variables(plan) | pods.gdrcopy(variables) | dict(variables),
        mounts=[mount for _, mount in attached],
        ports={meeting.PORT_NAME: meeting.PORT} if meets else None,
        security=pods.rdma(),
    )
    spec: Spec = {
        **_of(owner),
        **pods.on_pool(pool),
        **({"subdomain": name} if meets else {}),
        "containers": [container if together else pods.with_pod_ip(container)],
        "volumes": [volume for volume, _ in attached],
    }
    labels = component(owner) | {JOB_LABEL: name}
    job = _job(
        name,
        labels,
        spec,
        pool,
        deadline_seconds=deadline_seconds,
        completionMode="Indexed",
        completions=nodes,
        parallelism=nodes,
        # One that is lost ends all that depend on it, and nobody else's verdict.
        **({"backoffLimit": 0} if together else {"backoffLimitPerIndex": 0}),
    )
    return (meeting.service(name, labels=component(owner), selector=labels), job) if meets else (job,)


def _smoke(plan: Plan, rollout: RolloutPlan, image: str) -> tuple[Object, ...]:
    """Two pods without a GPU, each with the identity and the network of the half it stands for."""
    trainer = plan.workload.trainer

    def half(part: str, pool: str, resources: PodResources, arguments: Sequence[str]) -> Object:
        volume, mount = run_config.volume()
        container = pods.container(
            "main",
            image,
            resources,
            command=["python", "-m", "moerl_runtime", "smoke", part],
            args=arguments,
            variables=pods.base_variables(plan) | NO_CUDA,
            mounts=[mount],
        )
        spec = {**_of(part), **pods.on_pool(plan.pool(pool)), "containers": [container], "volumes": [volume]}
        name = f"smoke-{part}"
        return _job(
            name,
            component(part) | {JOB_LABEL: name},
            spec,
            plan.pool(pool),
            deadline_seconds=30 * MINUTE,
            completions=1,
            parallelism=1,
            backoffLimit=0,
        )

    return (
        # A submitter has 1 GiB, and two ranks with torch take most of that.
        half(TRAINER, trainer.pool, trainer.pods.uploader, []),
        half(ROLLOUT, rollout.pool, rollout.pods.agent, ["--pool", rollout.pool]),
    )


def _of(owner: str) -> Spec:
    """What a pod of that service account has in common with others of it; preflight alone talks to the API."""
    return {
        "serviceAccountName": owner,
        "automountServiceAccountToken": owner == PREFLIGHT,
        "enableServiceLinks": False,
        "priorityClassName": WORKER_PRIORITY,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }


def _job(
    name: str, labels: Mapping[str, str], spec: Spec, pool: PoolPlan, *, deadline_seconds: int, **fields: Any
) -> Object:
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", **pods.counted(pool)}
    return obj(
        "batch/v1",
        "Job",
        name,
        namespace=RUN_NAMESPACE,
        labels={**labels, **pods.queued(BATCH_QUEUE)},
        spec={
            "suspend": True,
            "activeDeadlineSeconds": deadline_seconds,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "podReplacementPolicy": "Failed",
            **fields,
            "template": pods.pod_template(labels, spec, annotations),
        },
    )
