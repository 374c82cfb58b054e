"""One attempt ends well only when its last step is committed, and never trains on what is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from moerl_runtime import lease, plan, protocol, store
from moerl_runtime.checkpoint import handover, layout, resolve
from moerl_runtime.checkpoint.layout import Complete, Position
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.lease import LeaseHeld, LeaseLost
from moerl_runtime.protocol import Attempt
from moerl_runtime.serve import Request
from moerl_runtime.trainer import flags, settings
from moerl_runtime.trainer.control import Control
from moerl_runtime.trainer.gates import BadBatches
from moerl_runtime.trainer.report import HISTORY_PATH, SERIES_PATH
from moerl_runtime.trainer.run import LOOK_SECONDS, Around, Disagreement, NothingToDo, Order, run, save_asked
from tests.images.runtime.trainer.fakes import Bed, Clock, history, plan_document, plan_node

RUN = "trainer-0123abcd"
STEPS = 6


class Train:
    """A train.py whose doings are a script: one entry for each look, the last of them its exit code."""

    def __init__(self, *script: Callable[[], object] | int) -> None:
        self.script = list(script)
        self.flags: Sequence[str] = ()
        self.ended: list[str] = []

    def __call__(self, given: Sequence[str]) -> Train:
        self.flags = given
        return self

    def poll(self) -> int | None:
        if self.ended:
            return -9
        head = self.script[0]
        if isinstance(head, int):
            return head
        self.script.pop(0)
        head()
        return None

    def terminate(self) -> None:
        self.ended.append("terminated")

    def kill(self) -> None:
        self.ended.append("killed")


class Rig:
    """A run's directories, its bucket, and a clock that moves with every wait."""

    def __init__(
        self, aws: Bed, tmp_path: Path, *, framework: str = "miles", saves: bool = True, **changes: Any
    ) -> None:
        self.aws, self.clock, self.lines = aws, Clock(), list[str]()
        self.scratch = tmp_path / "scratch"
        self.directory = self.scratch / "checkpoints"
        self.sentinel = self.scratch / "save-now"
        self.document = plan_document(aws) | changes
        self.parameter: Callable[[str], str | None] = lambda _: None
        self.stopped = False
        self.history: Any = history(STEPS).document()
        self.control = Control(clock=self.clock, unix_clock=lambda: 0.0, scrape=lambda: b"")
        path = (
            "moerl_runtime.trainer.rollout.Rollout"
            if framework == "miles"
            else "moerl_runtime.trainer.rollout.generate_rollout"
        )
        written = ["--actor-num-nodes", "2", "--num-rollout", str(STEPS), "--rollout-function-path", path]
        written += ["--hf-checkpoint", "/models/base", "--colocate-nothing"]
        if saves:
            written += ["--save", str(self.directory), "--load", str(self.directory)]
            written += ["--save-hf", f"{self.scratch}/hf/{{rollout_id}}", "--save-trigger-sentinel", str(self.sentinel)]
        self.flags = tuple(written)
        self.work = tmp_path / "work"
        self.work.mkdir()
        if saves:
            self.restored(None)

    def restored(self, position: Position | None, *, tracker: str | None = None) -> None:
        """What `checkpoint restore` leaves on this node."""
        handover.mark_restored(self.directory, position)
        path = self.directory / handover.TRACKER_NAME
        path.unlink(missing_ok=True)
        if position is not None:
            path.write_text(tracker or str(position.step))
            export = self.scratch / "hf" / str(position.step)
            export.mkdir(parents=True, exist_ok=True)
            (export / "model.safetensors").touch()

    def begin_attempt(self) -> Attempt:
        taken = lease.acquire(
            self.aws.s3, bucket=self.aws.bucket, prefix="checkpoints/", run=RUN, holder="old", resumed_from=None
        )
        taken.release()
        return taken.attempt

    def commit(self, attempt: int, step: int, **metadata: Any) -> Position:
        below = layout.step_prefix("checkpoints/", Attempt(run=RUN, number=attempt), step)
        found = {"framework": "miles", "ledger": {"open": []}, "prompts": "f", "history": self.history} | metadata
        body = Complete(run=RUN, attempt=attempt, step=step, nodes=("a",), files=(), metadata=found)
        store.put(self.aws.s3, self.aws.bucket, layout.complete_key(below), protocol.encode(body))
        return Position(attempt=attempt, step=step)

    def wait(self, seconds: float) -> bool:
        self.clock.now += seconds
        return self.stopped

    def run(self, train: Train, holder: str = "cluster-2") -> None:
        order = Order(
            run=RUN,
            holder=holder,
            flags=self.flags,
            plan=plan_node(self.document),
            plan_path=Path("/etc/moerl/plan.json"),
            work=self.work,
            control_url="http://10.0.0.1:9090",
        )
        around = Around(
            s3=self.aws.s3,
            parameter=lambda name: self.parameter(name),
            start=train,
            wait=self.wait,
            clock=self.clock,
            report=self.lines.append,
        )
        run(order, around, self.control)

    def settings(self, train: Train) -> settings.Settings:
        path = Path(flags.needed(train.flags, "custom-config-path"))
        written = json.loads(path.read_text())

        class Args:
            moerl = written["moerl"]

        return settings.of(Args())


