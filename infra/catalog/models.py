"""Shapes of the models that shipped profiles use, as their published configurations have them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from types import MappingProxyType

from infra.catalog.facts import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model. Counts unless a unit is named; sizes in elements.

    `moe_layers`, `experts`, `top_k` and `moe_intermediate` are 0 for a dense model; `experts` are routed experts per
    MoE layer. `head_dim` is that of queries and keys; for latent attention (`mla`) the part with and without rotation
    together. `total_params_b` and `active_params_b` are in billions. `architecture` is the Hugging Face class.
    `deepep_v2` says whether SGLang 0.5.19, the first with that backend, validates it for the architecture.
    """

    name: str
    layers: int
    moe_layers: int
    hidden: int
    experts: int
    top_k: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    moe_intermediate: int
    total_params_b: float
    active_params_b: float
    architecture: str
    mla: bool
    deepep_v2: bool
    source: Source


DEEPEP_V2_ARCHITECTURES = frozenset({"DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM", "Qwen3MoeForCausalLM"})
"""What SGLang 0.5.19 validates (validate_deepep_v2_model_architecture in arg_groups/moe_hook.py of the wheel)."""

_MILES = "https://github.com/radixark/miles/blob/31f1ca961a94cb860cec3b2dea34ec332bfa8f76/scripts/models"


def _shape(script: str) -> Source:
    return Source(
        title=f"radixark/miles scripts/models/{script}.py, which restates the model's config.json",
        url=f"{_MILES}/{script}.py",
        as_of=date(2026, 8, 21),
    )


_DEEPSEEK_V3 = Model(
    name="deepseek-ai/DeepSeek-V3",
    layers=61,
    moe_layers=58,
    hidden=7168,
    experts=256,
    top_k=8,
    attention_heads=128,
    kv_heads=128,
    head_dim=192,
    vocab=129280,
    moe_intermediate=2048,
    total_params_b=671.0,
    active_params_b=37.0,
    architecture="DeepseekV3ForCausalLM",
    mla=True,
    deepep_v2=True,
    source=_shape("deepseek-v3"),
)

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            Model(
                name="Qwen/Qwen3-4B",
                layers=36,
                moe_layers=0,
                hidden=2560,
                experts=0,
                top_k=0,
                attention_heads=32,
                kv_heads=8,
                head_dim=128,
                vocab=151936,
                moe_intermediate=0,
                total_params_b=4.0,
                active_params_b=4.0,
                architecture="Qwen3ForCausalLM",
                mla=False,
                deepep_v2=False,
                source=_shape("qwen3-4B"),
            ),
            Model(
                name="Qwen/Qwen3-30B-A3B",
                layers=48,
                moe_layers=48,
                hidden=2048,
                experts=128,
                top_k=8,
                attention_heads=32,
                kv_heads=4,
                head_dim=128,
                vocab=151936,
                moe_intermediate=768,
                total_params_b=30.5,
                active_params_b=3.3,
                architecture="Qwen3MoeForCausalLM",
                mla=False,
                deepep_v2=True,
                source=_shape("qwen3-30B-A3B"),
            ),
            Model(
                name="Qwen/Qwen3-235B-A22B",
                layers=94,
                moe_layers=94,
                hidden=4096,
                experts=128,
                top_k=8,
                attention_heads=64,
                kv_heads=4,
                head_dim=128,
                vocab=151936,
                moe_intermediate=1536,
                total_params_b=235.0,
                active_params_b=22.0,
                architecture="Qwen3MoeForCausalLM",
                mla=False,
                deepep_v2=True,
                source=_shape("qwen3-235B-A22B"),
            ),
            Model(
                name="zai-org/GLM-4.5",
                layers=92,
                moe_layers=89,
                hidden=5120,
                experts=160,
                top_k=8,
                attention_heads=96,
                kv_heads=8,
                head_dim=128,
                vocab=151552,
                moe_intermediate=1536,
                total_params_b=355.0,
                active_params_b=32.0,
                architecture="Glm4MoeForCausalLM",
                mla=False,
                deepep_v2=False,
                source=_shape("glm4.5-355B-A32B"),
            ),
            _DEEPSEEK_V3,
            replace(_DEEPSEEK_V3, name="deepseek-ai/DeepSeek-R1"),
            Model(
                name="moonshotai/Kimi-K2-Instruct",
                layers=61,
                moe_layers=60,
                hidden=7168,
                experts=384,
                top_k=8,
                attention_heads=64,
                kv_heads=64,
                head_dim=192,
                vocab=163840,
                moe_intermediate=2048,
                # By the shape; the model card rounds to one trillion.
                total_params_b=1026.0,
                active_params_b=32.0,
                architecture="DeepseekV3ForCausalLM",
                mla=True,
                deepep_v2=True,
                source=_shape("kimi-k2"),
            ),
            Model(
                name="zai-org/GLM-5",
                layers=78,
                moe_layers=75,
                hidden=6144,
                experts=256,
                top_k=8,
                attention_heads=64,
                kv_heads=64,
                head_dim=256,
                vocab=154880,
                moe_intermediate=2048,
                total_params_b=744.0,
                active_params_b=40.0,
                # Later SGLang lists this class for deepep_v2; 0.5.19 does not.
                architecture="GlmMoeDsaForCausalLM",
                mla=True,
                deepep_v2=False,
                source=_shape("glm5-744B-A40B"),
            ),
        )
    }
)
