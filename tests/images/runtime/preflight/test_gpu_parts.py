"""The verdict over what only a GPU shows, and the arguments of what it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest

from moerl_runtime.preflight import cuda_probe
from moerl_runtime.preflight.collect import Ran
from moerl_runtime.preflight.gpu_parts import gpu_checks, judge_probe, settings_for
from tests.images.runtime.preflight.nodes import BASELINE, wanted


def said(code: int, gpus: int) -> str:
    return f"warning of some library\n{json.dumps({'code': code, 'gpus': gpus})}\n"


@pytest.mark.parametrize(
    ("code", "cause"),
    [(-1, "no-libcuda"), (100, "no-gpu"), (802, "fabric-manager"), (803, "cuda-compat"), (999, "cuda-error")],
)
def test_cuda_errors_that_look_alike_to_torch_are_told_apart(code: int, cause: str) -> None:
    check = judge_probe(said(code, 0), gpus=8)
    assert (check.status, check.cause) == ("failed", cause)
    assert check.fix


def test_all_gpus_have_to_answer() -> None:
    assert judge_probe(said(0, 8), gpus=8).status == "ok"
    assert judge_probe(said(0, 7), gpus=8).cause == "gpus-missing"


@pytest.mark.parametrize("output", ["", "Segmentation fault\n", "{}\n", "[]\n", '{"code": "x", "gpus": 1}\n'])
def test_a_process_that_dies_is_a_verdict(output: str) -> None:
    assert judge_probe(output, gpus=8).cause == "cuda-crash"


def test_without_cuda_nothing_more_is_tried() -> None:
    asked: list[list[str]] = []

    def run(arguments: Sequence[str], seconds: float) -> Ran | None:
        assert seconds > 0
        asked.append(list(arguments))
        return Ran(code=0, output=said(802, 0))

    checks = gpu_checks(wanted("p5en"), run=run, variables={}, clock=lambda: 0.0, pause=lambda _: None)
    assert [(check.status, check.cause) for check in checks] == [("failed", "fabric-manager"), ("skipped", "")]
    assert asked == [[sys.executable, "-m", "moerl_runtime.preflight.cuda_probe"]]


def test_the_probe_without_a_driver_says_so() -> None:
    assert cuda_probe.probe("libno-such-cuda.so.1") == {"code": cuda_probe.NO_LIBRARY, "gpus": 0}


def test_expert_traffic_is_tried_in_the_runs_own_shape_where_it_divides() -> None:
    needs = wanted("p5en", "rollout")
    settings = settings_for(needs, 8)
    assert (settings.backend, settings.nodes, settings.ranks_per_node) == ("deep_ep", 1, 8)
    assert settings.cases[0].shape == needs.shape
    odd = settings_for(needs, 7).cases[0].shape
    assert odd.experts % 7 == 0
    assert odd.top_k <= odd.experts
    assert odd.hidden % 128 == 0


def test_a_pod_that_does_not_use_deepep_tries_nccl() -> None:
    needs = wanted(
        "p5en",
        changes=BASELINE,
    )
    assert settings_for(needs, 8).backend == "nccl"
