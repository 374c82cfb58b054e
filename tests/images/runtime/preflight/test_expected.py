"""What a pod must find is the plan's, by the part that it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from infra.catalog import CATALOG
from infra.config.loader import load_text
from infra.config.plan import build_plan
from moerl_runtime.faults import InputFault
from moerl_runtime.plan import Node as Document
from moerl_runtime.preflight.expected import expected
from tests.images.runtime.preflight.nodes import BASELINE, ENGINE_OF_HALF_A_NODE, document, wanted
from tests.shipped import text_of


def test_an_efa_count_that_the_catalog_changes_is_what_preflight_asks_for() -> None:
    changed = replace(
        CATALOG,
        instances={**CATALOG.instances, "p5en.48xlarge": replace(CATALOG.instances["p5en.48xlarge"], efa_devices=13)},
    )
    loaded = load_text(text_of("reference-p5en"), "environment.yaml", changed)
    plan = build_plan(loaded.environment, loaded.pins, loaded.warnings, changed)
    needs = expected(Document(json.loads(json.dumps(plan.document())), ""), "trainer", whole_node=False)
    assert (needs.node_efa, needs.pod_efa) == (13, 13)


def test_floors_follow_the_transport() -> None:
    direct, proxy = wanted("p5en"), wanted("p5")
    assert (direct.transport, direct.efa_driver, direct.peer_mapping) == ("gda", "3.3.0", True)
    assert (proxy.transport, proxy.efa_driver, proxy.peer_mapping) == ("proxy", None, False)
    assert direct.gin_export != proxy.gin_export


def test_a_stack_without_deepep_is_not_asked_for_it() -> None:
    needs = wanted(
        "p5en",
        changes=BASELINE,
    )
    assert not needs.deepep
    assert (needs.transport, needs.gdrdrv, needs.gin_export) == ("none", None, None)
    assert needs.pod_efa == 16


def test_a_job_has_the_whole_node_and_an_engine_its_share() -> None:
    job, engine = (
        wanted("p5en", "rollout", whole_node=whole, changes=ENGINE_OF_HALF_A_NODE) for whole in (True, False)
    )
    assert (job.gpus, job.pod_efa) == (8, 16)
    assert (engine.gpus, engine.pod_efa) == (4, 0)


def test_an_unknown_pool_names_those_there_are() -> None:
    with pytest.raises(InputFault, match="Known are: system, trainer, rollout"):
        expected(document("p5en"), "nowhere", whole_node=False)
