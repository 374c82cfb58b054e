"""What validate, plan and the CDK entry refuse of a file is what a render would refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.config.faults import EnvironmentFault, Finding
from infra.config.loader import load_text
from infra.rendered_faults import rendered_faults
from tests.shipped import SHIPPED, text_of

ROOT = Path(__file__).resolve().parents[2]


def faults(name: str, changes: dict[str, Any]) -> dict[str, Finding]:
    with pytest.raises(EnvironmentFault) as refused:
        load_text(text_of(name, changes), "e.yaml", further=rendered_faults)
    return {found.key: found for found in refused.value.findings if found.severity == "fault"}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_environment_has_none(name: str) -> None:
    assert load_text(text_of(name), "e.yaml", further=rendered_faults).environment.name == name


def test_flags_of_the_trainer_are_judged_with_their_lines() -> None:
    found = faults(
        "starter-p5en", {"workload.trainer.flags": {"save": "/x", "nosuchflag": 3, "rollout-batch-size": -4}}
    )
    key = "workload.trainer.flags"
    assert set(found) == {f"{key}.save", f"{key}.nosuchflag", f"{key}.rollout-batch-size"}
    assert {item.rule for item in found.values()} == {"workload.trainer-flags"}
    assert all(item.line is not None and item.line > 50 for item in found.values())
    assert found[f"{key}.rollout-batch-size"].document()["value"] == "-4"


def test_a_badly_written_flag_hides_no_other_one() -> None:
    found = faults("starter-p5en", {"workload.trainer.flags": {"--lr": 1, "save": "/x", "nosuchflag": 3}})
    assert {key.rpartition(".")[2] for key in found} == {"--lr", "save", "nosuchflag"}


def test_flags_are_judged_where_the_trainer_waits_for_a_file_system() -> None:
    fsx = {"checkpoints.scratch": "fsx", "workload.trainer.flags": {"nosuchflag": 3}}
    assert set(faults("starter-p5en", fsx)) == {"workload.trainer.flags.nosuchflag"}


@pytest.mark.parametrize("pool", ["rollout", "environments"])
def test_user_data_that_ec2_would_not_take_is_refused_with_both_sizes(pool: str) -> None:
    script = "#!/bin/bash\n" + "#" * 20_000
    (found,) = faults("starter-p5en", {f"pools.{pool}.user_data": script}).values()
    assert (found.rule, found.key, found.value) == ("ami.user-data-size", f"pools.{pool}.user_data", "20012 bytes")
    assert "16384 bytes" in found.why
    assert found.line is not None


def test_more_tags_than_a_group_can_have_are_refused_at_the_pool() -> None:
    labels = {f"example.com/l{number}": "x" for number in range(20)}
    changes = {"tags": {f"k{number}": "v" for number in range(25)}, "pools.rollout.labels": labels}
    (found,) = faults("starter-p5en", changes).values()
    assert (found.rule, found.key) == ("identity.group-tags", "pools.rollout")


def test_a_fault_of_the_rendered_objects_is_one_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Finding(rule="name.valid", key="RayJob/rl/x", value="y", why="cannot work", fix="Tell us.")
    monkeypatch.setattr("infra.rendered_faults.check", lambda *_: (said,))
    assert set(faults("starter-p5en", {})) == {"RayJob/rl/x"}


def test_engines_that_would_not_serve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise ValueError("SGLang would not serve pool rollout")

    monkeypatch.setattr("infra.rendered_faults.engine_flag_names", refuse)
    assert "would not serve" in faults("starter-p5en", {})["workload.rollout"].why


def test_none_of_it_waits_for_jsii() -> None:
    script = "import sys, infra.rendered_faults; sys.exit(bool({'jsii', 'cdk8s', 'aws_cdk'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)  # noqa: S603
    assert done.returncode == 0
