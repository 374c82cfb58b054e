"""Whatever dies between which two calls, the old checkpoint or the new one can be resumed, whole, and the next try ends well."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import pytest

from moerl_runtime.checkpoint import handover, upload
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.protocol import Attempt

from .bed import (
    RUN,
    acquire,
    announce,
    assert_sound,
    assert_whole,
    bring,
    content,
    held,
    newest,
    save,
    tracker,
    uploader,
)
from .fake_s3 import Client, Crash, FakeS3

Moment = Literal["before", "after"]


def dying(service: FakeS3, number: int, moment: Moment) -> Client:
    """A client whose process dies at its call `number`; nothing of it is heard of later."""
    count = 0
    dead = False

    def before(_operation: str) -> None:
        nonlocal dead
        if dead or (count == number and moment == "before"):
            dead = True
            raise Crash

    def after(_operation: str) -> None:
        nonlocal count, dead
        if count == number and moment == "after":
            dead = True
            raise Crash
        count += 1

    return service.client(before, after)


def points(run: Callable[[Client], None], service: FakeS3) -> Iterator[tuple[int, Moment]]:
    """Every place where a process may die on its way through `run`."""
    client = deepcopy(service).client()
    run(client)
    for number in range(client.calls):
        yield number, "before"
        yield number, "after"


@pytest.fixture
def committed(tmp_path: Path) -> tuple[FakeS3, Path]:
    """Attempt 1 has committed step 10, and step 20 is announced on scratch."""
    service, scratch = FakeS3(), tmp_path / "scratch"
    acquire(service.client())
    save(scratch, content(1, 10))
    announce(scratch, 1, 10)
    assert upload.work(uploader(service.client(), scratch))
    save(scratch, content(1, 20))
    announce(scratch, 1, 20)
    assert newest(service) is not None
    return service, scratch


def restart(scratch: Path) -> Callable[[], None]:
    """Puts scratch back to what it is now."""
    files = {path.relative_to(scratch): path.read_bytes() for path in scratch.rglob("*") if path.is_file()}

    def back() -> None:
        for path in scratch.rglob("*"):
            if path.is_file() and path.relative_to(scratch) not in files:
                path.unlink()
        for name, body in files.items():
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).write_bytes(body)

    return back


@pytest.mark.parametrize("retain_last", [1, 2])
def test_an_uploader_that_dies_at_any_call_leaves_the_old_checkpoint_or_the_new_one(
    committed: tuple[FakeS3, Path], tmp_path: Path, retain_last: int
) -> None:
    service, scratch = committed
    back = restart(scratch)

    def run(client: Client) -> None:
        back()
        assert upload.work(uploader(client, scratch, retain_last=retain_last))

    seen = set()
    for number, moment in points(run, service):
        left = deepcopy(service)
        back()
        with pytest.raises(Crash):
            upload.work(uploader(dying(left, number, moment), scratch, retain_last=retain_last))
        assert_sound(left)
        found = assert_whole(left, tmp_path / f"{number}-{moment}")
        assert found in ((1, 10), (1, 20)), (number, moment)
        seen.add(found)
        # The uploader starts again, and ends what was begun.
        client = left.client()
        again = uploader(client, scratch, retain_last=retain_last)
        while upload.work(again):
            pass
        assert assert_whole(left, tmp_path / f"{number}-{moment}-again") == (1, 20)
        outcome = handover.committed(scratch / "checkpoints", Attempt(run=RUN, number=1))
        assert outcome is not None
        assert outcome.step == 20
        assert left.uploads == {}, "an upload was begun twice"
    assert seen == {(1, 10), (1, 20)}


def test_a_repeated_request_whose_first_answer_was_lost_changes_nothing(
    committed: tuple[FakeS3, Path], tmp_path: Path
) -> None:
    service, scratch = committed
    back = restart(scratch)
    counting = deepcopy(service).client()
    assert upload.work(uploader(counting, scratch))
    for number in range(counting.calls):
        left = deepcopy(service)
        back()
        client = left.client()
        client.repeat_at = number
        assert upload.work(uploader(client, scratch))
        assert assert_whole(left, tmp_path / str(number)) == (1, 20), counting.made[number]
        assert handover.committed(scratch / "checkpoints", Attempt(run=RUN, number=1)) is not None


def test_a_trainer_that_dies_while_it_takes_the_lease_blocks_nobody(
    committed: tuple[FakeS3, Path], tmp_path: Path
) -> None:
    service, _ = committed

    def run(client: Client) -> None:
        acquire(client)

    for number, moment in points(run, service):
        left = deepcopy(service)
        with pytest.raises(Crash):
            acquire(dying(left, number, moment))
        taken = acquire(left.client())
        assert taken.attempt.number in (2, 3)
        assert str(taken.resumed_from) == "000001-00000010"
        assert assert_whole(left, tmp_path / f"{number}-{moment}") == (1, 10)


def test_a_lost_answer_while_the_lease_is_taken_is_no_defeat(committed: tuple[FakeS3, Path]) -> None:
    service, _ = committed
    counting = deepcopy(service).client()
    acquire(counting)
    for number in range(counting.calls):
        client = deepcopy(service).client()
        client.repeat_at = number
        taken = acquire(client)
        assert taken.attempt.number == 2
        taken.check()


def test_a_restore_that_dies_at_any_call_never_leaves_a_save_that_looks_whole(
    committed: tuple[FakeS3, Path], tmp_path: Path
) -> None:
    service, _ = committed

    def run(client: Client) -> None:
        bring(client, tmp_path / "counted")

    # A cursor is named after its step, so one that nobody asks for does no harm.
    cursor = "checkpoints/rollout/global_dataset_state_dict_30.pt"
    left_over = {cursor: content(1, 30)[cursor]}
    for number, moment in points(run, service):
        left = tmp_path / f"{number}-{moment}"
        # Leftovers of an attempt that saved and never committed.
        save(left, content(1, 30))
        handover.write(left / "checkpoints" / handover.TRACKER_NAME, "30")
        with pytest.raises(Crash):
            bring(dying(service, number, moment), left)
        # Megatron loads what the tracker names: untouched, nothing, or all of the checkpoint.
        if tracker(left) is not None:
            assert (tracker(left), held(left)) in (("30", content(1, 30)), ("10", left_over | content(1, 10)))
        assert bring(service.client(), left) is not None
        assert (tracker(left), held(left)) == ("10", left_over | content(1, 10))


CHANGES = ("mkdir", "rmdir", "unlink", "link", "replace", "rename", "fsync")
"""How this package changes names on a disk, and has them last."""


@contextmanager
def dying_on_disk(number: int, moment: Moment) -> Iterator[list[str]]:
    """The process dies at its change `number` of the disk, and makes none after it. Gives the names of those that it made."""
    made: list[str] = []
    dead = False

    def dies(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **named: Any) -> Any:
            nonlocal dead
            at_it = len(made) == number
            dead = dead or (at_it and moment == "before")
            if dead:
                raise Crash
            found = real(*arguments, **named)
            made.append(name)
            if at_it:
                dead = True
                raise Crash
            return found

        return change

    with pytest.MonkeyPatch.context() as patched:
        for name in CHANGES:
            patched.setattr(os, name, dies(name, getattr(os, name)))
        yield made


def test_a_restore_that_dies_at_any_change_of_the_disk_never_leaves_a_save_that_looks_whole(
    committed: tuple[FakeS3, Path], tmp_path: Path
) -> None:
    service, _ = committed
    cursor = "checkpoints/rollout/global_dataset_state_dict_30.pt"
    left_over = {cursor: content(1, 30)[cursor]}
    before = content(1, 30) | dict(list(content(1, 10).items())[:4])
    before["checkpoints/iter_0000010/common.pt"] = b"1-10-damage"
    before["checkpoints/iter_0000010/__9_0.distcp"] = b"of a save that died"
    before[".restoring/000001-00000005/checkpoints/iter_0000005/common.pt"] = b"of another restore"
    whole = ("10", left_over | content(1, 10))
    seen, number, ended = set(), 0, False
    while not ended:
        for moment in ("before", "after"):
            left = tmp_path / f"{number}-{moment}"
            save(left, before)
            handover.write(left / "checkpoints" / handover.TRACKER_NAME, "30")
            handover.mark_restored(left / "checkpoints", Position(attempt=1, step=30))
            with dying_on_disk(number, moment) as made:  # type: ignore[arg-type]
                try:
                    bring(service.client(), left)
                    ended = True
                except Crash:
                    seen.update(made)
            if tracker(left) is not None:
                assert (tracker(left), held(left)) in (("30", before), whole), (number, moment)
            if handover.restored(left / "checkpoints") == Position(attempt=1, step=10):
                assert held(left).items() >= whole[1].items(), (number, moment)
            assert bring(service.client(), left) is not None
            assert (tracker(left), held(left)) == whole, (number, moment)
        number += 1
    assert seen == set(CHANGES) - {"rename"}
    assert number > 40
