"""The head shows what every process of the run reports, once, and keeps the time of the phases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moerl_runtime.serve import Request, serving
from moerl_runtime.trainer.control import Control, scraper
from moerl_runtime.trainer.gates import History
from moerl_runtime.trainer.metrics import metrics
from moerl_runtime.trainer.report import HISTORY_PATH, PHASE_PATH, SERIES_PATH, Reporter, poster
from tests.images.runtime.trainer.fakes import Clock, history


def control(clock: Clock | None = None, framework: bytes = b"") -> Control:
    return Control(clock=clock or Clock(), unix_clock=lambda: 1_000.0, scrape=lambda: framework)


def post(to: Control, path: str, body: Any) -> int:
    return to.handle(Request(method="POST", path=path, body=json.dumps(body).encode())).status


def series(source: str, *entries: tuple[str, dict[str, str], float]) -> dict[str, Any]:
    return {"source": source, "series": [list(entry) for entry in entries]}


def shown(of: Control) -> dict[str, float]:
    lines = of.handle(Request(method="GET", path="/metrics")).body.decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_counters_of_processes_add_up_and_a_repeated_report_changes_nothing() -> None:
    head = control()
    name = "moerl_trainer_results_total"
    for _ in range(2):
        assert post(head, SERIES_PATH, series("a", (name, {"outcome": "used"}, 3.0))) == 200
        assert post(head, SERIES_PATH, series("b", (name, {"outcome": "used"}, 4.0))) == 200
    assert shown(head)['moerl_trainer_results_total{outcome="used"}'] == 7.0
    post(head, SERIES_PATH, series("a", (name, {"outcome": "used"}, 5.0)))
    assert shown(head)['moerl_trainer_results_total{outcome="used"}'] == 9.0


def test_phases_and_their_seconds() -> None:
    clock = Clock()
    head = control(clock)
    for at, phase, step in ((0.0, "wait", 0), (5.0, "train", 0), (20.0, "publish", 0), (21.0, "wait", 1)):
        clock.now = at
        assert post(head, PHASE_PATH, {"phase": phase, "step": step}) == 200
    clock.now = 24.0
    found = shown(head)
    assert [found[f'moerl_trainer_phase{{phase="{phase}"}}'] for phase in ("wait", "train", "save", "publish")] == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert found['moerl_trainer_phase_seconds_total{phase="wait"}'] == 8.0
    assert found['moerl_trainer_phase_seconds_total{phase="train"}'] == 15.0
    assert found['moerl_trainer_phase_seconds_total{phase="publish"}'] == 1.0
    assert found["moerl_trainer_step"] == 1.0
    assert found["moerl_trainer_step_started_timestamp_seconds"] == 1_000.0


def test_the_newest_history_and_version_are_kept() -> None:
    head = control()
    assert (head.history, head.weight_version) == (History(), 0)
    for count in (2, 3):
        assert post(head, HISTORY_PATH, history(count).document()) == 200
    post(head, SERIES_PATH, series("rank-0", ("moerl_trainer_weight_version", {}, 4.0)))
    post(head, SERIES_PATH, series("manager", ("moerl_trainer_weight_version", {}, 0.0)))
    assert (head.history, head.weight_version) == (history(3), 4)


def test_before_the_first_report_no_step_is_known() -> None:
    head = control()
    assert head.step is None
    post(head, PHASE_PATH, {"phase": "wait", "step": 4})
    assert head.step == 4
    head.committed(3)
    assert shown(head)["moerl_trainer_checkpoint_step"] == 3.0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PHASE_PATH, {"phase": "sleep", "step": 0}),
        (PHASE_PATH, {"phase": "wait"}),
        (HISTORY_PATH, {"batches": []}),
        (HISTORY_PATH, {"batches": [{"step": 1}], "reward_lowest": 0.0}),
        (HISTORY_PATH, ["batches"]),
        (PHASE_PATH, []),
        (SERIES_PATH, series("a", ("up", {}, 1.0))),
        (SERIES_PATH, {"source": "a", "series": [["moerl_trainer_step", {}, "many"]]}),
        (SERIES_PATH, {"source": "a", "series": [["moerl_trainer_step"]]}),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_and_changes_nothing(path: str, body: Any) -> None:
    head = control()
    before = shown(head)
    assert post(head, path, body) == 400
    assert shown(head) == before


def test_other_paths_are_not_there() -> None:
    assert control().handle(Request(method="GET", path="/")).status == 404
    assert control().handle(Request(method="DELETE", path="/metrics")).status == 404


def test_the_frameworks_metrics_pass_through_and_are_empty_without_one() -> None:
    assert control(framework=b"miles 1\n").handle(Request(method="GET", path="/framework/metrics")).body == b"miles 1\n"
    with serving("127.0.0.1:0", control(framework=b"x 1\n").handle) as url:
        port = int(url.rsplit(":", 1)[1])
        assert b"moerl_trainer_step" in scraper(port)()
    assert scraper(port)() == b""


def test_what_a_process_reports_over_http_is_what_the_head_shows() -> None:
    head = control()
    with serving("127.0.0.1:0", head.handle) as url:
        found = metrics()
        found.set("moerl_trainer_reward_mean", 0.25)
        found.add("moerl_trainer_results_total", 2, outcome="used")
        sender = Reporter("rollout-manager", found, poster(url))
        sender.phase("wait", 9)
        sender.close()
    assert head.step == 9
    assert shown(head)["moerl_trainer_reward_mean"] == 0.25
    assert shown(head)['moerl_trainer_results_total{outcome="used"}'] == 2.0
