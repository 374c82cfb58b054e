"""Row B63: what a save stages in host memory fits in the worker's pod, beside a /dev/shm that is full."""

from __future__ import annotations

import pytest

from tests.shipped import SHIPPED, plan_of

GIB_PER_GB = 1000**3 / 1024**3


def room_gib(name: str) -> float:
    """Of a trainer's worker, when everything in its /dev/shm is in use."""
    worker = plan_of(name).workload.trainer.pods.worker
    assert 0 < worker.shm_mib < worker.memory_mib
    return (worker.memory_mib - worker.shm_mib) / 1024


@pytest.mark.parametrize("name", SHIPPED)
def test_all_that_a_nodes_gpus_hold_fits_so_no_model_can_stage_too_much(name: str) -> None:
    plan = plan_of(name)
    pool = plan.pool(plan.workload.trainer.pool)
    assert pool.gpus_per_node * pool.gpu_memory_gib * GIB_PER_GB <= room_gib(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_save_is_there_twice_while_it_is_written(name: str) -> None:
    """Copied off the GPUs, and once more in the buffers of its writers."""
    trainer = plan_of(name).workload.trainer
    assert trainer.save_optimizer
    assert 2 * trainer.checkpoint_gib / trainer.geometry.nodes <= room_gib(name)
