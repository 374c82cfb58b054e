"""A model's shape as Megatron's flags: counts and sizes from the catalog, the rest as Miles and slime both have it.

Sources: scripts/models of radixark/miles 78527b91 (v0.1.0) and THUDM/slime bd217a63 (v0.2.4), which agree flag for flag but
where a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from infra.catalog.models import Model

Framework = Literal["miles", "slime"]
Values = Mapping[str, str]
"""Flag name, without dashes, to its values with a space between them; a bare flag has an empty one."""

_COMMON = {"disable-bias-linear": "", "normalization": "RMSNorm", "swiglu": "", "qk-layernorm": ""}
_UNTIED = {"position-embedding-type": "rope", "untie-embeddings-and-output-weights": ""}
_QWEN3_MOE = {
    "norm-epsilon": "1e-6",
    "rotary-percent": "1.0",
    "rotary-base": "1000000",
    "moe-router-score-function": "softmax",
    "moe-token-drop-policy": "probs",
}
_SIGMOID_ROUTER = {
    "moe-router-pre-softmax": "",
    "moe-router-score-function": "sigmoid",
    "moe-router-enable-expert-bias": "",
    "moe-router-load-balancing-type": "seq_aux_loss",
    "moe-router-bias-update-rate": "0",
}
_MLA = {
    "multi-latent-attention": "",
    "kv-lora-rank": "512",
}
_DEEPSEEK = {
    **_SIGMOID_ROUTER,
    **_MLA,
    "norm-epsilon": "1e-6",
    "ffn-hidden-size": "18432",
    "q-lora-rank": "1536",
    "qk-head-dim": "128",
    "qk-pos-emb-head-dim": "64",
    "v-head-dim": "128",
    "mscale": "1.0",
    "mscale-all-dim": "1.0",
    "attention-softmax-in-fp32": "",
    "no-rope-fusion": "",
    "moe-shared-expert-intermediate-size": "2048",
}
_DEEPSEEK_V3 = {
    **_DEEPSEEK,
    "kv-channels": "128",
    "rotary-base": "10000",
    "rotary-scaling-factor": "40",
    "moe-router-group-topk": "4",
    "moe-router-num-groups": "8",
    "moe-router-topk-scaling-factor": "2.5",
}

_OWN: Mapping[str, Values] = MappingProxyType(
    {
        "Qwen/Qwen3-4B": {
            "norm-epsilon": "1e-6",
            "ffn-hidden-size": "9728",
            "rotary-base": "1000000",
            "use-rotary-position-embeddings": "",
        },
        "Qwen/Qwen3-30B-A3B": {**_UNTIED, **_QWEN3_MOE, "ffn-hidden-size": "6144"},
        "Qwen/Qwen3-235B-A22B": {**_UNTIED, **_QWEN3_MOE, "ffn-hidden-size": "12288"},
        "zai-org/GLM-4.5": {
            **_UNTIED,
            **_SIGMOID_ROUTER,
            "add-qkv-bias": "",
            "ffn-hidden-size": "12288",
            "rotary-percent": "0.5",
            "rotary-base": "1000000",
            "moe-shared-expert-intermediate-size": "1536",
            "moe-router-topk-scaling-factor": "2.5",
        },
        "deepseek-ai/DeepSeek-V3": {**_UNTIED, **_DEEPSEEK_V3},
        "deepseek-ai/DeepSeek-R1": {**_UNTIED, **_DEEPSEEK_V3},
        "moonshotai/Kimi-K2-Instruct": {
            **_UNTIED,
            **_DEEPSEEK,
            "kv-channels": "64",
            "rotary-base": "50000",
            "rotary-scaling-factor": "32.0",
            "moe-router-group-topk": "1",
            "moe-router-num-groups": "1",
            "moe-router-topk-scaling-factor": "2.827",
        },
        "zai-org/GLM-5": {
            **_UNTIED,
            **_SIGMOID_ROUTER,
            **_MLA,
            "no-position-embedding": "",
            "ffn-hidden-size": "12288",
            "kv-channels": "192",
            "q-lora-rank": "2048",
            "qk-head-dim": "192",
            "qk-pos-emb-head-dim": "64",
            "v-head-dim": "256",
            "rotary-base": "1000000",
            "moe-shared-expert-intermediate-size": "2048",
            "moe-router-topk-scaling-factor": "2.5",
            "make-vocab-size-divisible-by": "16",
            "enable-experimental": "",
        },
    }
)

# What one framework alone adds.
_BY_FRAMEWORK: Mapping[tuple[str, Framework], Values] = MappingProxyType(
    {
        ("moonshotai/Kimi-K2-Instruct", "miles"): {
            "rope-type": "yarn",
            "beta-fast": "1",
            "beta-slow": "1",
            "original-max-position-embeddings": "4096",
        },
        ("zai-org/GLM-5", "slime"): {"allgather-cp": ""},
    }
)


def shape(model: Model, framework: Framework) -> dict[str, tuple[str, ...]]:
    """Flags of the model, name to values, without the token dispatcher.

    Raises ValueError for a model whose flags nobody has read.
    """
    if model.name not in _OWN:
        raise ValueError(f"no Megatron flags for {model.name}; add them to k8s/flags/shape.py")
    flags = {
        **_COMMON,
        "num-layers": str(model.layers),
        "hidden-size": str(model.hidden),
        "num-attention-heads": str(model.attention_heads),
        "vocab-size": str(model.vocab),
    }
    if not model.mla:
        flags |= {
            "group-query-attention": "",
            "num-query-groups": str(model.kv_heads),
            "kv-channels": str(model.head_dim),
        }
    if model.experts:
        flags |= {
            "num-experts": str(model.experts),
            "moe-layer-freq": f"[0]*{model.layers - model.moe_layers}+[1]*{model.moe_layers}",
            "moe-ffn-hidden-size": str(model.moe_intermediate),
            "moe-router-topk": str(model.top_k),
            "moe-router-dtype": "fp32",
            "moe-aux-loss-coeff": "0",
            "moe-grouped-gemm": "",
            "moe-permute-fusion": "",
        }
    flags |= {**_OWN[model.name], **_BY_FRAMEWORK.get((model.name, framework), {})}
    if model.name == "zai-org/GLM-5":
        flags["spec"] = f"{framework}_plugins.models.glm5.glm5 get_glm5_spec"
    return {name: tuple(value.split()) for name, value in flags.items()}
