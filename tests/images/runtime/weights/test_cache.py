"""A directory of the node has its name only while it is whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from moerl_runtime.protocol import Attempt
from moerl_runtime.weights import cache
from tests.images.runtime.checkpoint.fake_s3 import Crash

ATTEMPT = Attempt(run="trainer-1", number=1)


def version(models: Path, number: int) -> Path:
    path = cache.version_path(models, ATTEMPT, number)
    path.mkdir(parents=True)
    for name in ("a", "b"):
        (path / name).write_text(name, encoding="utf-8")
    return path


@pytest.mark.parametrize("remove", ["discard", "evict"])
def test_killed_while_it_removes_a_version_no_half_of_it_is_left_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: str
) -> None:
    path = version(tmp_path, 1)

    def dies(directory: Path) -> None:
        next(directory.iterdir()).unlink()
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(cache.shutil, "rmtree", dies)
        with pytest.raises(Crash):
            cache.discard(path) if remove == "discard" else cache.evict(tmp_path, keep=0)
    assert cache.versions(tmp_path) == []
    cache.clean(tmp_path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(("keep", "left"), [(0, []), (1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (5, [1, 2, 3])])
def test_the_newest_are_kept_and_no_more_than_there_are(tmp_path: Path, keep: int, left: list[int]) -> None:
    paths = [version(tmp_path, number) for number in (1, 2, 3)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1_000 - age, 1_000 - age))
    assert cache.evict(tmp_path, keep=keep) == paths[: 3 - len(left)]
    assert cache.versions(tmp_path) == [paths[number - 1] for number in left]


def test_a_new_directory_takes_the_place_of_an_old_one_as_a_whole(tmp_path: Path) -> None:
    path = version(tmp_path, 1)
    made = cache.hidden(path, "partial")
    made.mkdir()
    (made / "c").write_text("c", encoding="utf-8")
    cache.finish(made, path)
    assert [item.name for item in path.iterdir()] == ["c"]
    assert cache.versions(tmp_path) == [path]


def test_one_is_inside_and_the_next_gets_in_when_it_leaves(tmp_path: Path) -> None:
    inside, leave, order = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        with cache.locked(tmp_path, deadline_seconds=10):
            inside.set()
            leave.wait(10)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)

    def wait(_seconds: float) -> None:
        leave.set()
        thread.join(10)

    with cache.locked(tmp_path, deadline_seconds=10, clock=lambda: 0.0, wait=wait):
        order.append("second")
    assert order == ["first", "second"]


def test_the_newest_versions_and_those_that_are_held_stay(tmp_path: Path) -> None:
    paths = [version(tmp_path, number) for number in range(4)]
    with cache.holding(paths[0]):
        assert cache.evict(tmp_path, keep=1, spare=[paths[1]]) == [paths[2]]
    assert cache.evict(tmp_path, keep=1) == [paths[0], paths[1]]


def test_holding_what_was_removed_fails(tmp_path: Path) -> None:
    path = version(tmp_path, 1)
    cache.discard(path)
    with pytest.raises(FileNotFoundError), cache.holding(path):
        pass
