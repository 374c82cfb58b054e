"""`preflight node` as a pod starts it: lines, one document last, and an exit code that is the verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from moerl_runtime.bench.launch import Outcome
from moerl_runtime.cli import main
from moerl_runtime.preflight import cli, gpu_parts
from moerl_runtime.preflight.check import Check
from moerl_runtime.preflight.collect import Ran
from tests.images.runtime.preflight.nodes import document


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document("p5en").value), encoding="utf-8")
    return str(path)


def test_a_machine_without_gpus_fails_with_one_document_last(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "verdict.json"
    code = main(["preflight", "node", "--pool", "trainer", "--plan", plan, "--json", str(copy)], variables={})
    *lines, last = capsys.readouterr().out.splitlines()
    verdict = json.loads(last)
    assert code == 1
    assert verdict["verdict"] == "failed"
    assert {"nvidia-driver-missing", "efa-pod-absent"} <= set(verdict["causes"])
    assert json.loads(copy.read_text(encoding="utf-8")) == verdict
    assert len(lines) == len(verdict["checks"]) + 1, "one line a check, and the word before the document"
    assert lines[-1].startswith("FAILED: ")


TAIL = """Traceback (most recent call last):
  File "rank.py", line 137, in <module>
    main()
torch.distributed.DistBackendError: NCCL error
ncclSystemError: no route to host
"""


def test_a_rank_that_fails_is_one_line_and_its_last_lines_are_on_stderr_and_in_the_document(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = {"cuda_probe": {"code": 0, "gpus": 8}, "nccl_probe": {"paths": ["/libnccl.so.2"], "version": "2.31.2"}}

    def run(arguments: Sequence[str], seconds: float) -> Ran:
        assert seconds > 0
        return Ran(code=0, output=json.dumps(probes[arguments[2].rpartition(".")[2]]))

    failure = f"local rank 5 ended with 1\n{TAIL}"
    monkeypatch.setattr(cli, "run_program", run)
    monkeypatch.setattr(gpu_parts, "run_ranks", lambda *_, **__: Outcome(ranks=(), failure=failure))
    assert main(["preflight", "gpu", "--pool", "trainer", "--plan", plan], variables={}) == 1
    printed = capsys.readouterr()
    *lines, last = printed.out.splitlines()
    verdict = json.loads(last)
    assert len(lines) == len(verdict["checks"]) + 1
    assert "local rank 5 ended with 1 ... ncclSystemError: no route to host; needed" in lines[-2]
    assert verdict["checks"][-1]["found"] == failure
    assert printed.err == f"expert traffic on this node:\n{failure}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one", "one"),
        ("one\n\n", "one"),
        (f"rank 1 ended with 1\n{TAIL}", "rank 1 ended with 1 ... ncclSystemError: no route to host"),
        (
            "rank 0 was killed by SIGSEGV\nFatal Python error: Segmentation fault\n\n"
            "Thread 0x00007f01 (most recent call first):\n  <no Python frame>\n\n"
            'Current thread 0x00007f02 (most recent call first):\n  File "a.py", line 1 in f\n\n'
            "Extension modules: numpy.core (total: 1)\n",
            "rank 0 was killed by SIGSEGV ... Fatal Python error: Segmentation fault",
        ),
    ],
)
def test_a_line_has_the_first_and_the_last_telling_line(text: str, line: str) -> None:
    check = Check(name="ranks", status="failed", found=text, needed="all", fix="Look.")
    assert check.line() == f"FAIL  ranks: {line}; needed: all. Look."


def test_a_cpu_pool_passes_anywhere(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "node", "--pool", "system", "--plan", plan], variables={}) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verdict"] == "passed"


@pytest.mark.parametrize("arguments", [["--pool", "nowhere"], ["--pool", "trainer", "--plan", "/nowhere/plan.json"]])
def test_wrong_input_is_exit_code_2_and_names_it(
    arguments: list[str], plan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = [] if "--plan" in arguments else ["--plan", plan]
    assert main(["preflight", "node", *arguments, *rest], variables={}) == 2
    assert "nowhere" in capsys.readouterr().err
