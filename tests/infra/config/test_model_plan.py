"""Where a model's files are, how many nodes convert it, and how long a save of it may take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.config.model_plan import model_plan
from infra.config.workload_plan import SAVE_SECONDS_FLOOR, save_seconds_max


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_directories_of_all_models_are_apart_and_plain(precision) -> None:
    made = [model_plan(name, precision, total_params_b=1.0, node_gpu_memory_gib=1128.0) for name in CATALOG.models]
    for files in made:
        assert files.reference not in (files.source, files.serving)
        assert (files.serving == files.source) == (precision == "bf16")
        for path in (files.source, files.serving, files.reference):
            assert set(path) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    assert len({files.source for files in made}) == len(made)


@given(billions=st.floats(0.5, 2000), gib=st.sampled_from([640.0, 1128.0, 1440.0]))
def test_conversion_nodes_hold_the_model_with_room(billions, gib) -> None:
    nodes = model_plan("a/b", "bf16", total_params_b=billions, node_gpu_memory_gib=gib).conversion_nodes
    weights_gib = billions * 1e9 * 2 / 2**30
    assert nodes * gib * 0.7 >= weights_gib
    assert nodes == 1 or (nodes - 1) * gib * 0.7 < weights_gib


def test_a_save_by_hand() -> None:
    # 235 B x 14 bytes = 3064 GiB; over 16 nodes at 250 MiB/s: 784.4 s.
    assert save_seconds_max(235e9 * 14 / 2**30, 16) == 785
    assert save_seconds_max(10.0, 16) == SAVE_SECONDS_FLOOR


def test_optimizer_state_is_counted_where_it_is_saved(planned) -> None:
    trainer = planned("reference-p5en").workload.trainer
    assert round(trainer.checkpoint_gib) == round(235e9 * 14 / 2**30)
    assert trainer.save_seconds_max == 785