@pytest.fixture
def rig(aws: Bed, tmp_path: Path) -> Rig:
    return Rig(aws, tmp_path)


def steps(rig: Rig, attempt: int, *committed: int) -> list[Callable[[], object]]:
    """A train.py that trains and whose uploader commits these steps."""
    return [lambda step=step: (_phase(rig, step), rig.commit(attempt, step)) for step in committed]


def _phase(rig: Rig, step: int) -> None:
    rig.control._begin("wait", step)


def _post(rig: Rig, path: str, body: Any) -> None:
    assert rig.control.handle(Request(method="POST", path=path, body=json.dumps(body).encode())).status == 200


def test_a_new_run_begins_anew_and_ends_with_its_last_commit(rig: Rig) -> None:
    train = Train(*steps(rig, 1, 3, 5), 0)
    rig.run(train)
    known = rig.settings(train)
    assert (known.run, known.attempt, known.resumed, known.start) == (RUN, 1, None, 0)
    assert known.control == "http://10.0.0.1:9090"
    assert flags.value(train.flags, "hf-checkpoint") == "/models/base"
    assert "is committed; the run is at its end" in rig.lines[-1]
    assert lease.acquire(rig.aws.s3, bucket=rig.aws.bucket, prefix="checkpoints/", run=RUN, holder="next"), "released"


def test_a_resume_begins_with_the_export_of_the_committed_step(rig: Rig) -> None:
    attempt = rig.begin_attempt()
    rig.restored(rig.commit(attempt.number, 3, ledger={"next_group": 7}))
    train = Train(*steps(rig, 2, 5), 0)
    rig.run(train)
    known = rig.settings(train)
    assert (known.attempt, known.start) == (2, 4)
    assert known.resumed is not None
    assert known.resumed.metadata["ledger"] == {"next_group": 7}
    assert flags.value(train.flags, "hf-checkpoint") == str(rig.scratch / "hf" / "3")
    assert train.flags.count("--hf-checkpoint") == 1


def test_a_run_whose_last_step_is_committed_has_nothing_to_do(rig: Rig) -> None:
    """Both frameworks run zero rollouts then and exit with 0."""
    rig.restored(rig.commit(rig.begin_attempt().number, STEPS - 1))
    with pytest.raises(NothingToDo) as caught:
        rig.run(Train(0))
    assert caught.value.exit_code == 6


def test_a_train_py_that_ran_no_step_is_no_success(rig: Rig) -> None:
    rig.restored(rig.commit(rig.begin_attempt().number, 3))
    with pytest.raises(RuntimeFault, match="ran no step"):
        rig.run(Train(0))


