"""Whether everything stands on its nodes at once: DaemonSets first, then pods, largest first, on pools at their maximum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from infra.catalog.daemonsets import DAEMONSETS
from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE, PoolPlan
from k8s.checks.quantities import pod_requests
from k8s.checks.scheduling import reached
from k8s.checks.tree import Pods, Problem, Tree

MIB, GIB = 1 << 20, 1 << 30

Amounts = dict[str, Fraction]


def nodes_hold_their_pods(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Requests of every simulated node are at most its allocatable, with all pools at their maximum. Jobs that people start
    are placed by themselves, each on otherwise empty nodes."""
    daemons = [pods for pods in tree.pods if pods.is_daemon]
    standing = [pods for pods in tree.pods if not pods.is_daemon and not pods.by_hand]
    by_hand: dict[str, list[Pods]] = {}
    for pods in tree.pods:
        if pods.by_hand:
            by_hand.setdefault(pods.file, []).append(pods)
    empty = {pool.name: _after_daemonsets(pool, daemons, plan) for pool in plan.pools}
    for together in (standing, *by_hand.values()):
        yield from _place(together, empty, plan)


def daemonsets_keep_their_budget(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A DaemonSet asks for what the catalog says of it, since the Plan took that from every node; one that the catalog does
    not know is on nobody's account."""
    known = {daemonset.name: daemonset for daemonset in DAEMONSETS}
    for pods in tree.pods:
        if not pods.is_daemon:
            continue
        name, requests = pods.owner["metadata"]["name"], pod_requests(pods.spec)
        entry = known.get(name)
        if entry is None:
            yield Problem(
                where=pods.where,
                value=name,
                why="the catalog does not list this DaemonSet, so no pod leaves room for it",
                fix="Add it to infra/catalog/daemonsets.py.",
            )
        elif requests.get("cpu", 0) * 1000 != entry.cpu_millis or requests.get("memory", 0) != entry.memory_mib * MIB:
            yield Problem(
                where=pods.where,
                value=f"{requests.get('cpu', 0)} cores, {requests.get('memory', 0) / MIB} MiB",
                why=f"the catalog says {entry.cpu_millis} millicores and {entry.memory_mib} MiB, and pods leave room for that",
                fix="Read the requests from infra/catalog/daemonsets.py.",
            )


def node_amounts(pool: PoolPlan) -> Amounts:
    """Allocatable of one node of the pool."""
    return {
        "cpu": Fraction(pool.allocatable.cpu_millis, 1000),
        "memory": Fraction(pool.allocatable.memory_mib * MIB),
        "ephemeral-storage": Fraction(pool.allocatable.ephemeral_gib * GIB),
        GPU_RESOURCE: Fraction(pool.gpus_per_node),
        EFA_RESOURCE: Fraction(pool.efa_per_node),
        HUGE_PAGES_RESOURCE: Fraction(pool.huge_pages_mib * MIB),
        "pods": Fraction(pool.max_pods),
    }


def _place(together: Iterable[Pods], empty: Mapping[str, Amounts], plan: Plan) -> Iterator[Problem]:
    """Places the pods on nodes that each have `empty` of their pool free."""
    free = {pool.name: [dict(empty[pool.name]) for _ in range(pool.size.max)] for pool in plan.pools}
    asked = [(pods, pod_requests(pods.spec) | {"pods": Fraction(1)}, reached(pods.spec, plan)) for pods in together]
    asked.sort(key=lambda entry: (-entry[1].get(GPU_RESOURCE, 0), -entry[1].get("memory", 0), entry[0].where))
    for pods, requests, pools in asked:
        unplaced = 0
        for _ in range(pods.at_most or 0):
            room = next((node for name in pools for node in free[name] if _fits(requests, node)), None)
            if room is None:
                unplaced += 1
                continue
            for name, value in requests.items():
                room[name] -= value
        if unplaced and pools:
            yield Problem(
                where=pods.where,
                value=", ".join(f"{name} {_shown(name, value)}" for name, value in requests.items() if name != "pods"),
                why=f"{unplaced} of {pods.at_most} pods find no room on {' or '.join(pools)} beside DaemonSets and the other "
                f"pods, where an empty node offers {_lacking(requests, pools, plan)}",
                fix="Take the pod's numbers from the Plan.",
            )


def _after_daemonsets(pool: PoolPlan, daemons: Iterable[Pods], plan: Plan) -> Amounts:
    """A node's allocatable less the rendered DaemonSets that reach it and those that add-ons bring."""
    left = node_amounts(pool)
    rendered = set()
    for pods in daemons:
        rendered.add(pods.owner["metadata"]["name"])
        if pool.name in reached(pods.spec, plan):
            for name, value in (pod_requests(pods.spec) | {"pods": Fraction(1)}).items():
                left[name] = left.get(name, Fraction(0)) - value
    for daemonset in DAEMONSETS:
        wanted = (pool.is_gpu or not daemonset.gpu_only) and (pool.efa_per_node or not daemonset.efa_only)
        if wanted and daemonset.name not in rendered:
            left["cpu"] -= Fraction(daemonset.cpu_millis, 1000)
            left["memory"] -= daemonset.memory_mib * MIB
            left["pods"] -= 1
    return left


def _fits(requests: Amounts, node: Amounts) -> bool:
    return all(value <= node.get(name, Fraction(0)) for name, value in requests.items() if value)


def _lacking(requests: Amounts, pools: Iterable[str], plan: Plan) -> str:
    node = node_amounts(plan.pool(next(iter(pools))))
    return ", ".join(f"{name} {_shown(name, node.get(name, Fraction(0)))}" for name in requests if name != "pods")


def _shown(name: str, value: Fraction) -> str:
    scaled = value / MIB if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-") else value
    return f"{float(scaled):g}{' MiB' if scaled is not value else ''}"
