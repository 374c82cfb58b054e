"""Row B87: between nodes DeepEP is told how many queue pairs EFA serves, where it would ask for more."""

from __future__ import annotations

import argparse
import json
import sys
from types import ModuleType
from typing import Any

import pytest

from infra.catalog import CATALOG
from moerl_runtime.bench import cli
from moerl_runtime.bench.settings import Settings, Shape
from moerl_runtime.plan import Node as Document
from tests.shipped import Changes, plan_of

UPSTREAM: Changes = {
    "software": "aws-reference",
    "workload.rollout.gpus_per_engine": 8,
    "workload.rollout.expert_parallel": 8,
}
CONTEXTS_MAX = 16
"""Of aws-ofi-nccl since 1.20.0: 2048 sequence numbers over 128 requests."""


def settings(changes: Changes | None, nodes: int) -> Settings:
    parser = argparse.ArgumentParser()
    cli.register(parser.add_subparsers())
    arguments = parser.parse_args(
        ["bench", "deepep", "--pool", "rollout", "--rendezvous", "127.0.0.1:1", "--nodes", str(nodes)]
    )
    document = json.loads(json.dumps(plan_of("reference-p5en", changes).document()))
    return cli.settings_of(arguments, Document(document, ""), {})


def test_upstreams_own_choice_is_replaced_and_the_forks_is_kept() -> None:
    assert 0 < settings(UPSTREAM, 2).num_contexts <= CONTEXTS_MAX
    assert settings(None, 2).num_contexts == 0
    assert settings(UPSTREAM, 1).num_contexts == 0


def test_every_stack_with_a_deepep_of_others_than_amazons_says_a_number() -> None:
    for stack in CATALOG.software.values():
        if stack.deepep is not None:
            assert (stack.deepep.contexts == 0) == ("amazon-contributing" in stack.deepep.repository)
            assert stack.deepep.contexts <= CONTEXTS_MAX


def test_the_buffer_is_made_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from moerl_runtime.bench import deepep

    made: dict[str, Any] = {}
    library = ModuleType("deep_ep")
    monkeypatch.setitem(sys.modules, "deep_ep", library)
    monkeypatch.setattr(library, "topk_idx_t", torch.int64, raising=False)
    monkeypatch.setattr(library, "ElasticBuffer", lambda _, **fields: made.update(fields), raising=False)
    experts, weights = torch.zeros((4, 2), dtype=torch.int64), torch.zeros((4, 2))
    deepep.DeepEpDispatcher(
        None, Shape(hidden=256, experts=8, top_k=2), experts, weights, hybrid=True, num_sms=12, num_contexts=2
    )
    assert (made["num_allocated_qps"], made["allow_hybrid_mode"]) == (2, True)
