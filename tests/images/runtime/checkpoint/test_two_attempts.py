"""A former attempt that is still alive and a new one, in any order of their calls: the lineage stays whole and is one line."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from moerl_runtime.checkpoint import handover, upload
from moerl_runtime.checkpoint.layout import Position
from moerl_runtime.checkpoint.transfer import TRANSIENT
from moerl_runtime.faults import InputFault
from moerl_runtime.lease import TTL_SECONDS, Lease
from moerl_runtime.protocol import Attempt, encode

from .bed import RUN, Clock, acquire, announce, assert_sound, assert_whole, bring, content, newest, save, uploader
from .fake_s3 import Client, FakeS3
from .interleave import interleave


class Run:
    """Attempt 1 has committed step 10 and stopped renewing; what it saves later, and attempt 2, are the actors."""

    def __init__(self, folder: Path, *, retain_last: int, restores: bool) -> None:
        self.service, self.folder = FakeS3(), folder
        self.retain_last, self.restores = retain_last, restores
        self.resumed: Position | None = None
        self.seen: set[str] = set()
        self.begun = False
        acquire(self.service.client())
        self._save(self.service.client(), "former", 1, 10)
        self.service.now += TTL_SECONDS + 1

    def former(self, client: Client) -> None:
        for step in (20, 30):
            try:
                self._save(client, "former", 1, step)
            except TRANSIENT:
                # The successor has pruned what was being uploaded; the next try is refused.
                upload.work(uploader(client, self.folder / "former", node="former"))

    def successor(self, client: Client) -> None:
        """Restores (or only looks), takes the lease, saves. What it restored may be pruned before it has the lease."""
        scratch = self.folder / "successor"
        for _ in range(5):
            try:
                if self.restores:
                    bring(client, scratch)
                    restored = handover.restored(scratch / "checkpoints")
                    taken = acquire(client, holder="successor", resumed_from=restored)
                else:
                    taken = acquire(client, holder="successor")
                break
            except (InputFault, *TRANSIENT):
                continue
        self.resumed, self.begun = taken.resumed_from, True
        assert self.resumed is not None
        self._save(client, "successor", taken.attempt.number, self.resumed.step + 5)
        taken.check()

    def look(self) -> None:
        if self.seen == set(self.service.objects):
            return
        self.seen = set(self.service.objects)
        assert_sound(self.service)
        found = newest(self.service)
        assert found is not None
        if self.begun and self.resumed in committed(self.service):
            assert found.position == self.resumed or found.attempt > 1

    def _save(self, client: Client, name: str, attempt: int, step: int) -> None:
        scratch = self.folder / name
        save(scratch, content(attempt, step))
        announce(scratch, attempt, step)
        upload.work(uploader(client, scratch, node=name, retain_last=self.retain_last))


def call_of_the_marker(service: FakeS3, scratch: Path) -> int:
    """Number of the call by which the uploader will write the commit marker of the save that waits."""
    counting = deepcopy(service).client()
    ready = handover.waiting(scratch / "checkpoints")[0]
    upload.work(uploader(counting, scratch))
    handover.write(scratch / "checkpoints" / handover.FOLDER / f"ready-{ready.position}.json", encode(ready))
    return max(number for number, operation in enumerate(counting.made) if operation == "put_object")


def committed(service: FakeS3) -> set[Position]:
    parts = [key.split("/") for key in service.objects if key.endswith("/complete.json")]
    return {Position(attempt=int(names[-3]), step=int(names[-2])) for names in parts}


@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data(), retain_last=st.integers(1, 2), restores=st.booleans())
def test_any_order_of_two_attempts_keeps_one_whole_line(data: st.DataObject, retain_last: int, restores: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), retain_last=retain_last, restores=restores)
        current = ""
        left = 0

        def choose(names: list[str], _clients: Mapping[str, Client]) -> str:
            nonlocal current, left
            if current not in names or left == 0:
                current = data.draw(st.sampled_from(names))
                left = data.draw(st.integers(1, 40))
            left -= 1
            return current

        interleave(run.service, {"former": run.former, "successor": run.successor}, choose, run.look)
        found = assert_whole(run.service, Path(folder) / "restored")
        assert run.resumed is not None
        assert found is not None
        # The successor's own save, whatever the former attempt has committed since.
        assert (found[0] > 1, found[1]) == (True, run.resumed.step + 5)


def test_what_a_former_attempt_commits_after_the_take_over_is_never_resumed(tmp_path: Path) -> None:
    service, scratch = FakeS3(), tmp_path / "former"
    acquire(service.client())
    for step in (10, 20):
        save(scratch, content(1, step))
        announce(scratch, 1, step)
        if step == 10:
            upload.work(uploader(service.client(), scratch))
    service.now += TTL_SECONDS + 1
    marker = call_of_the_marker(service, scratch)

    def take_over(_operation: str) -> None:
        # Its check of the lease has passed; this call writes the marker.
        if former.calls == marker and len(taken) == 0:
            taken.append(acquire(service.client(), holder="successor"))

    taken: list[Lease] = []
    former = service.client(before=take_over)
    upload.work(uploader(former, scratch))
    assert Position(attempt=1, step=20) in committed(service)
    assert taken[0].resumed_from == Position(attempt=1, step=10)
    assert assert_whole(service, tmp_path / "restored") == (1, 10)


def test_a_former_attempt_commits_nothing_once_it_can_know_of_the_new_one(tmp_path: Path) -> None:
    service, scratch = FakeS3(), tmp_path / "former"
    acquire(service.client())
    service.now += TTL_SECONDS + 1
    acquire(service.client(), holder="successor")
    save(scratch, content(1, 10))
    announce(scratch, 1, 10)
    upload.work(uploader(service.client(), scratch))
    assert committed(service) == set()
    with pytest.raises(handover.NotCommitted, match="attempt 2"):
        handover.await_committed(
            scratch / "checkpoints",
            attempt=Attempt(run=RUN, number=1),
            step=10,
            deadline_seconds=1.0,
            clock=Clock(),
            wait=Clock().wait,
        )


def test_an_uploader_whose_trainer_has_died_still_commits(tmp_path: Path) -> None:
    service, scratch = FakeS3(), tmp_path / "former"
    acquire(service.client())
    service.now += 10 * TTL_SECONDS
    save(scratch, content(1, 10))
    announce(scratch, 1, 10)
    upload.work(uploader(service.client(), scratch))
    assert committed(service) == {Position(attempt=1, step=10)}


def test_an_attempt_whose_beginning_was_pruned_under_it_does_not_hide_the_one_before(tmp_path: Path) -> None:
    service, scratch = FakeS3(), tmp_path / "former"
    acquire(service.client())
    for step in (10, 20):
        save(scratch, content(1, step))
        announce(scratch, 1, step)
        upload.work(uploader(service.client(), scratch))
    service.now += TTL_SECONDS + 1
    acquire(service.client(), holder="successor", resumed_from=Position(attempt=1, step=10))
    assert assert_whole(service, tmp_path / "there") == (1, 10)
    del service.objects["checkpoints/trainer-1/steps/000001/00000010/complete.json"]
    assert assert_whole(service, tmp_path / "gone") == (1, 20)


def test_a_take_over_during_the_upload_is_noticed_before_the_commit(tmp_path: Path) -> None:
    service, scratch = FakeS3(), tmp_path / "former"
    acquire(service.client())
    service.now += TTL_SECONDS + 1
    save(scratch, content(1, 10))
    announce(scratch, 1, 10)
    taken: list[Lease] = []

    def take_over(operation: str) -> None:
        if operation == "upload_part" and not taken:
            taken.append(acquire(service.client(), holder="successor"))

    upload.work(uploader(service.client(before=take_over), scratch))
    assert taken
    assert committed(service) == set()


def test_nothing_is_pruned_while_an_attempt_is_beginning(tmp_path: Path) -> None:
    service, scratch = FakeS3(), tmp_path / "former"
    acquire(service.client())
    for step in (10, 20):
        save(scratch, content(1, step))
        announce(scratch, 1, step)
        if step == 10:
            upload.work(uploader(service.client(), scratch))
    service.now += TTL_SECONDS + 1
    marker = call_of_the_marker(service, scratch)
    steps = ["former"]

    def choose(names: list[str], clients: Mapping[str, Client]) -> str:
        former, successor = clients["former"], clients["successor"]
        # The former attempt's check passes; the successor takes the lease and sees step 10; the former one commits step 20
        # and prunes; then the successor writes where it resumed.
        if steps[-1] == "former" and former.calls == marker:
            steps.append("successor")
        if steps[-1] == "successor" and successor.made.count("put_object") == 1 and successor.made[-1] == "get_object":
            steps.append("former again")
        wanted = steps[-1].split()[0]
        return wanted if wanted in names else names[0]

    interleave(
        service,
        {
            "former": lambda client: upload.work(uploader(client, scratch, retain_last=1)),
            "successor": lambda client: acquire(client, holder="successor"),
        },
        choose,
        lambda: None,
    )
    assert steps == ["former", "successor", "former again"]
    assert Position(attempt=1, step=20) in committed(service)
    assert assert_whole(service, tmp_path / "restored") == (1, 10)
