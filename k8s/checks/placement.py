"""Each DaemonSet and each pod of the run, simulated against every pool of the plan with its taints."""

from __future__ import annotations

from collections.abc import Iterator

from infra.catalog.daemonsets import DAEMONSETS
from infra.config.plan import Plan
from infra.config.pool_plan import GPU_RESOURCE
from k8s.checks.quantities import pod_requests
from k8s.checks.scheduling import reached
from k8s.checks.tree import Pods, Problem, Tree
from k8s.names import BUFFER, ENVIRONMENT, ROLLOUT, TRAINER

MODULE_LOADER = "gdrcopy-loader"
"""Needed only where the transport goes through gdrdrv and the AMI is not said to have it."""


def daemonsets_reach_their_pools(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Neither less, where a node would be without its device plugin and nobody is told, nor more, where it would crash."""
    known = {daemonset.name: daemonset for daemonset in DAEMONSETS}
    for pods in tree.pods:
        entry = known.get(pods.owner["metadata"]["name"])
        if not pods.is_daemon or entry is None:
            continue
        wanted = tuple(
            pool.name
            for pool in plan.pools
            if (pool.is_gpu or not entry.gpu_only)
            and (pool.efa_per_node or not entry.efa_only)
            and (pool.load_gdrdrv or entry.name != MODULE_LOADER)
        )
        found = reached(pods.spec, plan)
        if found == wanted:
            continue
        yield Problem(
            where=pods.where,
            value=", ".join(found) or "no pool",
            why=f"the scheduler would put it on these pools, but it belongs on {', '.join(wanted)}",
            fix="Place it with k8s.pods.on_pools, which tolerates every taint.",
        )


def run_pods_keep_to_their_pool(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Trainer pods reach the trainer pool only, those of a rollout pool's engines that pool only, CPU workers theirs."""
    by_role = {
        role: frozenset(pool.name for pool in plan.pools if pool.role == role)
        for role in (TRAINER, ROLLOUT, ENVIRONMENT, BUFFER)
    }
    for pods in tree.pods:
        allowed = by_role.get(pods.component or "")
        if allowed is None:
            continue
        found = reached(pods.spec, plan)
        if len(found) == 1 and found[0] in allowed:
            continue
        yield Problem(
            where=pods.where,
            value=", ".join(found) or "no pool",
            why=f"the scheduler would put it there, but {pods.component} pods belong on one of {', '.join(sorted(allowed))}",
            fix="Place it with k8s.pods.on_pool.",
        )


def pods_reach_a_pool(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Every pod has a pool; one without a GPU request stays off nodes with GPUs unless it is of the run or a DaemonSet."""
    gpu_pools = {pool.name for pool in plan.pools if pool.is_gpu}
    for pods in tree.pods:
        if pods.component in (TRAINER, ROLLOUT, ENVIRONMENT, BUFFER) or pods.is_daemon:
            continue
        found = reached(pods.spec, plan)
        if not found:
            why, value = "no pool of the plan takes this pod, so it would be pending for ever", "no pool"
        elif _wants_no_gpu(pods) and gpu_pools & set(found):
            why, value = "it asks for no GPU and would take room on GPU nodes", ", ".join(found)
        else:
            continue
        yield Problem(where=pods.where, value=value, why=why, fix="Place it with k8s.pods.on_pool.")


def _wants_no_gpu(pods: Pods) -> bool:
    return not pod_requests(pods.spec).get(GPU_RESOURCE)
