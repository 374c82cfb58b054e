"""One number, one place: a changed EFA count in the catalog shows everywhere, and the old one nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from infra.catalog import CATALOG, Catalog

SENTINEL = 13
CASES = [("p5en.48xlarge", 16, "reference-p5en"), ("p5en.48xlarge", 16, "starter-p5en"), ("p5.48xlarge", 32, "p5")]
POOLS = ("trainer", "rollout")


def with_efa(name: str, count: int) -> Catalog:
    changed = replace(CATALOG.instances[name], efa_devices=count)
    return replace(CATALOG, instances={**CATALOG.instances, name: changed})


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{at}.{key}")
    elif isinstance(value, list):
        yield f"{at}.length", len(value)
        for index, item in enumerate(value):
            yield from leaves(item, f"{at}.{index}")
    else:
        yield at, value


def counts(document: dict[str, Any]) -> dict[str, Any]:
    """What the document counts of EFA: every leaf of that name, and the lengths of the interface lists."""
    return {
        at: value
        for at, value in leaves(document)
        if at.endswith((".efa_per_node", ".efa", "/efa", ".interfaces.length"))
    }


@pytest.mark.parametrize(("name", "old", "base"), CASES)
def test_changed_count_is_in_interfaces_resources_and_tags(name, old, base, planned) -> None:
    assert CATALOG.instances[name].efa_devices == old
    plan = planned(base, catalog=with_efa(name, SENTINEL))
    for pool in map(plan.pool, POOLS):
        assert pool.efa_per_node == SENTINEL
        assert sum(interface.is_efa for interface in pool.interfaces) == SENTINEL
        tag = "k8s.io/cluster-autoscaler/node-template/resources/vpc.amazonaws.com/efa"
        assert pool.scaler_tags[tag] == str(SENTINEL)
    assert plan.workload.trainer.pods.worker.efa == SENTINEL
    assert [rollout.pods.engine.efa for rollout in plan.workload.rollouts] == [SENTINEL]


@pytest.mark.parametrize(("name", "old", "base"), CASES)
def test_old_count_is_nowhere_in_the_document(name, old, base, planned) -> None:
    before = counts(planned(base).document())
    after = counts(planned(base, catalog=with_efa(name, SENTINEL)).document())
    said = {value for value in before.values() if value not in (0, 1)}
    assert {str(old), old, old + 1} <= said
    assert not {str(old), old, old + 1} & set(after.values())
    assert {SENTINEL, SENTINEL + 1, str(SENTINEL)} <= set(after.values())


@pytest.mark.parametrize(("name", "base"), [(name, base) for name, _, base in CASES])
def test_only_what_counts_efa_changes_with_the_count(name, base, planned) -> None:
    before = dict(leaves(planned(base).document()))
    after = dict(leaves(planned(base, catalog=with_efa(name, SENTINEL)).document()))
    changed = {at for at in before.keys() | after.keys() if before.get(at) != after.get(at)}
    assert changed
    assert not [at for at in changed if ".interfaces." not in at and not at.endswith((".efa_per_node", ".efa", "/efa"))]


@pytest.mark.parametrize("changes", [{"pools.rollout.efa": False}, {"pools.rollout.efa_layout": "classic"}])
def test_messages_say_the_changed_count(changes, edited) -> None:
    catalog = with_efa("p5en.48xlarge", SENTINEL)
    findings = edited("starter-p5en", changes, catalog=catalog)
    (found,) = (item for item in findings if item.rule in ("efa.switched-off", "efa.layout-classic"))
    assert f" {SENTINEL} " in found.why
    assert "16" not in found.why


def test_layout_rule_compares_the_changed_count(edited) -> None:
    changes = {"pools.rollout.instance_types": ["p5.48xlarge", "p5e.48xlarge"]}
    assert not [item for item in edited("p5", changes) if item.severity == "fault"]
    (found,) = (
        item
        for item in edited("p5", changes, catalog=with_efa("p5.48xlarge", SENTINEL))
        if item.rule == "capacity.one-layout"
    )
    assert f"p5.48xlarge has {SENTINEL} EFA" in found.why
