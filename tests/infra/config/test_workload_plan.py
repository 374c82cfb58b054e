"""Derived numbers of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.catalog.transport_variables import variables

DEVICE_SIDE = {"NCCL_GIN_TYPE", "NCCL_SYM_GIN_KERNELS_ENABLE", "NCCL_CUMEM_ENABLE", "EP_REUSE_NCCL_COMM"}
R, P5, P6, S = "reference-p5en", "p5", "p6-b200", "starter-p5en"


def test_trainer_has_one_worker_a_node_and_the_geometry_of_the_whole_pool(planned) -> None:
    for base, nodes in ((R, 16), (P6, 8), (S, 2)):
        trainer = planned(base).workload.trainer
        assert (trainer.pool, trainer.workers, trainer.geometry.nodes, trainer.geometry.gpus) == (
            "trainer",
            nodes,
            nodes,
            nodes * 8,
        )


def test_gates_are_enforced_unless_the_file_says_otherwise(planned) -> None:
    assert planned(S).workload.gates.enforced
    off = planned(S, {"workload.trainer.gates": False}).workload.gates
    assert off == replace(planned(S).workload.gates, enforced=False)


@pytest.mark.parametrize(
    ("changes", "proven"),
    [
        ({}, True),
        ({"workload.trainer.prove_fabric": False}, False),
        ({"pools.trainer.nodes": 1, "workload.trainer.expert_parallel": 8}, False),
        ({"pools.trainer.efa": False, "workload.trainer.expert_parallel": 8}, False),
    ],
)
def test_links_are_proven_before_a_run_where_there_are_any(changes, proven, planned) -> None:
    assert planned("starter-p5en", changes).workload.trainer.prove_fabric is proven


def test_a_lost_node_takes_its_whole_engine(planned) -> None:
    assert [rollout.lost_with_one_node for rollout in planned(R).workload.rollouts] == [2]
    assert [rollout.lost_with_one_node for rollout in planned(S).workload.rollouts] == [1]


def test_every_rollout_pool_has_its_own_engines(planned) -> None:
    more = {
        "role": "rollout",
        "instance_types": ["p5en.48xlarge"],
        "nodes": {"min": 0, "max": 6},
        "capacity": {"type": "on_demand"},
        "efa": False,
    }
    first, second = planned(S, {"pools.more": more}).workload.rollouts
    assert (first.pool, first.geometry.engines_max) == ("rollout", 2)
    assert (second.pool, second.geometry.engines_max) == ("more", 6)


@pytest.mark.parametrize(
    ("base", "changes", "transport"),
    [(R, {}, "gda"), (P5, {}, "proxy"), (R, {"pools.rollout.transport": "proxy"}, "proxy")],
)
def test_pods_get_the_variables_of_their_pools_transport(base, changes, transport, planned) -> None:
    (rollout,) = planned(base, changes).workload.rollouts
    assert rollout.variables == variables(transport, deepep_over_efa=True)
    assert rollout.variables["NCCL_GIN_TYPE"] == {"gda": "5", "proxy": "2"}[transport]


def test_device_side_networking_is_set_only_where_experts_cross_nodes(planned) -> None:
    workload = planned(S).workload
    (rollout,) = workload.rollouts
    assert not rollout.geometry.experts_cross_efa
    assert rollout.variables == variables("gda", deepep_over_efa=False)
    assert not DEVICE_SIDE & rollout.variables.keys()
    assert rollout.variables["NCCL_NET"] == "Libfabric"
    assert workload.experts_over_efa == ("trainer",)
    assert planned(R).workload.experts_over_efa == ("trainer", "rollout")


def test_experts_that_cross_nodes_without_deepep_do_so_over_nccl_alone(planned) -> None:
    trainer = planned(R).workload.trainer
    assert trainer.geometry.experts_cross_efa
    assert trainer.dispatcher == "alltoall"
    assert trainer.variables == variables("gda", deepep_over_efa=False)
    (rollout,) = planned(R, {"workload.rollout.backend": "none"}).workload.rollouts
    assert rollout.geometry.experts_cross_efa
    assert rollout.variables == variables("gda", deepep_over_efa=False)
    assert not DEVICE_SIDE & (trainer.variables.keys() | rollout.variables.keys())
    assert trainer.variables["NCCL_NET"] == rollout.variables["NCCL_NET"] == "Libfabric"


def test_a_pool_without_efa_gets_no_communication_variable_that_would_fail_on_it(planned) -> None:
    (rollout,) = planned(S, {"pools.rollout.efa": False}).workload.rollouts
    assert rollout.variables == {}


def test_the_users_variables_join_the_plans_on_their_own_side(planned) -> None:
    workload = planned(S, {"workload.rollout.variables": {"HF_HOME": "/x"}}).workload
    assert workload.rollouts[0].variables["HF_HOME"] == "/x"
    assert "NCCL_NET" in workload.rollouts[0].variables
    assert "HF_HOME" not in workload.trainer.variables


def test_images_are_built_for_the_pools_unless_the_file_says_more(planned) -> None:
    assert planned(R).workload.cuda_archs == ("9.0",)
    assert planned(P6).workload.cuda_archs == ("10.0",)
    mixed = {"pools.rollout.instance_types": ["p6-b300.48xlarge"]}
    assert planned(P6, mixed).workload.cuda_archs == ("10.0", "10.3")
    assert planned(P6, {"images.cuda_archs": ["10.3", "10.0"]}).workload.cuda_archs == ("10.3", "10.0")


def test_what_the_file_says_of_the_run_is_in_the_plan(planned) -> None:
    workload = planned(
        R,
        {
            "workload.no_checkpoint": True,
            "workload.trainer.save_optimizer": False,
        },
    ).workload
    assert (workload.model, workload.architecture) == ("Qwen/Qwen3-235B-A22B", "Qwen3MoeForCausalLM")
    assert (workload.steps, workload.save_interval, workload.no_checkpoint) == (1000, 20, True)
    assert not workload.trainer.save_optimizer
    assert workload.trainer.dispatcher == "alltoall"
    (rollout,) = workload.rollouts
    assert (rollout.precision, rollout.backend) == ("fp8", "deepep_v2")
    assert not workload.router
