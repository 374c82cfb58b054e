"""The verdict over what only a GPU shows, and the arguments of what it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from moerl_runtime.bench.launch import Outcome
from moerl_runtime.preflight import cuda_probe, gpu_parts
from moerl_runtime.preflight.check import Check, causes
from moerl_runtime.preflight.collect import Ran
from moerl_runtime.preflight.gpu_parts import gpu_checks, judge_libraries, judge_probe, settings_for
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


COMPILER = shutil.which("cc")
ONE, OTHER = "/opt/nccl/lib/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
REFUSED = """Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/deep_ep/__init__.py", line 83, in <module>
    check_nccl_so()
"""
TWICE = f"{REFUSED}AssertionError: Duplicate NCCL runtime found in the current system: {ONE} and {OTHER}\n"
FOREIGN = f"{REFUSED}AssertionError: Invalid NCCL versions: {OTHER} (loaded) v.s. {ONE} (expected), please upgrade\n"
SYMBOL = f"{REFUSED}ImportError: _C.so: undefined symbol: _ZN3c106detail\n"
NO_NCCL = f"{REFUSED}ImportError: libnccl.so.2: cannot open shared object file: No such file or directory\n"


def loaded(paths: Sequence[str], version: str = "2.31.2", then: str = "", code: int = 0) -> Ran:
    """What nccl_probe prints under an import that warns."""
    document = json.dumps({"paths": list(paths), "version": version})
    return Ran(code=code, output=f"UserWarning: []\n{document}\n{then}")


LIBRARIES: dict[str, tuple[Ran | None, list[str]]] = {
    "good": (loaded([ONE]), []),
    "another version": (loaded([ONE], "2.29.7"), ["nccl-version"]),
    "a second one": (loaded([ONE, OTHER]), ["nccl-twice"]),
    "a second one, which DeepEP refuses": (loaded([ONE, OTHER], then=TWICE, code=1), ["nccl-twice"]),
    "another version, which DeepEP refuses": (loaded([OTHER], "2.29.7", FOREIGN, 1), ["nccl-version"]),
    "another build of the version": (loaded([OTHER], then=FOREIGN, code=1), ["nccl-foreign"]),
    "none": (loaded([], "", NO_NCCL, 1), ["nccl-missing", "nccl-version"]),
    "another torch": (loaded([ONE], then=SYMBOL, code=1), ["import-failed"]),
    "a crash": (Ran(code=-11, output="Fatal Python error: Segmentation fault\n"), ["import-failed"]),
    "too slow": (Ran(code=124, output="python gave no answer in 300 s"), ["import-failed"]),
    "no interpreter": (None, ["import-failed"]),
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_a_wrong_nccl_has_its_own_cause_though_ranks_would_die_of_it(case: str) -> None:
    ran, expected_causes = LIBRARIES[case]
    checks = judge_libraries(ran, "2.31.2")
    assert causes(checks) == expected_causes
    assert all("\n" not in check.line() for check in checks)


def test_the_line_of_an_import_ends_with_its_error_and_its_check_keeps_the_traceback() -> None:
    (check, *_) = judge_libraries(loaded([OTHER], then=FOREIGN, code=1), "2.31.2")
    assert "has failed ... AssertionError: Invalid NCCL versions" in check.line()
    assert "check_nccl_so()" in check.found


def tried(
    monkeypatch: pytest.MonkeyPatch, libraries: Ran, outcome: Outcome | None = None
) -> tuple[tuple[Check, ...], list[list[str]]]:
    """(checks, what was asked) of a node whose CUDA works. No outcome: ranks must not be started."""
    asked: list[list[str]] = []

    def run(arguments: Sequence[str], seconds: float) -> Ran | None:
        assert seconds > 0
        asked.append(list(arguments[2:]))
        return Ran(code=0, output=said(0, 8)) if arguments[-1].endswith("cuda_probe") else libraries

    def run_ranks(*_: object, **__: object) -> Outcome:
        return outcome or pytest.fail("ranks were started")

    monkeypatch.setattr(gpu_parts, "run_ranks", run_ranks)
    return gpu_checks(wanted("p5en"), run=run, variables={}, clock=lambda: 0.0, pause=lambda _: None), asked


def test_no_ranks_are_started_with_a_wrong_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, asked = tried(monkeypatch, loaded([ONE, OTHER], then=TWICE, code=1))
    assert asked[1] == ["moerl_runtime.preflight.nccl_probe", "torch", "deep_ep"]
    assert causes(checks) == ["nccl-twice"]
    assert (checks[-1].name, checks[-1].status) == ("expert traffic on this node", "skipped")


def test_ranks_that_die_with_the_right_nccl_are_about_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Outcome(ranks=(), failure="local rank 3 ended with 1\n  File x\nRuntimeError: CUDA 719")
    checks, _ = tried(monkeypatch, loaded([ONE]), outcome)
    assert causes(checks) == ["expert-traffic"]
    assert "local rank 3 ended with 1 ... RuntimeError: CUDA 719; needed" in checks[-1].line()


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here")
@pytest.mark.parametrize(
    ("second", "deep_ep", "expected_causes"),
    [
        ("", "", []),
        ("ctypes.CDLL('{other}')", "", ["nccl-twice"]),
        ("", "raise AssertionError('Invalid NCCL versions: /a (loaded) v.s. /b (expected)')", ["nccl-foreign"]),
        ("ctypes.CDLL('{other}')", "raise AssertionError('Duplicate NCCL runtime found')", ["nccl-twice"]),
        ("", "import no_such_module", ["import-failed"]),
    ],
)
def test_the_probe_sees_what_a_process_has_loaded_even_where_an_import_ends_it(
    second: str, deep_ep: str, expected_causes: list[str], tmp_path: Path
) -> None:
    """A real process and real libraries, with stand-ins for torch and deep_ep."""
    paths = [tmp_path / folder / "libnccl.so.2" for folder in ("one", "other")]
    for path in paths:
        path.parent.mkdir()
        source = tmp_path / "nccl.c"
        source.write_text("int ncclGetVersion(int *version) { *version = 23102; return 0; }\n", encoding="utf-8")
        subprocess.run([COMPILER or "cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)  # noqa: S603
    torch = f"import ctypes\nctypes.CDLL({str(paths[0])!r})\n{second.format(other=paths[1])}\n"
    (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
    (tmp_path / "deep_ep.py").write_text(f"{deep_ep}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "moerl_runtime.preflight.nccl_probe", "torch", "deep_ep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        check=False,
    )
    assert causes(judge_libraries(Ran(code=done.returncode, output=done.stdout), "2.31.2")) == expected_causes


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
