"""What an engine may have to load again stays on its node."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from moerl_runtime.agent import bring
from moerl_runtime.agent.bring import HELD, Bringer
from moerl_runtime.protocol import Current
from moerl_runtime.weights import cache
from tests.images.runtime.agent.simulation import current


@pytest.fixture
def bringer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bringer:
    """Versions are there as soon as they are asked for; how they get there is the business of `weights.fetch`."""
    base = tmp_path / "base"
    base.mkdir()

    def fetched(_s3: object, _bucket: str, wanted: Current, **_: object) -> Path:
        if wanted.manifest is None:
            return base
        path = cache.version_path(tmp_path, wanted.of, wanted.version)
        path.mkdir(parents=True, exist_ok=True)
        return path

    monkeypatch.setattr(bring.fetch, "bring", fetched)
    return Bringer(
        None, "bucket", weights_prefix="weights/", models=tmp_path, base=base, worker="pod-0", log=lambda _: None
    )


def removable(path: Path) -> bool:
    """Whether the cache's eviction could have it: nobody holds its lock."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_the_version_in_use_the_one_before_and_the_one_that_comes_are_held(bringer: Bringer) -> None:
    paths = [bringer(current(version)) for version in range(1, 6)]
    assert [removable(path) for path in paths] == [True, True, False, False, False]
    assert HELD == 2


def test_a_version_that_is_asked_for_again_is_held_anew(bringer: Bringer) -> None:
    first = bringer(current(1))
    for version in (2, 3, 1, 4):
        bringer(current(version))
    assert not removable(first)


def test_a_load_leaves_a_mark_for_the_next_agent_of_this_pod(bringer: Bringer, tmp_path: Path) -> None:
    assert not bringer.touched
    bringer.mark_loading()
    assert bringer.touched
    again = Bringer(
        None, "b", weights_prefix="w/", models=tmp_path, base=tmp_path / "base", worker="pod-0", log=lambda _: None
    )
    other = Bringer(
        None, "b", weights_prefix="w/", models=tmp_path, base=tmp_path / "base", worker="pod-1", log=lambda _: None
    )
    assert (again.touched, other.touched) == (True, False)
