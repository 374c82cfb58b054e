"""Every engine that the Plan can describe gets a command that SGLang would accept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.catalog.models import MODELS, Model
from infra.catalog.software import SOFTWARE
from infra.config.plan import Plan
from infra.config.workload_plan import RolloutPlan
from k8s.flags.sglang import EngineCommand, engine_command
from k8s.flags.sglang_rules import known_names, parse, refusals
from tests.infra.config.test_engine_plan import engine_of, geometry_of
from tests.shipped import SHIPPED, plan_of

VERSIONS = sorted({stack.sglang for stack in SOFTWARE.values()})


def command_of(plan: Plan, rollout: RolloutPlan | None = None, host: str = "127.0.0.1") -> EngineCommand:
    rollout = rollout or plan.workload.rollouts[0]
    return engine_command(plan, rollout, model_path="/models/m", jit_path="/jit", host=host)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_engines_are_accepted(name: str) -> None:
    plan = plan_of(name)
    for rollout in plan.workload.rollouts:
        command = command_of(plan, rollout)
        options = parse(command.flags)
        assert (
            refusals(
                command.flags,
                command.variables,
                version=rollout.engine.sglang,
                architecture=plan.workload.architecture,
            )
            == ()
        )
        assert options["--tp-size"] == str(rollout.geometry.gpus_per_engine)
        assert options["--moe-a2a-backend"] == rollout.backend
        assert options["--moe-runner-backend"] != "auto"


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=80, deadline=None)
@given(
    model=st.sampled_from(list(MODELS.values())),
    gpus=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    split=st.booleans(),
    precision=st.sampled_from(["fp8", "bf16"]),
)
def test_any_geometry_is_accepted(version: str, model: Model, gpus: int, split: bool, precision: str) -> None:
    """deepep_v2 where the release, the model and the precision have it and experts cross nodes; NCCL elsewhere."""
    plan = plan_of("reference-p5en")
    plan = replace(plan, workload=replace(plan.workload, model=model.name, architecture=model.architecture))
    geometry = geometry_of(model, gpus)
    if not (split and model.experts):
        geometry = replace(geometry, expert_parallel=1, expert_group_nodes=1)
    deepep = geometry.experts_cross_efa and model.deepep_v2 and precision == "fp8" and version == "0.5.19"
    engine = replace(engine_of(model, geometry, precision=precision), sglang=version)
    rollout = replace(
        plan.workload.rollouts[0],
        geometry=geometry,
        backend="deepep_v2" if deepep else "none",
        precision=precision,
        engine=engine if deepep else replace(engine, dispatch_tokens_per_rank=None, deepep_v2_mode=None),
    )
    options = parse(command_of(plan, rollout).flags)
    assert int(options.get("--nnodes", 1)) == geometry.nodes_per_engine
    assert ("--dist-init-addr" in options) == (geometry.nodes_per_engine > 1)
    assert ("--enable-dp-attention" in options) == (geometry.nodes_per_engine > 1)
    assert options.get("--deepep-v2-mode") == ("hybrid" if deepep else None)


def test_an_engine_on_several_nodes_speaks_hybrid_and_one_on_one_node_direct() -> None:
    many = plan_of("reference-p5en")
    one = plan_of("starter-p5en", {"workload.rollout.backend": "deepep_v2"})
    assert parse(command_of(many).flags)["--deepep-v2-mode"] == "hybrid"
    assert "EP_DISABLE_GIN" not in command_of(many).variables
    assert parse(command_of(one).flags)["--deepep-v2-mode"] == "direct"
    assert command_of(one).variables["EP_DISABLE_GIN"] == "1"


def test_transport_variables_come_from_the_plan() -> None:
    for name, gin in (("reference-p5en", "5"), ("p5", "2")):
        assert command_of(plan_of(name)).variables["NCCL_GIN_TYPE"] == gin
    assert "NCCL_GIN_TYPE" not in command_of(plan_of("p6-b200")).variables


def test_each_rank_of_a_group_finds_itself_by_the_groups_variables() -> None:
    options = parse(command_of(plan_of("reference-p5en")).flags)
    assert options["--node-rank"] == "$(LWS_WORKER_INDEX)"
    assert options["--dist-init-addr"].startswith("$(LWS_LEADER_ADDRESS):")


def test_a_users_variable_goes_through_the_same_check() -> None:
    name = "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    plan = plan_of("reference-p5en", {"workload.rollout.variables": {name: "128"}})
    with pytest.raises(ValueError, match="below the prefill chunk"):
        command_of(plan)
    with pytest.raises(ValueError, match="SGLANG_NO_SUCH is no variable"):
        command_of(plan_of("reference-p5en", {"workload.rollout.variables": {"SGLANG_NO_SUCH": "1"}}))


@pytest.mark.parametrize("version", VERSIONS)
def test_health_answers_without_generating_and_no_key_or_queue_limit_is_set(version: str) -> None:
    plan = plan_of("starter-p5en")
    rollout = plan.workload.rollouts[0]
    command = command_of(plan, replace(rollout, engine=replace(rollout.engine, sglang=version)))
    assert command.variables["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"
    options = parse(command.flags)
    assert options["--host"] == "127.0.0.1"
    assert not {"--api-key", "--admin-api-key", "--max-queued-requests", "--trust-remote-code"} & set(options)
    assert {name for name in command.variables if name.startswith("SGLANG_")} <= known_names(version)


def test_the_decode_limit_goes_by_the_name_that_the_release_has() -> None:
    plan = plan_of("starter-p5en")
    rollout = plan.workload.rollouts[0]
    for version, name in (("0.5.9", "--cuda-graph-max-bs"), ("0.5.19", "--cuda-graph-max-bs-decode")):
        command = command_of(plan, replace(rollout, engine=replace(rollout.engine, sglang=version)))
        assert [flag for flag in command.flags if flag.startswith("--cuda-graph")] == [name]
