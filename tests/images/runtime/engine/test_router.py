"""A worker is removed by the id that the router gave it, and no other worker is."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from moerl_runtime.engine.router import RouterFailed, deregister, register
from moerl_runtime.serve import Answer, Request, serving

OURS, OTHERS = "http://10.0.0.5:30000", "http://10.0.0.50:30000"


class Router:
    """As sglang-router's control routes are described."""

    def __init__(self) -> None:
        self.workers: dict[str, str] = {"uuid-1": OTHERS}
        self.status = 200

    def answer(self, request: Request) -> Answer:
        if self.status != 200:
            return Answer(status=self.status)
        if request.method == "GET":
            listed = [{"id": key, "url": url, "is_healthy": True} for key, url in self.workers.items()]
            return Answer(body=json.dumps({"workers": listed, "total": len(listed)}).encode())
        if request.method == "POST":
            self.workers[f"uuid-{len(self.workers) + 1}"] = json.loads(request.body)["url"]
            return Answer(status=202, body=b'{"status": "accepted"}')
        self.workers.pop(request.path.removeprefix("/workers/"))
        return Answer(status=202, body=b"{}")


@pytest.fixture
def router() -> Iterator[tuple[Router, str]]:
    made = Router()
    with serving("127.0.0.1:0", made.answer) as url:
        yield made, url


def test_a_worker_is_registered_once_and_removed_alone(router: tuple[Router, str]) -> None:
    made, url = router
    register(url, OURS)
    register(url, OURS)
    assert sorted(made.workers.values()) == sorted([OTHERS, OURS])
    deregister(url, OURS)
    assert list(made.workers.values()) == [OTHERS]
    deregister(url, OURS)


def test_a_router_that_refuses_or_is_away_is_an_error(router: tuple[Router, str]) -> None:
    made, url = router
    made.status = 503
    with pytest.raises(RouterFailed, match="503"):
        deregister(url, OURS)
    with pytest.raises(RouterFailed):
        register("http://127.0.0.1:9", OURS)
