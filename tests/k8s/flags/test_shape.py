"""Megatron's view of a model: every model of the catalog, and numbers that agree with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.catalog import CATALOG
from k8s.flags.known import framework_flags
from k8s.flags.shape import shape

MODELS = sorted(CATALOG.models)


@pytest.mark.parametrize("framework", ["miles", "slime"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_flags_that_the_framework_knows(name, framework) -> None:
    flags = shape(CATALOG.models[name], framework)
    assert set(flags) <= framework_flags(framework)
    assert flags["num-layers"] == (str(CATALOG.models[name].layers),)
    assert ("num-experts" in flags) == bool(CATALOG.models[name].experts)


@pytest.mark.parametrize("name", MODELS)
def test_heads_add_up_to_the_catalogs_width(name) -> None:
    """Latent attention states its head in two parts, grouped attention its key-value heads; never both."""
    model, flags = CATALOG.models[name], shape(CATALOG.models[name], "miles")
    if model.mla:
        parts = int(flags["qk-head-dim"][0]) + int(flags["qk-pos-emb-head-dim"][0])
        assert parts == model.head_dim
        assert "num-query-groups" not in flags
    else:
        assert (flags["kv-channels"], flags["num-query-groups"]) == ((str(model.head_dim),), (str(model.kv_heads),))
        assert "multi-latent-attention" not in flags


@pytest.mark.parametrize("name", [name for name in MODELS if CATALOG.models[name].experts])
def test_dense_layers_come_first_and_all_layers_are_counted(name) -> None:
    model = CATALOG.models[name]
    ((pattern,),) = (shape(model, "miles")["moe-layer-freq"],)
    layers = [kind for part in pattern.split("+") for kind in [part[1]] * int(part.partition("*")[2])]
    assert layers == ["0"] * (model.layers - model.moe_layers) + ["1"] * model.moe_layers


def test_a_model_whose_flags_nobody_has_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="no Megatron flags for somebody/new"):
        shape(replace(CATALOG.models["Qwen/Qwen3-4B"], name="somebody/new"), "miles")


def test_a_plugin_is_the_frameworks_own() -> None:
    for framework in ("miles", "slime"):
        assert shape(CATALOG.models["zai-org/GLM-5"], framework)["spec"][0].startswith(f"{framework}_plugins.")
