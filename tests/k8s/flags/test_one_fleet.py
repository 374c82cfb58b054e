"""Engines do prefill and decode themselves: no split fleet is rendered, so no Mooncake or NIXL moves anything over EFA."""

from __future__ import annotations

import pytest

from k8s.flags.sglang import engine_command
from tests.shipped import SHIPPED, Changes, plan_of

SPLIT: Changes = {"workload.rollout.kv_transfer": {"backend": "mooncake", "protocol": "efa"}}


@pytest.mark.parametrize("changes", [None, SPLIT], ids=["as shipped", "with kv_transfer"])
@pytest.mark.parametrize("name", SHIPPED)
def test_no_engine_is_half_of_a_split_one(name: str, changes: Changes | None) -> None:
    plan = plan_of(name, changes)
    for rollout in plan.workload.rollouts:
        command = engine_command(plan, rollout, model_path="/models/m", jit_path="/jit")
        for text in (*command.flags, *command.variables):
            assert "disaggregation" not in text
            assert "mooncake" not in text.lower()
            assert "nixl" not in text.lower()
