"""What a bench is told by the plan, the command line and the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moerl_runtime.bench import planned
from moerl_runtime.cli import main
from moerl_runtime.faults import InputFault
from moerl_runtime.plan import Node as Document
from tests.shipped import plan_of


def document(name: str = "reference-p5en") -> Document:
    return Document(json.loads(json.dumps(plan_of(name).document())), "")


def test_cases_are_the_models_layer_and_the_published_one_where_the_plan_has_floors() -> None:
    plan = document()
    cases = planned.cases_of(plan, "rollout", None, 16)
    assert [case.name for case in cases] == ["model-8192", "model-128", "published-8192", "published-128"]
    shape = plan["workload"]["shape"].value
    assert cases[0].shape.hidden == shape["hidden"]
    assert [case.name for case in planned.cases_of(plan, "trainer", [64], 16)] == ["model-64"]


def test_ranks_that_do_not_divide_the_experts_are_refused() -> None:
    with pytest.raises(InputFault, match="do not divide"):
        planned.cases_of(document(), "rollout", None, 24)


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:x", "host:²", "host:0", "host:70000"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputFault, match="HOST:PORT"):
        planned.address(text)


def test_an_address_may_be_a_name_or_a_bracketed_one() -> None:
    assert planned.address("nccl-trainer-0.nccl-trainer.rl.svc:29500") == ("nccl-trainer-0.nccl-trainer.rl.svc", 29500)
    assert planned.address("[fd00::1]:29500") == ("fd00::1", 29500)


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--pool", "nowhere", "--nodes", "2"], {}, "Known are"),
        (["--pool", "system", "--nodes", "2"], {}, "has no GPUs"),
        (["--pool", "trainer", "--nodes", "0"], {}, "is not a number of nodes"),
        (["--pool", "trainer", "--nodes", "2"], {"JOB_COMPLETION_INDEX": "2"}, "is not one of 2 nodes"),
        (["--pool", "trainer", "--nodes", "2"], {"JOB_COMPLETION_INDEX": "x"}, "is not one of 2 nodes"),
    ],
)
def test_wrong_input_is_exit_code_2(
    arguments: list[str], variables: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document().value), encoding="utf-8")
    code = main(
        ["bench", "nccl", "--plan", str(plan), "--rendezvous", "127.0.0.1:29500", *arguments], variables=variables
    )
    assert code == 2
    assert said in capsys.readouterr().err
