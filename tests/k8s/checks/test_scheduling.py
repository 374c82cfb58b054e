"""The scheduler predicate: selectors, affinity and taints decide as in Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config.pool_plan import TaintPlan
from k8s.checks.scheduling import Node, may_stand, nodes, reached
from k8s.pods import on_pool, on_pools
from tests.shipped import SHIPPED, plan_of

GPU = TaintPlan(key="nvidia.com/gpu", value="true", effect="NO_SCHEDULE")
EVICT = TaintPlan(key="evict", value="", effect="NO_EXECUTE")
PREFER = TaintPlan(key="soft", value="", effect="PREFER_NO_SCHEDULE")


def node(*taints: TaintPlan, **labels: str) -> Node:
    return Node(pool="p", labels=labels, taints=taints)


@pytest.mark.parametrize(
    ("toleration", "taint", "stands"),
    [
        (None, GPU, False),
        (None, PREFER, True),
        ({"operator": "Exists"}, GPU, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, GPU, True),
        ({"key": "nvidia.com/gpu", "value": "true"}, GPU, True),
        ({"key": "nvidia.com/gpu", "value": "present"}, GPU, False),
        ({"key": "nvidia.com/gpu", "value": "true", "effect": "NoExecute"}, GPU, False),
        ({"key": "other", "operator": "Exists"}, GPU, False),
        ({"operator": "Exists", "effect": "NoSchedule"}, EVICT, False),
        ({"key": "evict", "operator": "Exists"}, EVICT, True),
        ({"key": "evict", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}, EVICT, False),
        ({"key": "evict"}, EVICT, True),
        ({"operator": "Equal", "value": ""}, EVICT, False),
    ],
)
def test_taints(toleration: dict[str, Any] | None, taint: TaintPlan, stands: bool) -> None:
    assert may_stand({"tolerations": [toleration] if toleration else []}, node(taint)) is stands


@pytest.mark.parametrize(
    ("expressions", "stands"),
    [
        ([{"key": "zone", "operator": "In", "values": ["a", "b"]}], True),
        ([{"key": "zone", "operator": "In", "values": ["c"]}], False),
        ([{"key": "zone", "operator": "NotIn", "values": ["c"]}], True),
        ([{"key": "other", "operator": "NotIn", "values": ["c"]}], True),
        ([{"key": "zone", "operator": "Exists"}], True),
        ([{"key": "other", "operator": "Exists"}], False),
        ([{"key": "zone", "operator": "DoesNotExist"}], False),
        ([{"key": "cores", "operator": "Gt", "values": ["8"]}], True),
        ([{"key": "cores", "operator": "Lt", "values": ["8"]}], False),
        ([{"key": "zone", "operator": "Gt", "values": ["8"]}], False),
        ([{"key": "zone", "operator": "Exists"}, {"key": "other", "operator": "Exists"}], False),
        ([], False),
    ],
)
def test_required_node_affinity(expressions: list[dict[str, Any]], stands: bool) -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}
    assert may_stand(spec, node(zone="a", cores="16")) is stands


def test_terms_are_alternatives() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    spec = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }
    assert may_stand(spec, node(zone="b"))
    assert not may_stand(spec, node(zone="c"))


def test_an_unknown_operator_is_an_error_and_not_a_no() -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "in", "values": ["a"]}]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}
    with pytest.raises(ValueError, match="operator 'in' of zone"):
        may_stand(spec, node(zone="a"))


@pytest.mark.parametrize("name", SHIPPED)
def test_on_pool_reaches_one_pool_and_a_bare_pod_the_system_pool(name: str) -> None:
    plan = plan_of(name)
    for pool in plan.pools:
        assert reached(on_pool(pool), plan) == (pool.name,)
    assert reached({}, plan) == ("system",)


def test_on_pools_reaches_them_whatever_taints_a_user_adds() -> None:
    added = [{"key": "team", "value": "rl", "effect": effect} for effect in ("NO_EXECUTE", "NO_SCHEDULE")]
    plan = plan_of("reference-p5en", {"pools.trainer.taints": added, "pools.rollout.taints": added[:1]})
    gpu = tuple(pool for pool in plan.pools if pool.is_gpu)
    assert reached(on_pools(gpu), plan) == ("trainer", "rollout")
    assert reached({"nodeSelector": {"moerl.io/pool": "trainer"}}, plan) == ()


def test_every_type_and_zone_of_a_pool_is_a_node() -> None:
    plan = plan_of("reference-p5en", {"pools.environments.instance_types": ["m7i.8xlarge", "m7i.16xlarge"]})
    kinds = {one.labels["node.kubernetes.io/instance-type"] for one in nodes(plan.pool("environments"))}
    assert kinds == {"m7i.8xlarge", "m7i.16xlarge"}
    assert {one.labels["topology.kubernetes.io/zone"] for one in nodes(plan.pool("system"))} == set(plan.network.zones)
