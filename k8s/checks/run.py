"""The two halves of a run have the Plan's shape: the trainer's gang, the rollout groups, and what NCCL is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from k8s.checks.quantities import is_sidecar
from k8s.checks.scheduling import reached
from k8s.checks.tree import Pods, Problem, Tree, where
from k8s.manifest import Object
from k8s.names import ROLLOUT, TRAINER


def trainer_runs_once(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """One attempt, no autoscaling, gone when it is done: of overlapping attempts only one may commit."""
    wanted: dict[str, object] = {"shutdownAfterJobFinishes": True, "backoffLimit": 0}
    for job in tree.of_kind("RayJob"):
        spec = job["spec"]
        for key, value in wanted.items():
            if spec.get(key) != value or isinstance(spec.get(key), bool) != isinstance(value, bool):
                yield _problem(f"{where(job)}: spec.{key}", spec.get(key), f"must be {value}")
        if spec["rayClusterSpec"].get("enableInTreeAutoscaling"):
            yield _problem(f"{where(job)}: enableInTreeAutoscaling", True, "would change the trainer's world in a run")


def trainer_has_its_workers(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """As many workers as the flags need, neither fewer, which waits for ever, nor a range; none comes back by itself."""
    trainer = plan.workload.trainer
    for job in tree.of_kind("RayJob"):
        groups = job["spec"]["rayClusterSpec"].get("workerGroupSpecs", ())
        counts = [group.get(key) for group in groups for key in ("replicas", "minReplicas", "maxReplicas")]
        if counts != [trainer.workers] * 3:
            yield _problem(where(job), counts, f"replicas, minimum and maximum must each be {trainer.workers}")
        for group in groups:
            policy = group["template"]["spec"].get("restartPolicy")
            if policy != "Never":
                yield _problem(where(job), policy, "a restarted worker would stand in a gang that has failed")


def head_offers_no_gpu(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A head on a GPU node advertises all of the node's GPUs unless told otherwise, and Ray then puts work on it."""
    for job in tree.of_kind("RayJob", "RayCluster"):
        cluster = job["spec"].get("rayClusterSpec", job["spec"])
        head = cluster["headGroupSpec"]
        offered = head.get("rayStartParams", {}).get("num-gpus")
        requested = any(GPU_RESOURCE in _asked(container) for container in head["template"]["spec"]["containers"])
        if offered != "0" or requested:
            yield _problem(f"{where(job)}: head", f"num-gpus {offered}", "the head must offer 0 GPUs and request none")


def rollout_groups_fit_the_plan(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Group size as planned; a restart takes the group along only where the group has more than one pod, and has to there."""
    sizes = {rollout.pool: rollout.pods.pods_per_group for rollout in plan.workload.rollouts}
    for item in tree.of_kind("LeaderWorkerSet"):
        template = item["spec"]["leaderWorkerTemplate"]
        pools = {name for pods in tree.pods if pods.owner is item for name in reached(pods.spec, plan)}
        size, policy = template.get("size", 1), template.get("restartPolicy", "RecreateGroupOnPodRestart")
        wanted = {sizes[name] for name in pools if name in sizes}
        if wanted != {size}:
            yield _problem(
                f"{where(item)}: size", size, f"an engine of {', '.join(sorted(pools))} has {sorted(wanted)}"
            )
        if (policy == "RecreateGroupOnPodRestart") != (size > 1):
            yield _problem(f"{where(item)}: restartPolicy", policy, f"does not go with groups of {size}")


def engines_are_sidecars(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """The engine, with the GPUs, is a native sidecar and the agent the main container: the engine starts first and is stopped
    last, so that the agent can order the drain."""
    for pods in tree.pods:
        if pods.component != ROLLOUT or pods.kind != "LeaderWorkerSet":
            continue
        kept = [
            [container.get("name") for container in containers if GPU_RESOURCE in _asked(container)]
            for containers in (filter(is_sidecar, pods.spec.get("initContainers", ())), pods.spec["containers"])
        ]
        if not kept[0] or kept[1]:
            yield _problem(
                pods.where,
                kept[0] + kept[1],
                "the container that keeps the GPUs must be an init container that restarts always",
            )


def transport_is_stated(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """A container of the run with EFA devices has the Plan's NCCL, EFA and DeepEP variables: an unset one falls back to TCP or
    to the CPU proxy in silence."""
    planned: dict[str, Mapping[str, str]] = {TRAINER: plan.workload.trainer.variables}
    by_pool = {rollout.pool: rollout.variables for rollout in plan.workload.rollouts}
    for pods in tree.pods:
        if pods.component not in (TRAINER, ROLLOUT):
            continue
        wanted = planned.get(pods.component) or _of_pools(pods, plan, by_pool)
        for place, container in pods.containers():
            if EFA_RESOURCE not in _asked(container):
                continue
            stated = {variable["name"]: variable.get("value") for variable in container.get("env", ())}
            for name, value in wanted.items():
                if stated.get(name) != value:
                    yield _problem(f"{place}.env[{name}]", stated.get(name), f"the Plan says {value}")


def _of_pools(pods: Pods, plan: Plan, by_pool: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    return next((by_pool[name] for name in reached(pods.spec, plan) if name in by_pool), {})


def _asked(container: Object) -> frozenset[str]:
    """Names of what the container requests or limits."""
    resources = container.get("resources") or {}
    return frozenset(resources.get("requests") or ()) | frozenset(resources.get("limits") or ())


def _problem(place: str, value: object, why: str) -> Problem:
    return Problem(where=place, value=value, why=why, fix="Take it from the Plan.")
