"""The fleet's stand-in for instance metadata, and how it reads what its processes export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.local import smoke_fleet
from infra.local.smoke_fleet import Fleet, Process
from infra.local.smoke_report import Course
from moerl_runtime.imds import Imds
from moerl_runtime.serve import Answer, serving
from tests.shipped import SHIPPED, plan_of


def test_the_metadata_service_is_one_that_the_agent_believes() -> None:
    noticed = {"now": False}
    with serving("127.0.0.1:0", lambda request: smoke_fleet.metadata(request, noticed["now"])) as url:
        asked = Imds(url)
        assert asked.notice(rebalance=True) is None
        noticed["now"] = True
        notice = asked.notice(rebalance=False)
        assert notice is not None
        assert notice.reason == "spot"


def test_series_are_read_by_name_and_labels() -> None:
    text = '# HELP x y\nmoerl_agent_samples_total 12.0\nmoerl_agent_tasks_total{outcome="returned"} 3.0\nother 1.0\n'
    with serving("127.0.0.1:0", lambda _: Answer(body=text.encode())) as url:
        assert smoke_fleet.scrape(url) == {
            "moerl_agent_samples_total": 12.0,
            'moerl_agent_tasks_total{outcome="returned"}': 3.0,
        }
    assert smoke_fleet.scrape(url) is None, "nobody listens any more"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Without processes and without a complete checkpoint."""
    variables = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-west-2",
    }
    made = Fleet(plan_of(SHIPPED[0]), tmp_path, variables, lambda _: None, Course())
    monkeypatch.setattr(made, "_newest", lambda: None)
    return made


def test_a_trainer_with_nothing_to_resume_from_is_not_killed_yet(fleet: Fleet, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        fleet.trainers.append(Process("trainer-0", running, tmp_path / "log", ""))
        assert fleet._kill_trainer() is False
        assert fleet.trainers[0].running
        running.communicate(b"\n")


def test_a_job_that_is_out_of_time_says_how_far_it_came(fleet: Fleet) -> None:
    """Steps without a checkpoint are an uploader's fault."""
    fleet.record.began -= smoke_fleet.DEADLINE_SECONDS + 1
    with pytest.raises(smoke_fleet.SmokeError, match="last step none, last checkpoint none"):
        fleet._check_time()
