"""A file or a directory is brought to the disk itself, and no descriptor stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moerl_runtime import disk


def test_the_path_itself_is_synced_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((os.readlink(f"/proc/self/fd/{number}"), number)))
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path):
        disk.sync(path)
    assert [path for path, _ in synced] == [str(tmp_path / "file"), str(tmp_path)]
    for _, number in synced:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_a_disk_that_fails_is_an_error_and_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def fails(number: int) -> None:
        numbers.append(number)
        raise OSError("input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="input/output"):
        disk.sync(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(numbers[0])