def test_a_last_step_that_is_never_committed_is_no_success(rig: Rig) -> None:
    with pytest.raises(handover.NotCommitted, match="step"):
        rig.run(Train(*steps(rig, 1, 3), 0))
    assert rig.clock.now >= 60


def test_a_run_whose_last_batches_are_garbage_is_no_success_and_keeps_its_checkpoint(rig: Rig, aws: Bed) -> None:
    rig.history = history(STEPS, reward_min=0.0, reward_max=0.0).document()
    with pytest.raises(BadBatches, match="is the lowest of the run") as caught:
        rig.run(Train(*steps(rig, 1, 3, 5), 0))
    assert caught.value.exit_code == 8
    assert "step 5 is committed" in rig.lines[-1]
    assert resolve.resolve(aws.s3, aws.bucket, "checkpoints/", RUN) is not None


def test_a_second_try_of_such_a_run_says_the_same(rig: Rig) -> None:
    """It is started again by whatever watches exit codes, and finds no step left."""
    rig.history = history(STEPS, repetition_share=0.5).document()
    rig.restored(rig.commit(rig.begin_attempt().number, STEPS - 1))
    with pytest.raises(BadBatches, match=r"repetition share = 0\.5"):
        rig.run(Train(0))


def test_a_run_that_asks_for_no_gates_ends_well_and_says_what_was_seen(rig: Rig) -> None:
    rig.document["workload"]["gates"]["enforced"] = False
    rig.history = history(STEPS, truncated_share=1.0).document()
    rig.run(Train(*steps(rig, 1, 5), 0))
    assert rig.lines[-1].startswith("trainer: no error, since workload.trainer.gates is false: truncated share = 1.0")


def test_a_last_checkpoint_that_says_nothing_of_its_batches_is_no_success(rig: Rig) -> None:
    rig.history = None
    with pytest.raises(BadBatches, match="none is known"):
        rig.run(Train(*steps(rig, 1, 5), 0))


def test_a_run_without_checkpoints_is_judged_by_what_the_head_heard(aws: Bed, tmp_path: Path) -> None:
    rig = Rig(aws, tmp_path, saves=False)
    with pytest.raises(BadBatches, match="none is known"):
        rig.run(Train(lambda: _phase(rig, 0), 0))
    garbage = history(1, reward_min=0.0, reward_max=0.0).document()
    with pytest.raises(BadBatches, match="is the lowest"):
        rig.run(Train(lambda: _post(rig, HISTORY_PATH, garbage), 0))


def test_bad_batches_are_told_once_while_the_run_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moerl_runtime.trainer.run.COMMITTED_SECONDS", LOOK_SECONDS)

    def heard(count: int, **changes: float) -> Callable[[], object]:
        return lambda: _post(rig, HISTORY_PATH, history(count, **changes).document())

    bad = heard(5, truncated_share=0.95)
    rig.run(Train(heard(4, truncated_share=0.95), bad, bad, bad, heard(6), bad, *steps(rig, 1, 5), 0))
    assert sum("truncated share = 0.95" in line for line in rig.lines) == 2, (
        "with the fifth, and when they were bad again"
    )


def test_a_last_commit_that_comes_late_is_waited_for(rig: Rig) -> None:
    train = Train(*steps(rig, 1, 3), 0)
    real = rig.wait

    def wait(seconds: float) -> bool:
        if rig.clock.now > 30:
            rig.commit(1, 5)
        return real(seconds)

    rig.wait = wait  # type: ignore[method-assign]
    rig.run(train)
    assert any("waiting for the commit of step 5" in line for line in rig.lines)


def test_an_error_of_train_py_is_the_runs_and_gives_the_lease_back(rig: Rig) -> None:
    with pytest.raises(RuntimeFault, match=r"train\.py = 3"):
        rig.run(Train(*steps(rig, 1, 3), 3))
    rig.restored(Position(attempt=1, step=3))
    with pytest.raises(RuntimeFault, match=r"train\.py = 3"):
        rig.run(Train(3), holder="another")


