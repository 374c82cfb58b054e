"""Retention never removes what someone may still need, and leaves nothing that nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime import protocol
from moerl_runtime.protocol import Attempt, Current
from moerl_runtime.weights import fetch, manifest, retain
from moerl_runtime.weights.manifest import File, Manifest
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, Crash, FakeS3

from .bed import PREFIX, RUN, S3, Dies

NOWHERE = Path("/nowhere")


@dataclass(frozen=True)
class History:
    """What one attempt published: for each version from 1 up whether it is whole, and which have an anchor."""

    attempt: int
    whole: tuple[bool, ...]
    anchors: frozenset[int]
    resumed: bool
    loaded: frozenset[int] = field(default_factory=frozenset)

    @property
    def of(self) -> Attempt:
        return Attempt(run=RUN, number=self.attempt)


@st.composite
def histories(draw: st.DrawFn) -> list[History]:
    found = []
    for attempt in range(1, draw(st.integers(1, 3)) + 1):
        whole = tuple(draw(st.lists(st.sampled_from([False, False, False, True]), max_size=7)))
        numbers = list(range(len(whole) + 1))
        deltas = [number for number in numbers[1:] if not whole[number - 1]]
        found.append(
            History(
                attempt=attempt,
                whole=whole,
                anchors=frozenset(draw(st.lists(st.sampled_from(deltas), max_size=2)) if deltas else ()),
                resumed=attempt > 1 or draw(st.booleans()),
                loaded=frozenset(draw(st.lists(st.sampled_from(numbers), max_size=2))),
            )
        )
    return found


def write(service: FakeS3, history: History, *, age_seconds: float = 0.0) -> None:
    s3, of = S3(service), history.of
    newest: str | None = None

    def put(key: str, version: int, kind: manifest.Kind, base: int | None) -> None:
        service.client().put_object(Bucket=BUCKET, Key=manifest.folder_of(key) + "data", Body=b"x")
        file = File(name="data", size_bytes=1, chunk_bytes=1, chunks=("00",))
        body = manifest.encode(
            Manifest(
                run=RUN,
                attempt=history.attempt,
                version=version,
                kind=kind,
                base=base,
                anchor=newest if kind == "delta" else None,
                files=(file,),
            )
        )
        service.client().put_object(Bucket=BUCKET, Key=key, Body=body.encode())

    if history.resumed:
        put(manifest.version_key(PREFIX, of, 0), 0, "full", None)
        newest = manifest.version_key(PREFIX, of, 0)
    for version, whole in enumerate(history.whole, start=1):
        key = manifest.version_key(PREFIX, of, version)
        put(key, version, "full" if whole else "delta", None if whole else version - 1)
        if whole:
            newest = key
        elif version in history.anchors:
            newest = manifest.anchor_key(PREFIX, of, version)
            put(newest, version, "full", None)
    service.now -= age_seconds
    for number, version in enumerate(sorted(history.loaded)):
        retain.report_loaded(s3, BUCKET, pointer(history, version), f"10-0-0-{number}")
    service.now += age_seconds


def pointer(history: History, version: int) -> Current:
    there = version > 0 or history.resumed
    key = manifest.version_key(PREFIX, history.of, version) if there else None
    return Current(run=RUN, attempt=history.attempt, version=version, manifest=key)


def point(service: FakeS3, current: Current) -> None:
    body = protocol.encode(current).encode()
    service.client().put_object(Bucket=BUCKET, Key=PREFIX + protocol.CURRENT_NAME, Body=body)


def route_keys(service: FakeS3, history: History, version: int) -> set[str]:
    """Everything that a node with only the base model reads for that version; KeyError where some is missing."""
    current = pointer(history, version)
    if current.manifest is None:
        return set()
    route = fetch.find_route(S3(service), BUCKET, current, weights_prefix=PREFIX, models=NOWHERE, base=NOWHERE / "base")
    keys = {manifest.version_key(PREFIX, history.of, item.version) for item in route.deltas}
    keys |= {route.whole_key} if route.whole_key else set()
    keys |= {manifest.folder_of(key) + "data" for key in keys}
    for key in keys:
        assert key in service.objects
    return keys


def below(service: FakeS3, history: History) -> set[str]:
    return {key for key in service.objects if key.startswith(f"{PREFIX}{RUN}/{history.of.name}/")}


@given(made=histories(), data=st.data(), keep=st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_what_is_needed_stays_and_nothing_else(made: list[History], data: st.DataObject, keep: int) -> None:
    service = FakeS3()
    for history in made:
        write(service, history)
    last = data.draw(st.sampled_from(made))
    current = data.draw(st.integers(0, len(last.whole)))
    point(service, pointer(last, current))
    before = {history.attempt: below(service, history) for history in made}
    wanted: dict[int, set[int]] = {}
    for history in made:
        wanted[history.attempt] = set(history.loaded)
        if history is last:
            wanted[history.attempt] |= set(range(max(0, current - keep + 1), current + 1))
    expected = {
        history.attempt: set().union(*(route_keys(service, history, version) for version in wanted[history.attempt]))
        for history in made
    }
    retain.prune(S3(service), BUCKET, PREFIX, run=RUN, keep_versions=keep)
    for history in made:
        left = below(service, history)
        if history.attempt > last.attempt:
            assert left == before[history.attempt]
            continue
        for version in wanted[history.attempt]:
            assert route_keys(service, history, version) <= left
        spared = {key for key in before[history.attempt] if history is last and int(key.split("/")[3]) > current}
        assert spared <= left
        anchors = {key for key in left if "/full/" in key and int(key.split("/")[3]) in wanted[history.attempt]}
        assert left - spared - anchors == expected[history.attempt] - spared - anchors


@given(made=histories(), keep=st.integers(1, 2))
@settings(deadline=None, max_examples=15)
def test_killed_while_it_removes_it_has_removed_nothing_that_is_needed(made: list[History], keep: int) -> None:
    last = made[-1]
    current = len(last.whole)
    moment = 0
    while True:
        service = FakeS3()
        for history in made:
            write(service, history)
        point(service, pointer(last, current))
        try:
            retain.prune(S3(service, Dies(moment)), BUCKET, PREFIX, run=RUN, keep_versions=keep)
        except Crash:
            pass
        else:
            break
        for version in range(max(0, current - keep + 1), current + 1):
            route_keys(service, last, version)
        for history in made:
            for version in history.loaded:
                route_keys(service, history, version)
        retain.prune(S3(service), BUCKET, PREFIX, run=RUN, keep_versions=keep)
        settled = set(service.objects)
        moment += 7
    assert moment == 0 or settled == set(service.objects)


def test_a_report_counts_for_its_age_by_the_clock_of_s3() -> None:
    service = FakeS3()
    history = History(attempt=1, whole=(False,) * 6, anchors=frozenset(), resumed=False, loaded=frozenset({2}))
    write(service, history, age_seconds=retain.REPORT_AGE_SECONDS - 1)
    assert retain.loaded_versions(S3(service), BUCKET, history.of) == {2}
    service.now += 2
    assert retain.loaded_versions(S3(service), BUCKET, history.of) == set()
    retain.report_loaded(S3(service), BUCKET, pointer(history, 3), "10-0-0-0")
    assert retain.loaded_versions(S3(service), BUCKET, history.of) == {3}


def test_a_run_that_engines_do_not_follow_is_left_alone() -> None:
    service = FakeS3()
    history = History(attempt=1, whole=(False,) * 6, anchors=frozenset(), resumed=False)
    write(service, history)
    before = below(service, history)
    assert retain.prune(S3(service), BUCKET, PREFIX, run=RUN, keep_versions=1) == []
    point(service, Current(run="trainer-other", attempt=9, version=9, manifest=None))
    assert retain.prune(S3(service), BUCKET, PREFIX, run=RUN, keep_versions=1) == []
    assert below(service, history) == before


def test_agents_may_write_their_reports_and_the_trainer_may_read_them() -> None:
    """Below the samples: the one prefix of the weights bucket in which agents write."""
    key = retain.loaded_key(Attempt(run=RUN, number=1), "10-0-0-1")
    assert key.startswith(protocol.SAMPLES_PREFIX)


@pytest.mark.parametrize("files", [1, 2500])
def test_a_version_of_many_files_goes_in_batches(files: int) -> None:
    service = FakeS3()
    history = History(attempt=1, whole=(True, True), anchors=frozenset(), resumed=False)
    write(service, history)
    folder = protocol.version_prefix(PREFIX, history.of, 1)
    for number in range(files):
        service.client().put_object(Bucket=BUCKET, Key=f"{folder}shard-{number}", Body=b"")
    point(service, pointer(history, 2))

    class Bounded(S3):
        def delete_objects(self, Delete: Mapping[str, Any], **named: Any) -> Mapping[str, Any]:
            assert len(Delete["Objects"]) <= 1000
            return super().delete_objects(Delete=Delete, **named)

    assert retain.prune(Bounded(service), BUCKET, PREFIX, run=RUN, keep_versions=1) == [folder]
    assert not [key for key in service.objects if key.startswith(folder)]


def test_the_list_says_what_is_there_and_what_is_half_there() -> None:
    service = FakeS3()
    history = History(
        attempt=1, whole=(False, False, True), anchors=frozenset({2}), resumed=False, loaded=frozenset({1})
    )
    write(service, history)
    point(service, pointer(history, 2))
    del service.objects[manifest.version_key(PREFIX, history.of, 3)]
    found = retain.list_stored(S3(service), BUCKET, PREFIX, run=RUN)
    assert [(item.version, item.form, item.base, item.loaded, item.current) for item in found] == [
        (1, "delta", 0, True, False),
        (2, "delta", 1, False, True),
        (2, "anchor", None, False, True),
        (3, "incomplete", None, False, False),
    ]


def test_what_is_no_version_stays_and_stops_neither_the_list_nor_the_removal() -> None:
    service = FakeS3()
    history = History(attempt=1, whole=(True, True), anchors=frozenset(), resumed=False, loaded=frozenset({1}))
    write(service, history)
    point(service, pointer(history, 2))
    below = f"{PREFIX}{RUN}/"
    strays = {
        f"{below}old/00000001/manifest.json",
        f"{below}1/00000001/manifest.json",
        f"{below}000001/notes.txt",
        f"{below}000001/1/manifest.json",
        f"{below}000001/-0000001/manifest.json",
        retain.loaded_key(history.of, "a-note"),
    }
    for key in strays:
        service.client().put_object(Bucket=BUCKET, Key=key, Body=b"x")
    assert [item.version for item in retain.list_stored(S3(service), BUCKET, PREFIX, run=RUN)] == [1, 2]
    assert retain.prune(S3(service), BUCKET, PREFIX, run=RUN, keep_versions=1) == []
    service.now += 2 * retain.REPORT_AGE_SECONDS
    removed = retain.prune(S3(service), BUCKET, PREFIX, run=RUN, keep_versions=1)
    assert removed == [manifest.folder_of(manifest.version_key(PREFIX, history.of, 1))]
    assert strays <= set(service.objects)
