"""The all-to-all that a workload gets when it names none."""

from __future__ import annotations

import pytest

from infra.catalog.models import MODELS
from infra.catalog.software import SOFTWARE
from infra.config.backend import a2a_backend, dispatcher
from infra.config.environment import RolloutWorkload, TrainerWorkload
from infra.config.geometry import rollout_geometry


def backend(stack: str, *, width: int, written: str | None = None) -> str:
    workload = RolloutWorkload(gpus_per_engine=width, expert_parallel=width, precision="fp8", backend=written)
    geometry = rollout_geometry(workload, MODELS["Qwen/Qwen3-235B-A22B"], nodes=4, gpus_per_node=8)
    return a2a_backend(workload, SOFTWARE[stack], geometry)


@pytest.mark.parametrize(
    ("stack", "width", "expected"),
    [
        ("efa-gda", 16, "deepep_v2"),
        ("efa-gda", 8, "none"),
        ("aws-reference", 16, "deepep_v2"),
        ("aws-reference", 8, "none"),
        ("baseline", 16, "none"),
    ],
)
def test_deepep_is_chosen_where_experts_cross_nodes_and_the_stack_has_it(stack, width, expected) -> None:
    assert backend(stack, width=width) == expected


@pytest.mark.parametrize("written", ["none", "deepep", "deepep_v2", "mooncake"])
@pytest.mark.parametrize("width", [8, 16])
def test_what_is_written_wins(written, width) -> None:
    assert backend("efa-gda", width=width, written=written) == written


def test_dispatcher_is_the_stacks_own_unless_written() -> None:
    for stack in SOFTWARE.values():
        assert dispatcher(TrainerWorkload(), stack) == stack.trainer_dispatcher
        assert dispatcher(TrainerWorkload(dispatcher="deepep"), stack) == "deepep"
