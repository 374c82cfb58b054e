"""The watch for a Spot notice: version 2 of the metadata service, tokens that run out, and a service that is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from moerl_runtime import imds
from moerl_runtime.imds import Imds, MetadataFailed, Notice
from moerl_runtime.serve import Answer, Request, serving

SPOT = json.dumps({"action": "terminate", "time": "2026-11-29T23:00:00Z"})


class Metadata:
    """A metadata service with what the documentation says of version 2."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}
        self.tokens = 0
        self.valid: set[str] = set()
        self.asked: list[str] = []
        self.down = False

    def answer(self, request: Request) -> Answer:
        if self.down:
            return Answer(status=500)
        if (request.method, request.path) == ("PUT", "/latest/api/token"):
            assert 0 < int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
            self.tokens += 1
            self.valid.add(f"token-{self.tokens}")
            return Answer(body=f"token-{self.tokens}".encode())
        self.asked.append(request.path)
        if request.headers.get("X-aws-ec2-metadata-token") not in self.valid:
            return Answer(status=401)
        found = self.documents.get(request.path)
        return Answer(status=404) if found is None else Answer(body=found.encode())


@pytest.fixture
def service() -> Iterator[tuple[Metadata, Imds]]:
    made = Metadata()
    with serving("127.0.0.1:0", made.answer) as url:
        yield made, Imds(url)


def test_there_is_no_notice_until_there_is_one(service: tuple[Metadata, Imds]) -> None:
    metadata, ours = service
    assert ours.notice(rebalance=False) is None
    metadata.documents[imds.SPOT_PATH] = SPOT
    assert ours.notice(rebalance=False) == Notice(reason="spot", text=SPOT)
    assert metadata.tokens == 1


def test_a_recommendation_counts_where_it_is_asked_for(service: tuple[Metadata, Imds]) -> None:
    metadata, ours = service
    metadata.documents[imds.REBALANCE_PATH] = '{"noticeTime": "2026-11-29T23:00:00Z"}'
    assert ours.notice(rebalance=False) is None
    found = ours.notice(rebalance=True)
    assert found is not None
    assert found.reason == "rebalance"
    metadata.documents[imds.SPOT_PATH] = SPOT
    found = ours.notice(rebalance=True)
    assert found is not None
    assert found.reason == "spot"


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"time": "soon"}', '{"action": "stop"}'])
def test_a_notice_that_cannot_be_read_is_one_all_the_same(service: tuple[Metadata, Imds], text: str) -> None:
    metadata, ours = service
    metadata.documents[imds.SPOT_PATH] = text
    assert ours.notice(rebalance=False) == Notice(reason="spot", text=text)


def test_a_token_that_ran_out_is_renewed(service: tuple[Metadata, Imds]) -> None:
    metadata, ours = service
    assert ours.notice(rebalance=False) is None
    metadata.valid.clear()
    metadata.documents[imds.SPOT_PATH] = SPOT
    assert ours.notice(rebalance=False) is not None
    assert metadata.tokens == 2


def test_a_service_that_is_away_or_broken_is_an_error(service: tuple[Metadata, Imds]) -> None:
    metadata, ours = service
    metadata.down = True
    with pytest.raises(MetadataFailed, match="HTTP 500"):
        ours.notice(rebalance=False)
    with pytest.raises(MetadataFailed):
        Imds("http://127.0.0.1:9").notice(rebalance=False)


def watched(answers: list[Callable[[], Notice | None]]) -> tuple[list[str], threading.Event]:
    """What a watch said, over these answers; it is stopped after the last."""
    said: list[str] = []
    stop = threading.Event()

    def ask() -> Notice | None:
        answer = answers.pop(0)
        if not answers:
            stop.set()
        return answer()

    imds.watch(
        ask,
        noticed=lambda notice: said.append(notice.reason),
        asked=lambda: said.append("asked"),
        failed=lambda _: said.append("failed"),
        stop=stop,
        poll_seconds=0.0,
    )
    return said, stop


def down() -> Notice | None:
    raise MetadataFailed("away")


def test_a_watch_outlives_a_service_that_is_away_and_says_so_once() -> None:
    said, _ = watched([down, down, lambda: None, down, lambda: Notice(reason="spot", text="")])
    assert said == ["failed", "asked", "asked", "asked", "failed", "asked", "spot", "asked"]


def test_a_watch_ends_when_it_is_told_to() -> None:
    said, stop = watched([lambda: None])
    assert said == ["asked"]
    assert stop.is_set()


class Waits(threading.Event):
    """Time passes by waiting."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


@pytest.mark.parametrize("answer_seconds", [0.01, 1.0])
def test_a_notice_is_found_in_time_for_a_leader_to_hear_of_it_within_five_seconds(answer_seconds: float) -> None:
    """It comes at the worst moment: just after a question was taken."""
    stop, comes_seconds, found = Waits(), 0.001, []

    def ask() -> Notice | None:
        began = stop.now
        stop.now += answer_seconds
        return Notice(reason="spot", text=SPOT) if began >= comes_seconds else None

    imds.watch(ask, noticed=lambda _: found.append(stop.now), asked=lambda: None, failed=lambda _: None, stop=stop)
    assert found[0] - comes_seconds <= 4.0
