"""The hand-over between trainer and uploader: what appears is whole, what leads out of scratch is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.checkpoint import handover
from moerl_runtime.checkpoint.handover import NotCommitted, Outcome
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import Attempt

from .bed import RUN, Clock, announce, content, save

ATTEMPT = Attempt(run=RUN, number=1)


def outcome(step: int, *, committed: bool = True, reason: str = "") -> Outcome:
    return Outcome(run=RUN, attempt=1, step=step, committed=committed, reason=reason)


def test_saves_wait_in_their_order_until_they_are_concluded(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    for step in (10, 9, 100):
        save(tmp_path, content(1, step))
        announce(tmp_path, 1, step)
    waiting = handover.waiting(directory)
    assert [ready.step for ready in waiting] == [9, 10, 100]
    assert waiting[0].items == (
        "checkpoints/iter_0000009",
        "hf/9",
        "checkpoints/rollout/global_dataset_state_dict_9.pt",
    )
    assert waiting[0].metadata == {"cursor": 9}
    handover.conclude(directory, waiting[0], outcome(9))
    assert [ready.step for ready in handover.waiting(directory)] == [10, 100]
    assert handover.committed(directory, ATTEMPT) == outcome(9)
    assert handover.committed(directory, Attempt(run=RUN, number=2)) is None


def test_a_file_that_is_half_written_is_seen_by_nobody(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    folder = directory / handover.FOLDER
    folder.mkdir(parents=True)
    (folder / ".ready-000001-00000010.json.0a1b").write_text('{"protocol":')
    assert handover.waiting(directory) == []
    handover.clear(directory)
    assert list(folder.iterdir()) == []


def test_the_tracker_is_part_of_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, content(1, 10))
    tracker = tmp_path / "checkpoints" / handover.TRACKER_NAME
    tracker.write_text("10")
    handover.announce(
        tmp_path / "checkpoints", attempt=ATTEMPT, step=10, paths=[tmp_path / "checkpoints/iter_0000010", tracker]
    )
    assert handover.waiting(tmp_path / "checkpoints")[0].items == ("checkpoints/iter_0000010",)


@pytest.mark.parametrize("path", ["/etc/passwd", "../beside", "checkpoints/../../beside", "checkpoints/absent"])
def test_what_is_not_on_scratch_is_refused(tmp_path: Path, path: str) -> None:
    scratch = tmp_path / "scratch"
    save(scratch, content(1, 10))
    (tmp_path / "beside").write_text("")
    with pytest.raises(InputFault):
        handover.announce(scratch / "checkpoints", attempt=ATTEMPT, step=10, paths=[Path(path)])
    assert handover.waiting(scratch / "checkpoints") == []


def test_with_scratch_on_every_node_a_path_may_be_on_another_one(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    handover.announce(tmp_path / "checkpoints", attempt=ATTEMPT, step=10, paths=[Path("hf/10")], nodes=2)
    assert handover.waiting(tmp_path / "checkpoints")[0].items == ("hf/10",)


@pytest.mark.parametrize(("step", "nodes", "paths"), [(-1, 1, ["checkpoints"]), (1, 0, ["checkpoints"]), (1, 1, [])])
def test_a_save_without_files_step_or_nodes_is_refused(tmp_path: Path, step: int, nodes: int, paths: list[str]) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputFault):
        handover.announce(
            tmp_path / "checkpoints", attempt=ATTEMPT, step=step, paths=[Path(path) for path in paths], nodes=nodes
        )


@given(st.text(max_size=30))
def test_a_name_stays_below_scratch_or_is_refused(name: str) -> None:
    base = Path("/scratch/run")
    try:
        inside = handover.inside(name)
    except InputFault:
        return
    import os

    assert os.path.normpath(base / inside).startswith(f"{base}")


def await_step(directory: Path, step: int, clock: Clock, lines: list[str] | None = None) -> Outcome:
    return handover.await_committed(
        directory,
        attempt=ATTEMPT,
        step=step,
        deadline_seconds=100.0,
        clock=clock,
        wait=clock.wait,
        report=None if lines is None else lines.append,
    )


def test_waiting_has_an_end_and_says_that_it_waits(tmp_path: Path) -> None:
    clock, lines = Clock(), []
    with pytest.raises(NotCommitted, match="within 100 s") as told:
        await_step(tmp_path, 10, clock, lines)
    assert told.value.exit_code == 5
    assert clock.seconds == 100
    assert len(lines) == 3


def test_a_failed_save_ends_the_wait_with_its_reason(tmp_path: Path) -> None:
    save(tmp_path, content(1, 10))
    announce(tmp_path, 1, 10)
    directory = tmp_path / "checkpoints"
    handover.conclude(
        directory, handover.waiting(directory)[0], outcome(10, committed=False, reason="a shard is missing")
    )
    clock = Clock()
    with pytest.raises(NotCommitted, match="a shard is missing"):
        await_step(directory, 10, clock)
    assert clock.seconds == 0


def test_what_was_restored_is_remembered(tmp_path: Path) -> None:
    assert handover.restored(tmp_path) is None
    handover.mark_restored(tmp_path, Position(attempt=3, step=7))
    assert handover.restored(tmp_path) == Position(attempt=3, step=7)
    handover.mark_restored(tmp_path, None)
    assert handover.restored(tmp_path) is None
