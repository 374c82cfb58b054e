"""A buffer that does not answer costs one short wait, never a sample."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime import plan as plans
from moerl_runtime import serve
from moerl_runtime.plan import Node
from moerl_runtime.serve import Answer, Request
from moerl_runtime.workers import buffer_client
from moerl_runtime.workers.buffer_client import BufferClient, host_of
from tests.shipped import plan_of


@given(group=st.integers(0, 2**63 - 1), ordinals=st.integers(1, 64))
def test_a_group_has_one_host_among_those_that_are_there(group: int, ordinals: int) -> None:
    assert host_of(group, ordinals) == host_of(group, ordinals)
    assert 0 <= host_of(group, ordinals) < ordinals


def test_groups_spread_over_the_hosts() -> None:
    counts = [0] * 4
    for group in range(4000):
        counts[host_of(group, 4)] += 1
    assert min(counts) > 800


def test_without_buffers_everything_is_a_miss() -> None:
    client = BufferClient([])
    assert client.get(1, "samples/x") is None
    assert client.put(1, "samples/x", b"") is False


def test_a_worker_that_is_gone_is_asked_again_only_after_its_rest() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    now = [0.0]
    asked: list[Request] = []

    def handler(request: Request) -> Answer:
        asked.append(request)
        return Answer(body=b"sample")

    client = BufferClient([f"http://127.0.0.1:{port}"], clock=lambda: now[0], rest_seconds=10.0)
    assert client.get(1, "samples/x") is None
    with serve.serving(f"127.0.0.1:{port}", handler):
        assert client.get(1, "samples/x") is None
        assert asked == []
        now[0] = 10.0
        assert client.get(1, "samples/x") == b"sample"


def test_urls_come_from_the_plan() -> None:
    document = plan_of("reference-p5en").document()
    plan = Node(document, "")
    found = buffer_client.urls(plan)
    assert len(found) == plans.pool(plan, "buffer")["size"]["max"].number
    assert all(url.startswith("http://buffer-buffer-") for url in found)
    assert buffer_client.urls(plan, "environment") == ["http://environment:8091"]
    assert buffer_client.urls(Node(plan_of("starter-p5en").document(), "")) == []
