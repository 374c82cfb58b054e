import pytest

from infra.catalog.models import DEEPEP_V2_ARCHITECTURES, MODELS, Model

EACH = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def routed_expert_params_b(model: Model) -> float:
    return model.moe_layers * model.experts * 3 * model.hidden * model.moe_intermediate / 1e9


@EACH
def test_routed_experts_are_most_of_a_moe_model_and_none_of_a_dense_one(model: Model) -> None:
    experts = routed_expert_params_b(model)
    if model.experts == 0:
        assert (model.moe_layers, model.top_k, model.moe_intermediate, experts) == (0, 0, 0, 0)
        assert model.active_params_b == model.total_params_b
    else:
        assert 0.94 < experts / model.total_params_b < 1


@EACH
def test_active_parameters_are_above_the_active_experts_and_below_the_total(model: Model) -> None:
    if model.experts:
        active_experts = routed_expert_params_b(model) * model.top_k / model.experts
        assert active_experts < model.active_params_b < model.total_params_b / 2


@EACH
def test_shape_is_one_that_a_transformer_can_have(model: Model) -> None:
    assert 0 <= model.moe_layers <= model.layers
    assert model.attention_heads % model.kv_heads == 0
    assert model.top_k <= model.experts
    assert model.mla == (model.head_dim > 128)


@EACH
def test_deepep_v2_is_what_sglang_validates_for_the_architecture(model: Model) -> None:
    assert model.deepep_v2 == (model.architecture in DEEPEP_V2_ARCHITECTURES)


@pytest.mark.parametrize(
    ("name", "dense_layers"),
    [
        ("Qwen/Qwen3-4B", 36),
        ("Qwen/Qwen3-30B-A3B", 0),
        ("Qwen/Qwen3-235B-A22B", 0),
        ("zai-org/GLM-4.5", 3),
        ("deepseek-ai/DeepSeek-V3", 3),
        ("moonshotai/Kimi-K2-Instruct", 1),
        ("zai-org/GLM-5", 3),
    ],
)
def test_layers_without_experts_are_as_the_configuration_says(name: str, dense_layers: int) -> None:
    assert MODELS[name].layers - MODELS[name].moe_layers == dense_layers


def test_r1_has_the_shape_of_v3() -> None:
    v3, r1 = MODELS["deepseek-ai/DeepSeek-V3"], MODELS["deepseek-ai/DeepSeek-R1"]
    assert (v3.layers, v3.hidden, v3.experts) == (r1.layers, r1.hidden, r1.experts) == (61, 7168, 256)
    assert r1.name == "deepseek-ai/DeepSeek-R1"


def test_models_of_the_shipped_profiles_are_present() -> None:
    assert set(MODELS) >= {"Qwen/Qwen3-4B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B", "zai-org/GLM-4.5"}
    assert set(MODELS) >= {"moonshotai/Kimi-K2-Instruct", "zai-org/GLM-5"}
