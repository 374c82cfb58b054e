"""Each rule catches its fault, and only that one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from infra.catalog.software import SOFTWARE
from k8s.flags.sglang_rules import known_names, parse, refusals

GOOD = {
    "--model-path": "/m",
    "--served-model-name": "Qwen/Qwen3-235B-A22B",
    "--tp-size": "16",
    "--ep-size": "16",
    "--nnodes": "2",
    "--node-rank": "0",
    "--dist-init-addr": "a:20000",
    "--dp-size": "2",
    "--enable-dp-attention": "",
    "--enable-dp-lm-head": "",
    "--moe-a2a-backend": "deepep_v2",
    "--moe-runner-backend": "deep_gemm",
    "--deepep-v2-mode": "hybrid",
    "--chunked-prefill-size": "4096",
    "--max-running-requests": "512",
    "--cuda-graph-max-bs-decode": "256",
    "--log-level": "info",
}
CAPACITY = {"SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "2048"}


def found(
    changes: Mapping[str, str | None] | None = None,
    variables: Mapping[str, str] = CAPACITY,
    *,
    version: str = "0.5.19",
    architecture: str = "Qwen3MoeForCausalLM",
) -> tuple[str, ...]:
    options = {name: value for name, value in {**GOOD, **(changes or {})}.items() if value is not None}
    flags = tuple(text for name, value in options.items() for text in ((name, value) if value else (name,)))
    return refusals(flags, variables, version=version, architecture=architecture)


def test_the_good_command_has_no_fault() -> None:
    assert found() == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"--no-such-option": "1"}, "no option of"),
        ({"--tp-size": "15", "--ep-size": "15", "--dp-size": "3"}, "does not divide by --nnodes"),
        ({"--dist-init-addr": None}, "without --dist-init-addr"),
        ({"--node-rank": None}, "without --node-rank"),
        ({"--dp-size": "3"}, "does not divide by --dp-size"),
        ({"--dp-size": "1", "--chunked-prefill-size": "2048"}, "switched off in silence"),
        ({"--enable-dp-attention": None, "--enable-dp-lm-head": None}, "needs --enable-dp-attention"),
        ({"--moe-dense-tp-size": "8"}, "is 1 or --tp-size"),
        ({"--ep-size": "8"}, "turns --ep-size 8 into 16"),
        ({"--moe-a2a-backend": "none", "--deepep-v2-mode": None, "--ep-size": "8"}, "loses an all-reduce"),
        ({"--chunked-prefill-size": "4000"}, "no multiple of the KV page"),
        ({"--moe-runner-backend": "triton"}, "deep_gemm only"),
        ({"--deepep-v2-mode": "direct"}, "direct on several nodes"),
        ({"--deepep-v2-mode": None}, "direct on several nodes"),
        ({"--chunked-prefill-size": "8192"}, "below the prefill chunk of 4096"),
        (
            {"--cuda-graph-max-bs-decode": "4096", "--max-running-requests": "8192"},
            "below the decode batch of 4096",
        ),
        ({"--max-running-requests": "8192"}, "below --max-running-requests"),
        ({"--max-running-requests": None}, "below --max-running-requests"),
        ({"--served-model-name": "a:b"}, "colon"),
        ({"--log-level": "INFO"}, "lower case"),
        ({"--max-queued-requests": "100"}, "answers 503"),
    ],
)
def test_each_fault_is_named(changes: Mapping[str, str | None], reason: str) -> None:
    assert any(reason in text for text in found(changes))


def test_sglangs_own_defaults_never_pass() -> None:
    unset = {"--chunked-prefill-size": None, "--max-running-requests": None, "--cuda-graph-max-bs-decode": None}
    reasons = found(unset, {})
    assert any("prefill chunk" in text for text in reasons)
    assert any("decode batch" in text for text in reasons)


def test_an_unknown_variable_is_no_silent_typo() -> None:
    assert found(variables={**CAPACITY, "SGLANG_DEEPEP_NUM_TOKENS": "1"}) == (
        "SGLANG_DEEPEP_NUM_TOKENS is no variable of 0.5.19",
    )


def test_an_option_given_twice_is_named() -> None:
    flags = ("--model-path", "/m", "--model-path", "/n")
    assert refusals(flags, {}, version="0.5.19", architecture="Qwen3ForCausalLM") == ("--model-path is given twice",)


def test_deepep_v2_needs_its_release_and_its_architecture() -> None:
    assert any("came with 0.5.19" in text for text in found(version="0.5.17"))
    assert found(architecture="Glm4MoeForCausalLM") == ("deepep_v2 is not validated for Glm4MoeForCausalLM",)


def test_experts_split_by_tensor_pass_with_fusion_off() -> None:
    changes = {"--moe-a2a-backend": "none", "--deepep-v2-mode": None, "--ep-size": "8"}
    assert found({**changes, "--enforce-disable-flashinfer-allreduce-fusion": ""}) == ()


@pytest.mark.parametrize("stack", SOFTWARE.values(), ids=SOFTWARE)
def test_names_of_every_stacks_release_are_at_hand(stack: object) -> None:
    names = known_names(stack.sglang)  # type: ignore[attr-defined]
    assert {"--model-path", "--tp-size", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"} <= names
    assert ("--deepep-v2-mode" in names) == (stack.rollout_a2a == "deepep_v2")  # type: ignore[attr-defined]


def test_a_release_whose_names_nobody_read_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"0\.0\.1"):
        known_names("0.0.1")


def test_parse_refuses_a_value_without_an_option() -> None:
    with pytest.raises(ValueError, match="follows no option"):
        parse(("value",))
    assert parse(("--a", "1", "--b", "--c", "2")) == {"--a": "1", "--b": "", "--c": "2"}
