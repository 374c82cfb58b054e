"""Samples in memory: never more than the limit, the oldest go first, and what is given back is what was put."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime import protocol, serve
from moerl_runtime.protocol import Attempt
from moerl_runtime.serve import Request
from moerl_runtime.workers import buffer
from moerl_runtime.workers.buffer import ENTRY_BYTES, Samples
from moerl_runtime.workers.buffer_client import SAMPLES_PATH, BufferClient

ATTEMPT = Attempt(run="trainer-1a2b3c4d", number=1)


def path(group: int) -> str:
    return SAMPLES_PATH + protocol.sample_key(ATTEMPT, group, 0)


@given(
    puts=st.lists(st.tuples(st.integers(0, 8), st.binary(max_size=400)), max_size=40),
    limit_bytes=st.integers(ENTRY_BYTES, 6 * ENTRY_BYTES),
)
def test_the_newest_that_fit_are_there_and_no_more(puts: list[tuple[int, bytes]], limit_bytes: int) -> None:
    exported = buffer.new_metrics()
    samples = Samples(limit_bytes, exported)
    expected: OrderedDict[str, bytes] = OrderedDict()
    for group, body in puts:
        key = path(group)
        fits = len(body) + ENTRY_BYTES <= limit_bytes
        assert samples.put(key, body) is fits
        if fits and key not in expected:
            expected[key] = body
            while sum(len(kept) + ENTRY_BYTES for kept in expected.values()) > limit_bytes:
                expected.popitem(last=False)
        assert exported.value("moerl_buffer_bytes") == sum(len(kept) + ENTRY_BYTES for kept in expected.values())
    for group in range(9):
        assert samples.get(path(group)) == expected.get(path(group))
    assert exported.value("moerl_buffer_gets_total", outcome="hit") == len(expected)


def test_only_keys_of_samples_are_taken() -> None:
    samples = Samples(2**20, buffer.new_metrics())
    for key in ("current.json", "weights/current.json", "samples/../x", protocol.task_key(ATTEMPT, 1)):
        assert buffer.answer(samples, Request(method="PUT", path=SAMPLES_PATH + key, body=b"x")).status == 404
    assert buffer.answer(samples, Request(method="PUT", path=path(1), body=b"x")).status == 200
    assert buffer.answer(samples, Request(method="DELETE", path=path(1))).status == 405
    assert buffer.answer(samples, Request(method="GET", path=path(2))).status == 404


def test_what_the_client_puts_it_gets_back_over_http() -> None:
    exported = buffer.new_metrics()
    samples = Samples(2**20, exported)
    with serve.serving("127.0.0.1:0", lambda request: buffer.answer(samples, request)) as url:
        client = BufferClient([url])
        key = protocol.sample_key(ATTEMPT, 7, 3)
        assert client.get(7, key) is None
        assert client.put(7, key, b'{"reward": 1}')
        assert client.put(7, key, b'{"reward": 0}')
        assert client.get(7, key) == b'{"reward": 1}'
        assert not client.put(8, protocol.sample_key(ATTEMPT, 8, 0), bytes(2 * 2**20))
    assert exported.value("moerl_buffer_puts_total") == 1
