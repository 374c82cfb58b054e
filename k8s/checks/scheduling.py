"""The part of the scheduler that decides where a pod may stand: node selector, required node affinity, taints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infra.config.plan import Plan
from infra.config.pool_plan import TAINT_EFFECTS, PoolPlan, TaintPlan
from k8s.checks.tree import expression_holds
from k8s.pods import Spec

NOT_SCHEDULED_AROUND = frozenset({"PreferNoSchedule"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as its pool makes it."""

    pool: str
    labels: Mapping[str, str]
    taints: tuple[TaintPlan, ...]


def nodes(pool: PoolPlan) -> tuple[Node, ...]:
    """One node of each type and zone that the pool may have."""
    return tuple(
        Node(
            pool=pool.name,
            labels={
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": instance_type,
                "topology.kubernetes.io/zone": zone,
                **pool.labels,
            },
            taints=pool.taints,
        )
        for instance_type in pool.instance_types
        for zone in pool.zones
    )


def reached(spec: Spec, plan: Plan) -> tuple[str, ...]:
    """Names of the pools that have a node on which the pod may stand, in the plan's order."""
    return tuple(pool.name for pool in plan.pools if any(may_stand(spec, node) for node in nodes(pool)))


def may_stand(spec: Spec, node: Node) -> bool:
    return _selected(spec, node) and all(_tolerated(spec, taint) for taint in node.taints)


def _selected(spec: Spec, node: Node) -> bool:
    if any(node.labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    # Terms are alternatives, expressions in one term hold together, and a term without expressions selects nothing.
    return any(_term_holds(term, node) for term in required["nodeSelectorTerms"])


def _term_holds(term: Spec, node: Node) -> bool:
    expressions = term.get("matchExpressions", ())
    if term.get("matchFields") or not expressions:
        return False
    return all(expression_holds(expression, node.labels) for expression in expressions)


def _tolerated(spec: Spec, taint: TaintPlan) -> bool:
    effect = TAINT_EFFECTS[taint.effect]
    if effect in NOT_SCHEDULED_AROUND:
        return True
    return any(_tolerates(toleration, taint, effect) for toleration in spec.get("tolerations", ()))


def _tolerates(toleration: Spec, taint: TaintPlan, effect: str) -> bool:
    if toleration.get("effect") not in (None, "", effect):
        return False
    if effect == "NoExecute" and "tolerationSeconds" in toleration:
        return False
    key, operator = toleration.get("key"), toleration.get("operator", "Equal")
    if not key:
        return bool(operator == "Exists")
    if key != taint.key:
        return False
    return bool(operator == "Exists" or toleration.get("value", "") == taint.value)
