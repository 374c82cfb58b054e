from __future__ import annotations

import pytest

S, R, P5, P6 = "starter-p5en", "reference-p5en", "p5", "p6-b200"
TRAINER, ROLLOUT = "workload.trainer", "workload.rollout"
GPE, EP, MODEL = f"{ROLLOUT}.gpus_per_engine", f"{ROLLOUT}.expert_parallel", "workload.model"
V3, DENSE, GLM = "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-4B", "zai-org/GLM-4.5"
FLAGS = f"{TRAINER}.flags"
ALLOC = "PYTORCH_CUDA_ALLOC_CONF"
# DeepSeek-V3 on the reference pools: 256 experts, and latent attention, so its heads do not bind the engine's width.
V3_ON_R = {MODEL: V3, f"{TRAINER}.expert_parallel": 32}
KIMI = "moonshotai/Kimi-K2-Instruct"

FAULTS = [
    ("workload.model-known", S, {MODEL: "Qwen/Qwen9"}, MODEL, "Qwen/Qwen9", "layers and experts", "Qwen/Qwen3-30B-A3B"),
    (
        "workload.trainer-divides",
        S,
        {f"{TRAINER}.context_parallel": 3},
        TRAINER,
        "tensor 4 x pipeline 1 x context 3",
        "= 12 does not divide the 16 GPUs of pool trainer",
        "product divides 16",
    ),
    (
        "workload.trainer-divides",
        S,
        {f"{TRAINER}.expert_parallel": 8, f"{TRAINER}.expert_tensor_parallel": 4},
        f"{TRAINER}.expert_parallel",
        "8",
        "expert 8 x expert tensor 4 x pipeline 1 = 32 does not divide the 16 GPUs of pool trainer",
        "a divisor of 16",
    ),
    (
        "workload.tensor-in-node",
        S,
        {f"{TRAINER}.tensor_parallel": 16},
        f"{TRAINER}.tensor_parallel",
        "16",
        "must divide a node's 8 GPUs",
        "a divisor of 8",
    ),
    (
        "workload.tensor-in-node",
        S,
        {f"{TRAINER}.expert_parallel": 1, f"{TRAINER}.expert_tensor_parallel": 16},
        f"{TRAINER}.expert_tensor_parallel",
        "16",
        "must divide a node's 8 GPUs",
        "a divisor of 8",
    ),
    (
        "workload.trainer-model",
        S,
        {f"{TRAINER}.tensor_parallel": 3, "pools.trainer.nodes": 3, f"{TRAINER}.expert_parallel": 8},
        f"{TRAINER}.tensor_parallel",
        "3",
        "does not divide the 32 attention heads",
        "a divisor",
    ),
    (
        "workload.trainer-model",
        S,
        {f"{TRAINER}.tensor_parallel": 3, "pools.trainer.nodes": 3, f"{TRAINER}.expert_parallel": 8},
        f"{TRAINER}.tensor_parallel",
        "3",
        "neither divides nor is a multiple of the 4 key-value heads",
        "a divisor of 4",
    ),
    (
        "workload.trainer-model",
        S,
        {"pools.trainer.nodes": 3, f"{TRAINER}.expert_parallel": 24},
        f"{TRAINER}.expert_parallel",
        "24",
        "does not divide the 128 experts",
        "a divisor of the experts",
    ),
    (
        "workload.trainer-model",
        S,
        {MODEL: DENSE, EP: 1},
        f"{TRAINER}.expert_parallel",
        "16",
        f"{DENSE} is dense",
        "1 for a dense model",
    ),
    # 48 layers on 32 stages: two each on 31 stages are 62.
    (
        "workload.trainer-model",
        S,
        {"pools.trainer.nodes": 16, f"{TRAINER}.pipeline_parallel": 32, f"{TRAINER}.expert_parallel": 4},
        f"{TRAINER}.pipeline_parallel",
        "32",
        "leaves no layer of 48 for the last stage",
        "fewer stages",
    ),
    # 48 layers on 17 stages: three each on 16 stages are all of them.
    (
        "workload.trainer-model",
        S,
        {"pools.trainer.nodes": 17, f"{TRAINER}.pipeline_parallel": 17, f"{TRAINER}.expert_parallel": 8},
        f"{TRAINER}.pipeline_parallel",
        "17",
        "leaves no layer of 48 for the last stage",
        "fewer stages",
    ),
    (
        "workload.engine-alignment",
        S,
        {GPE: 6, EP: 1},
        GPE,
        "6",
        "would straddle nodes of 8 GPUs",
        "a divisor or a multiple of 8",
    ),
    (
        "workload.engine-alignment",
        S,
        {GPE: 32, EP: 32},
        GPE,
        "32",
        "one engine needs 4 nodes and pool rollout has at most 2",
        "larger maximum",
    ),
    (
        "workload.engine-alignment",
        R,
        {GPE: 24, EP: 1, f"{ROLLOUT}.precision": "bf16", "pools.rollout.nodes.max": 30},
        GPE,
        "24",
        "does not divide the 64 attention heads",
        "a divisor",
    ),
    (
        "workload.engine-experts",
        S,
        {MODEL: DENSE, f"{TRAINER}.expert_parallel": 1},
        EP,
        "8",
        f"{DENSE} is dense",
        "Write 1.",
    ),
    (
        "workload.engine-experts",
        R,
        {**V3_ON_R, GPE: 24, EP: 24, "pools.rollout.nodes.max": 30},
        EP,
        "24",
        "does not divide the 256 experts",
        "a divisor of 256",
    ),
    (
        "workload.engine-experts",
        S,
        {EP: 4},
        EP,
        "4",
        "with 8 GPUs per engine the experts would also be split by tensor",
        "Write 8 (the engine's GPUs) or 1",
    ),
    (
        "workload.engine-experts",
        S,
        {EP: 16},
        EP,
        "16",
        "with 8 GPUs per engine",
        "Write 8 (the engine's GPUs) or 1",
    ),
    *(
        (
            "workload.engine-backend",
            R,
            {f"{ROLLOUT}.backend": backend},
            f"{ROLLOUT}.backend",
            backend,
            f"{name} crosses nodes by IBGDA, which EFA does not have; expert parallel 16 spans 2 nodes",
            "`backend: deepep_v2`, or write gpus_per_engine and expert_parallel 8",
        )
        for backend, name in (("deepep", "legacy DeepEP"), ("mooncake", "Mooncake EP"))
    ),
    (
        "workload.engine-backend",
        R,
        {"software": "aws-reference"},
        EP,
        "16",
        "software aws-reference: SGLang 0.5.17 has no deepep_v2 backend",
        "`software: efa-gda`",
    ),
    (
        "workload.engine-backend",
        R,
        {"software": "baseline", f"{ROLLOUT}.backend": "deepep_v2"},
        f"{ROLLOUT}.backend",
        "deepep_v2",
        "software baseline: SGLang 0.5.9 has no deepep_v2 backend",
        "`software: efa-gda`",
    ),
    (
        "workload.engine-backend",
        R,
        {"pools.rollout.efa": False},
        EP,
        "16",
        "pool rollout has no DeepEP transport over EFA",
        "gda or proxy",
    ),
    (
        "workload.engine-backend",
        R,
        {"pools.rollout.transport": "none"},
        EP,
        "16",
        "pool rollout has no DeepEP transport over EFA",
        "gda or proxy",
    ),
    (
        "workload.engine-backend",
        R,
        {f"{ROLLOUT}.precision": "bf16"},
        f"{ROLLOUT}.precision",
        "bf16",
        "blockwise FP8 experts only",
        "`precision: fp8`",
    ),
    (
        "workload.engine-backend",
        R,
        {MODEL: GLM},
        MODEL,
        GLM,
        "architecture Glm4MoeForCausalLM is not in SGLang's deepep_v2 list",
        "a listed model",
    ),
    (
        "workload.expert-parallel-cap",
        R,
        {**V3_ON_R, GPE: 128, EP: 128},
        EP,
        "128",
        "software efa-gda has been shown on EFA up to 64 expert ranks",
        "64 or less",
    ),
    (
        "workload.expert-parallel-cap",
        R,
        {f"{TRAINER}.expert_parallel": 128, f"{TRAINER}.pipeline_parallel": 1, f"{TRAINER}.dispatcher": "deepep"},
        f"{TRAINER}.expert_parallel",
        "128",
        "up to 64 expert ranks",
        "64 or less",
    ),
    *(
        (
            "workload.trainer-dispatcher",
            R,
            {f"{TRAINER}.dispatcher": dispatcher},
            f"{TRAINER}.dispatcher",
            dispatcher,
            reason,
            "alltoall",
        )
        for dispatcher, reason in (
            ("deepep", "IBGDA, which EFA does not have; the expert group spans 2 nodes"),
            ("deepep_v2", "software efa-gda: the backward pass of this DeepEP pin corrupts memory"),
        )
    ),
    # 768 columns of an expert over 8 GPUs are 96: less than one block of 128.
    (
        "workload.fp8-blocks",
        S,
        {EP: 1},
        EP,
        "1",
        "splits the experts' 768 columns by 8, not in blocks of 128",
        "Write 8, so that each expert stays whole",
    ),
    (
        "workload.trainer-memory",
        R,
        {f"{TRAINER}.expert_parallel": 2},
        TRAINER,
        "GiB per GPU",
        "Qwen/Qwen3-235B-A22B leave no room for activations in the 141 GiB of a H200",
        "expert parallel",
    ),
    # Experts 653.9e9 / 64 = 10.22e9 a rank, the rest 17.1e9 / 16 = 1.07e9: 6 x 11.29e9 + 12 x (10.22e9 / 2 + 1.07e9 / 8)
    # bytes are 121.6 GiB, which fit the GPU and leave less than 15 % of it.
    (
        "workload.trainer-memory",
        R,
        {MODEL: V3},
        TRAINER,
        "122 GiB per GPU",
        "leave no room for activations",
        "expert parallel",
    ),
    # 1.03 bytes of 1026e9 parameters over 8 GPUs are 123 GiB: they fit, and leave less than 20 %.
    (
        "workload.engine-memory",
        R,
        {MODEL: KIMI, f"{TRAINER}.expert_parallel": 32, "pools.trainer.nodes": 32, GPE: 8, EP: 8},
        GPE,
        "8",
        "the fp8 weights of moonshotai/Kimi-K2-Instruct take 123 of the 141 GiB",
        "more GPUs per engine",
    ),
    # 2 bytes of 235e9 parameters over 2 GPUs are 219 GiB.
    (
        "workload.engine-memory",
        R,
        {GPE: 2, EP: 2, f"{ROLLOUT}.precision": "bf16"},
        GPE,
        "2",
        "the bf16 weights of Qwen/Qwen3-235B-A22B take 219 of the 141 GiB of a H200",
        "Write more GPUs per engine or `precision: fp8`",
    ),
    *(
        (
            "workload.plan-owned-variables",
            S,
            {f"workload.{side}.variables": {"HF_HOME": "/scratch/hf", name: "1"}},
            f"workload.{side}.variables.{name}",
            "1",
            "the Plan sets the communication variables",
            remedy,
        )
        for side, name, remedy in (
            ("trainer", "NCCL_GIN_TYPE", "pools.….transport"),
            ("rollout", "NCCL_NET", "pools.… keys"),
            ("trainer", "FI_PROVIDER", "Remove it"),
            ("rollout", "OFI_NCCL_PROTOCOL", "Remove it"),
            ("trainer", "EP_REUSE_NCCL_COMM", "Remove it"),
            ("rollout", "NVSHMEM_IB_ENABLE_IBGDA", "Remove it"),
        )
    ),
    *(
        (
            "workload.expandable-segments",
            S,
            {f"workload.{side}.variables": {name: value}, **more},
            f"workload.{side}.variables.{name}",
            value,
            reason,
            "Remove expandable_segments",
        )
        for side, name, value, more, reason in (
            ("trainer", ALLOC, "expandable_segments:True", {}, "the memory saver of MoE runs aborts"),
            ("rollout", "PYTORCH_ALLOC_CONF", "a:1, Expandable_Segments: true", {}, "the memory saver of MoE runs"),
            (
                "rollout",
                ALLOC,
                "expandable_segments:True",
                {f"{ROLLOUT}.kv_transfer": {"backend": "mooncake"}},
                "mooncake cannot register such memory with EFA",
            ),
        )
    ),
    (
        "workload.backend-experts",
        S,
        {f"{ROLLOUT}.backend": "deepep_v2", EP: 1, f"{ROLLOUT}.precision": "bf16"},
        f"{ROLLOUT}.backend",
        "deepep_v2",
        "all 8 GPUs of the engine",
        "expert_parallel: 8",
    ),
    (
        "workload.router-on-spot",
        S,
        {f"{ROLLOUT}.router": True},
        f"{ROLLOUT}.router",
        "true",
        "pool rollout is Spot",
        "stable capacity",
    ),
]
WARNINGS = [
    (
        "workload.rebalance",
        S,
        {f"{ROLLOUT}.drain_on_rebalance": True, "pools.rollout.capacity": {"type": "on_demand"}},
        f"{ROLLOUT}.drain_on_rebalance",
        "true",
        "no rollout pool is Spot",
        "Remove the key",
    ),
    (
        "workload.rebalance",
        R,
        {f"{ROLLOUT}.drain_on_rebalance": True},
        f"{ROLLOUT}.drain_on_rebalance",
        "true",
        "takes its engine's 2 nodes out of service",
        "engines of one node",
    ),
    (
        "workload.fleet-busy",
        R,
        {FLAGS: {"rollout-batch-size": 32}},
        f"{FLAGS}.rollout-batch-size",
        "32",
        "2 batches are out at once, and their 64 groups keep 1 of 16 engines busy",
        "write 512, which fills all engines",
    ),
    (
        "workload.fleet-busy",
        R,
        {FLAGS: {"rollout-batch-size": "496"}, "software": "baseline", f"{ROLLOUT}.precision": "bf16", GPE: 8, EP: 8},
        f"{FLAGS}.rollout-batch-size",
        "496",
        "992 groups keep 31 of 32 engines busy",
        "write 512",
    ),
    (
        "workload.kv-transfer",
        S,
        {f"{ROLLOUT}.kv_transfer": {"backend": "mooncake"}},
        f"{ROLLOUT}.kv_transfer",
        "mooncake",
        "do prefill and decode themselves",
        "Remove the key",
    ),
    (
        "workload.engine-alignment",
        R,
        {"pools.rollout.nodes.max": 31},
        "pools.rollout.nodes",
        "31",
        "engines take 2 nodes each; 1 paid nodes would never serve",
        "a multiple of 2",
    ),
    (
        "workload.engine-backend",
        R,
        {"software": "baseline"},
        EP,
        "16",
        "gather every token on every node",
        "software efa-gda",
    ),
    (
        "workload.engine-backend",
        R,
        {f"{ROLLOUT}.backend": "none"},
        f"{ROLLOUT}.backend",
        "none",
        "gather every token on every node",
        "expert_parallel 8",
    ),
    (
        "workload.blast-radius",
        R,
        {},
        GPE,
        "16",
        "one reclaimed node of pool rollout takes its engine's 2 nodes",
        "one node",
    ),
    (
        "workload.experts-over-efa",
        S,
        {f"{TRAINER}.expert_parallel": 8},
        "workload",
        "Qwen/Qwen3-30B-A3B",
        "no expert group spans two nodes",
        "above the GPUs of a node",
    ),
]
PASSES = [
    ("workload.rebalance", S, {f"{ROLLOUT}.drain_on_rebalance": True}),
    ("workload.rebalance", R, {f"{ROLLOUT}.drain_on_rebalance": False}),
    ("workload.kv-transfer", S, {f"{ROLLOUT}.kv_transfer": None}),
    ("workload.backend-experts", S, {f"{ROLLOUT}.backend": "deepep_v2"}),
    (
        "workload.router-on-spot",
        S,
        {f"{ROLLOUT}.router": True, "pools.rollout.capacity": {"type": "on_demand"}},
    ),
    ("workload.model-known", S, {}),
    ("workload.trainer-divides", S, {f"{TRAINER}.context_parallel": 4}),
    ("workload.trainer-divides", R, {}),
    ("workload.tensor-in-node", S, {f"{TRAINER}.tensor_parallel": 8}),
    ("workload.trainer-model", S, {MODEL: DENSE, EP: 1, f"{TRAINER}.expert_parallel": 1}),
    # 8 ranks share 4 key-value heads; 61 layers on 16 stages leave one for the last.
    ("workload.trainer-model", S, {f"{TRAINER}.tensor_parallel": 8}),
    (
        "workload.trainer-model",
        R,
        {**V3_ON_R, "pools.trainer.nodes": 32, f"{TRAINER}.pipeline_parallel": 16, f"{TRAINER}.expert_parallel": 16},
    ),
    ("workload.engine-alignment", S, {GPE: 4, EP: 4}),
    ("workload.engine-alignment", R, {"pools.rollout.nodes.max": 30}),
    (
        "workload.engine-alignment",
        R,
        {**V3_ON_R, GPE: 24, EP: 1, "pools.rollout.nodes.max": 30, f"{ROLLOUT}.precision": "bf16"},
    ),
    ("workload.engine-experts", S, {EP: 1, f"{ROLLOUT}.precision": "bf16"}),
    ("workload.engine-experts", R, {}),
    ("workload.engine-backend", R, {}),
    ("workload.engine-backend", R, {f"{ROLLOUT}.backend": "deepep_v2"}),
    ("workload.engine-backend", P5, {}),
    ("workload.engine-backend", S, {f"{ROLLOUT}.backend": "deepep"}),
    ("workload.engine-backend", R, {GPE: 8, EP: 8, f"{ROLLOUT}.precision": "bf16", "software": "aws-reference"}),
    ("workload.expert-parallel-cap", R, {**V3_ON_R, GPE: 64, EP: 64}),
    ("workload.expert-parallel-cap", R, {"software": "baseline"}),
    ("workload.expert-parallel-cap", R, {f"{TRAINER}.expert_parallel": 128, f"{TRAINER}.pipeline_parallel": 1}),
    ("workload.trainer-dispatcher", R, {f"{TRAINER}.dispatcher": "alltoall"}),
    ("workload.trainer-dispatcher", R, {f"{TRAINER}.dispatcher": "deepep", f"{TRAINER}.expert_parallel": 8}),
    ("workload.fp8-blocks", S, {EP: 1, f"{ROLLOUT}.precision": "bf16"}),
    ("workload.fp8-blocks", S, {GPE: 2, EP: 1}),
    ("workload.fp8-blocks", S, {}),
    ("workload.trainer-memory", R, {f"{TRAINER}.expert_parallel": 4}),
    ("workload.engine-memory", R, {GPE: 2, EP: 2}),
    ("workload.blast-radius", S, {}),
    ("workload.blast-radius", R, {"pools.rollout.capacity": {"type": "on_demand"}}),
    ("workload.experts-over-efa", S, {}),
    ("workload.experts-over-efa", R, {f"{TRAINER}.expert_parallel": 8}),
    ("workload.fleet-busy", R, {FLAGS: {"rollout-batch-size": 512}}),
    ("workload.fleet-busy", R, {FLAGS: {"rollout-batch-size": 256, "max-weight-staleness": 4}}),
    ("workload.fleet-busy", S, {FLAGS: {"rollout-batch-size": "many"}}),
    ("workload.fleet-busy", S, {FLAGS: {"num-steps-per-rollout": 3}}),
    ("workload.plan-owned-variables", S, {f"{ROLLOUT}.variables": {"HF_HOME": "/x", "MY_NCCL_": "1", "EPOCHS": "2"}}),
    ("workload.expandable-segments", S, {f"{ROLLOUT}.variables": {ALLOC: "expandable_segments:False", "X": "Y"}}),
]
BESIDE = {
    ("workload.trainer-model", f"{TRAINER}.tensor_parallel", "3"): {"workload.tensor-in-node"},
    ("workload.expert-parallel-cap", f"{TRAINER}.expert_parallel", "128"): {"workload.trainer-dispatcher"},
}


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), FAULTS)
def test_rule_refuses(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, beside=BESIDE.get((rule, key, value), ()))


@pytest.mark.parametrize(("rule", "base", "changes", "key", "value", "why", "fix"), WARNINGS)
def test_rule_warns(rule, base, changes, key, value, why, fix, fires) -> None:
    fires(rule, base, changes, key, value, why, fix, severity="warning")


@pytest.mark.parametrize(("rule", "base", "changes"), PASSES)
def test_rule_is_silent(rule, base, changes, silent) -> None:
    silent(rule, base, changes)


def test_c9_expert_parallel_over_two_nodes_with_an_ibgda_backend_is_refused_and_names_both_ways_out(edited) -> None:
    for backend in ("deepep", "mooncake"):
        changes = {GPE: 16, EP: 16, f"{ROLLOUT}.backend": backend}
        (found,) = (item for item in edited(P6, changes) if item.severity == "fault")
        assert found.key == f"{ROLLOUT}.backend"
        assert "deepep_v2" in found.fix
        assert "expert_parallel 8" in found.fix


def test_a_model_that_the_catalog_does_not_know_gives_no_second_fault(edited) -> None:
    faults = [item.rule for item in edited(R, {MODEL: "Qwen/Qwen9", EP: 7}) if item.severity == "fault"]
    assert faults == ["workload.model-known"]