def test_a_second_attempt_does_not_begin_beside_a_live_one(rig: Rig, aws: Bed) -> None:
    lease.acquire(aws.s3, bucket=aws.bucket, prefix="checkpoints/", run=RUN, holder="alive", resumed_from=None)
    train = Train(0)
    with pytest.raises(LeaseHeld):
        rig.run(train)
    assert train.flags == ()


def test_a_lost_lease_ends_train_py_at_once(rig: Rig) -> None:
    def lose() -> None:
        rig.clock.now += lease.TTL_SECONDS

    train = Train(*steps(rig, 1, 3), lose, *steps(rig, 1, 5), 0)
    with pytest.raises(LeaseLost) as caught:
        rig.run(train)
    assert train.ended == ["killed"]
    assert caught.value.exit_code == 4


def test_a_lease_that_is_lost_while_the_last_commit_is_awaited_is_told_as_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not as an uploader that was too slow. It runs out while train.py ends."""
    train = Train(*steps(rig, 1, 3), 0)

    def wait(seconds: float) -> bool:
        rig.clock.now += lease.TTL_SECONDS if train.script == [0] else seconds
        return False

    monkeypatch.setattr(rig, "wait", wait)
    with pytest.raises(LeaseLost, match="no longer holds it") as caught:
        rig.run(train)
    assert caught.value.exit_code == 4


def test_sigterm_ends_the_wait_for_another_attempts_lease(rig: Rig, aws: Bed) -> None:
    """And no attempt begins after it."""
    lease.acquire(aws.s3, bucket=aws.bucket, prefix="checkpoints/", run=RUN, holder="cluster-1", resumed_from=None)
    rig.stopped = True
    train = Train(0)
    with pytest.raises(RuntimeFault, match="had not begun"):
        rig.run(train)
    assert rig.clock.now <= lease.LOOK_SECONDS
    assert train.flags == ()
    assert [each.number for each in resolve.attempts(aws.s3, aws.bucket, "checkpoints/", RUN)] == [1]


def test_sigterm_ends_train_py_in_order(rig: Rig) -> None:
    def stop() -> None:
        rig.stopped = True

    train = Train(*steps(rig, 1, 3), stop, *steps(rig, 1, 5), 0)
    with pytest.raises(RuntimeFault, match="asked to stop"):
        rig.run(train)
    assert train.ended == ["terminated"]


def test_a_train_py_that_will_not_end_is_killed(rig: Rig) -> None:
    class Stubborn(Train):
        def poll(self) -> int | None:
            return -9 if "killed" in self.ended else None

    rig.stopped = True
    train = Stubborn()
    with pytest.raises(RuntimeFault, match="asked to stop"):
        rig.run(train)
    assert train.ended == ["terminated", "killed"]


@pytest.mark.parametrize("tracker", ["7", "2"])
def test_what_megatron_would_load_must_be_what_was_restored(rig: Rig, tracker: str) -> None:
    rig.restored(rig.commit(rig.begin_attempt().number, 3), tracker=tracker)
    with pytest.raises(Disagreement, match="makes Megatron load"):
        rig.run(Train(0))


def test_a_stray_save_of_a_run_without_checkpoints_is_not_loaded(rig: Rig) -> None:
    (rig.directory / handover.TRACKER_NAME).write_text("9")
    with pytest.raises(Disagreement, match="makes Megatron load"):
        rig.run(Train(0))


def test_a_commit_after_the_restore_is_left_off_the_lineage_on_shared_scratch(rig: Rig, aws: Bed) -> None:
    old = rig.begin_attempt().number
    rig.restored(rig.commit(old, 1))
    rig.commit(old, 2)
    rig.run(Train(*steps(rig, 2, 5), 0))
    assert any("was committed after" in line for line in rig.lines)
    found = [entry.position for entry in resolve.lineage(aws.s3, aws.bucket, "checkpoints/", RUN)]
    assert found == [Position(attempt=2, step=5), Position(attempt=old, step=1)]


def test_a_commit_after_the_restore_stops_a_run_whose_nodes_restored_for_themselves(aws: Bed, tmp_path: Path) -> None:
    document = plan_document(aws, scratch="nvme")
    rig = Rig(aws, tmp_path, storage=document["storage"])
    old = rig.begin_attempt().number
    rig.restored(rig.commit(old, 1))
    rig.commit(old, 2)
    with pytest.raises(Disagreement) as caught:
        rig.run(Train(0))
    assert caught.value.exit_code == 7


def test_a_checkpoint_without_its_export_is_not_resumed(rig: Rig) -> None:
    rig.restored(rig.commit(rig.begin_attempt().number, 3))
    (rig.scratch / "hf" / "3" / "model.safetensors").unlink()
    with pytest.raises(Disagreement, match="holds no export of step 3"):
        rig.run(Train(0))


@pytest.mark.parametrize("metadata", [{"framework": "slime"}, {"ledger": None}])
def test_a_checkpoint_of_something_else_is_not_resumed(rig: Rig, metadata: dict[str, Any]) -> None:
    position = rig.commit(rig.begin_attempt().number, 3, **metadata)
    if "ledger" in metadata:
        below = layout.step_prefix("checkpoints/", Attempt(run=RUN, number=position.attempt), 3)
        body = Complete(run=RUN, attempt=position.attempt, step=3, nodes=("a",), files=(), metadata={})
        store.put(rig.aws.s3, rig.aws.bucket, layout.complete_key(below), protocol.encode(body))
    rig.restored(position)
    with pytest.raises(Disagreement, match="was not saved by miles"):
        rig.run(Train(0))


def test_a_run_without_checkpoints_needs_neither_restore_nor_commit(aws: Bed, tmp_path: Path) -> None:
    rig = Rig(aws, tmp_path, saves=False)
    rig.run(Train(lambda: _phase(rig, 0), lambda: _post(rig, HISTORY_PATH, history(1).document()), 0))
    rig.control = Control(clock=rig.clock, unix_clock=lambda: 0.0, scrape=lambda: b"")
    with pytest.raises(RuntimeFault, match="ran no step"):
        rig.run(Train(0))


def test_without_a_restore_no_attempt_begins(rig: Rig) -> None:
    (rig.directory / handover.FOLDER / handover.RESTORED_NAME).unlink()
    with pytest.raises(Disagreement, match="checkpoint restore"):
        rig.run(Train(0))


def block(aws: Bed, ends: str = "2026-12-01T11:00:00Z") -> dict[str, Any]:
    capacity = {
        "type": "capacity_block",
        "block": {"save_signal_parameter": "/moerl/x/trainer/save-signal", "scale_down_at": ends},
    }
    return {"pools": [{"name": "trainer", "capacity": capacity}], "names": plan_document(aws)["names"]}


def test_the_save_signal_of_a_capacity_block_asks_for_a_save_once(
    aws: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moerl_runtime.trainer.run.SIGNAL_SECONDS", LOOK_SECONDS)
    rig = Rig(aws, tmp_path, **block(aws))
    asked: list[str] = []
    touched: list[bool] = []

    def parameter(name: str) -> str | None:
        asked.append(name)
        if len(asked) == 1:
            return None
        if len(asked) == 2:
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, "GetParameter")
        return "save before 2026-12-01T11:00:00Z"

    def look() -> None:
        touched.append(rig.sentinel.exists())

    rig.parameter = parameter
    rig.run(Train(look, look, look, look, look, *steps(rig, 1, 5), 0))
    assert asked == ["/moerl/x/trainer/save-signal"] * 3
    assert touched == [False, False, False, True, True]
    assert any("could not be read, trying again" in line for line in rig.lines)


def test_a_sentinel_of_an_earlier_attempt_asks_for_nothing(rig: Rig) -> None:
    rig.sentinel.touch()
    seen: list[bool] = []
    rig.run(Train(lambda: seen.append(rig.sentinel.exists()), *steps(rig, 1, 5), 0))
    assert seen == [False]


def published(rig: Rig, version: int) -> Callable[[], object]:
    series = [["moerl_trainer_weight_version", {}, version]]
    return lambda: _post(rig, SERIES_PATH, {"source": "rank-0", "series": series})


def early_saves(rig: Rig, attempt: int) -> list[int]:
    """Versions that were out when a save was asked for, by a train.py that takes the sentinel away, as Miles does."""
    asked: list[int] = []

    def saves() -> None:
        if rig.sentinel.exists():
            rig.sentinel.unlink()
            asked.append(rig.control.weight_version)

    versions = [look for version in range(4) for look in (published(rig, version), saves, saves)]
    rig.run(Train(saves, *versions, *steps(rig, attempt, 5), 0))
    return asked


def test_a_new_run_saves_once_early_and_not_after_step_0(rig: Rig) -> None:
    """A save that fails must not be found out after hours, and Megatron as published loads no iteration 0."""
    rig.flags += ("--save-interval", "20")
    rig.sentinel.touch()
    assert early_saves(rig, 1) == [1]
    assert sum("saving once early" in line for line in rig.lines) == 1


def test_a_resumed_run_has_saved_before(rig: Rig) -> None:
    rig.flags += ("--save-interval", "20")
    rig.restored(rig.commit(rig.begin_attempt().number, 3))
    assert early_saves(rig, 2) == []


@pytest.mark.parametrize("interval", ["1", "2"])
def test_a_run_that_saves_at_once_anyway_is_asked_for_no_more(rig: Rig, interval: str) -> None:
    rig.flags += ("--save-interval", interval)
    assert early_saves(rig, 1) == []


def test_slime_has_no_sentinel_to_save_early_by(aws: Bed, tmp_path: Path) -> None:
    rig = Rig(aws, tmp_path, framework="slime")
    at = rig.flags.index("--save-trigger-sentinel")
    rig.flags = (*rig.flags[:at], *rig.flags[at + 2 :], "--save-interval", "20")
    assert early_saves(rig, 1) == []


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ("save before 2026-12-01T11:00:00Z", True),
        ("save before 2026-11-01T11:00:00Z", False),
        ("save before soon", False),
        ("", False),
        (None, False),
    ],
)
def test_the_signal_of_an_earlier_block_asks_for_nothing(value: str | None, asked: bool) -> None:
    assert save_asked(value, "2026-12-01T11:00:00+00:00") is asked
    assert save_asked(value, "2026-12-01T11:00:00Z") is asked


def test_no_trainer_stands_on_spot_capacity(aws: Bed, tmp_path: Path) -> None:
    pools = [{"name": "trainer", "capacity": {"type": "spot", "block": None}}]
    with pytest.raises(InputFault, match="reclaimed"):
        Rig(aws, tmp_path, pools=pools).run(Train(0))


def test_slime_on_several_nodes_needs_shared_scratch(aws: Bed, tmp_path: Path) -> None:
    document = plan_document(aws, scratch="nvme")
    with pytest.raises(InputFault, match=r"checkpoints\.scratch"):
        Rig(aws, tmp_path, framework="slime", storage=document["storage"]).run(Train(0))


def test_the_way_in_for_the_settings_is_kept_free(rig: Rig) -> None:
    rig.flags = (*rig.flags, "--custom-config-path", "mine.yaml")
    with pytest.raises(InputFault, match="custom-config-path"):
        rig.run(Train(0))


def test_a_plan_node_reads_the_rendered_document(aws: Bed, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_document(aws)))
    assert plan.load(path)["region"].text == "us-west-2"
