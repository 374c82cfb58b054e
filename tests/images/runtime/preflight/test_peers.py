"""Nodes that find each other behind one name: late ones, ones that have gone, and too few."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from infra.local.processes import free_port
from moerl_runtime.preflight import peers
from moerl_runtime.preflight.peers import Meeting, meet, resolver

GONE, ONE, TWO, THREE, FOUR = "127.0.0.1", "127.0.0.2", "127.0.0.10", "127.0.0.11", "127.0.0.12"
"""As text, TWO would come before ONE."""
LONG = 60.0


class Name:
    """What DNS says, the same to all or something of its own to one."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: Collection[str] = addresses
        self.own: dict[str, Collection[str]] = {}
        self.asked = threading.Event()

    def seen_by(self, address: str) -> Callable[[], Collection[str]]:
        def resolve() -> Collection[str]:
            self.asked.set()
            return self.own.get(address, self.addresses)

        return resolve


def start(
    pool: ThreadPoolExecutor, name: Name, port: int, *own: str, nodes: int, seconds: float = LONG, sound: bool = True
) -> list[Future[Meeting]]:
    return [
        pool.submit(
            meet,
            address,
            nodes=nodes,
            port=port,
            resolve=name.seen_by(address),
            seconds=seconds,
            clock=time.monotonic,
            pause=lambda _: threading.Event().wait(0.01),
            sound=sound,
        )
        for address in own
    ]


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "POLL_SECONDS", 0.02)


def test_all_nodes_go_together_in_the_order_of_their_addresses() -> None:
    with ThreadPoolExecutor() as pool:
        found = start(pool, Name(THREE, TWO, ONE, ONE), free_port(), THREE, ONE, TWO, nodes=3)
        assert [item.result().addresses for item in found] == [(ONE, TWO, THREE)] * 3


def test_a_late_node_is_waited_for() -> None:
    name, port = Name(ONE), free_port()
    with ThreadPoolExecutor() as pool:
        (first,) = start(pool, name, port, ONE, nodes=2)
        assert name.asked.wait(LONG)
        assert not first.done()
        name.addresses = (ONE, TWO)
        (second,) = start(pool, name, port, TWO, nodes=2)
        assert first.result().addresses == second.result().addresses == (ONE, TWO)


def test_a_node_whose_own_checks_still_run_holds_the_others_back() -> None:
    """Its address is there from the start of the pod; it agrees when it gets so far."""
    name, port = Name(ONE, TWO, THREE), free_port()
    with ThreadPoolExecutor() as pool:
        early = start(pool, name, port, ONE, TWO, nodes=3)
        for _ in range(3):
            name.asked.clear()
            assert name.asked.wait(LONG)
        assert not any(item.done() for item in early)
        late = start(pool, name, port, THREE, nodes=3)
        assert {item.result().addresses for item in (*early, *late)} == {(ONE, TWO, THREE)}


@pytest.mark.parametrize("unsound", [(ONE,), (TWO,), (ONE, THREE), (ONE, TWO, THREE)])
def test_where_nodes_have_failed_none_goes_and_all_know_which(unsound: tuple[str, ...]) -> None:
    """The one that leads may be among them."""
    name, port = Name(ONE, TWO, THREE), free_port()
    with ThreadPoolExecutor() as pool:
        found = start(pool, name, port, *unsound, nodes=3, sound=False)
        found += start(pool, name, port, *({ONE, TWO, THREE} - set(unsound)), nodes=3)
        assert {item.result() for item in found} == {Meeting(addresses=(), known=(ONE, TWO, THREE), unsound=unsound)}


def test_a_node_that_failed_waits_for_the_others_to_tell_them() -> None:
    name, port = Name(ONE), free_port()
    with ThreadPoolExecutor() as pool:
        (failed,) = start(pool, name, port, ONE, nodes=2, sound=False)
        assert name.asked.wait(LONG)
        assert not failed.done()
        name.addresses = (ONE, TWO)
        (late,) = start(pool, name, port, TWO, nodes=2)
        assert failed.result().unsound == late.result().unsound == (ONE,)


@pytest.mark.parametrize("answer", ["", "+", "-\n", "- 10.9.9.9\n", f"- {ONE}", f"? {ONE}\n", "+\n+\n", "\xff\n"])
def test_an_answer_that_is_cut_or_about_others_lets_nobody_go_and_ends_no_wait(answer: str) -> None:
    assert peers._unsound(answer, (ONE, TWO)) is None


def test_a_stranger_that_answers_without_end_is_left() -> None:
    with socket.create_server((ONE, 0)) as server, ThreadPoolExecutor() as pool:
        answered = pool.submit(peers._follow, TWO, (ONE, TWO), server.getsockname()[1], lambda: True, True)
        stranger, _ = server.accept()
        with stranger:
            stranger.sendall(b"+" * peers.ANSWER_BYTES)
            assert answered.result(LONG) is None


def test_one_address_too_many_is_waited_out() -> None:
    name, port = Name(GONE, ONE, TWO), free_port()
    with ThreadPoolExecutor() as pool:
        found = start(pool, name, port, ONE, TWO, nodes=2)
        assert name.asked.wait(LONG)
        assert not any(item.done() for item in found)
        name.addresses = (ONE, TWO)
        assert [item.result().addresses for item in found] == [(ONE, TWO)] * 2


def test_more_nodes_than_wanted_do_not_go_though_all_agree() -> None:
    with ThreadPoolExecutor() as pool:
        found = start(pool, Name(ONE, TWO, THREE), free_port(), ONE, TWO, THREE, nodes=2, seconds=0.5)
        assert [item.result().addresses for item in found] == [()] * 3


@pytest.mark.parametrize("stale", [GONE, THREE])
def test_a_right_number_with_one_that_has_gone_is_no_meeting(stale: str) -> None:
    """The pod of an attempt before, which ends for minutes, in the place of one that has no address yet. It may be the
    lowest, whom all turn to, or not."""
    name, port = Name(stale, ONE), free_port()
    with ThreadPoolExecutor() as pool:
        (first,) = start(pool, name, port, ONE, nodes=2)
        for _ in range(3):
            name.asked.clear()
            assert name.asked.wait(LONG)
        assert not first.done()
        name.addresses = (ONE, TWO)
        (second,) = start(pool, name, port, TWO, nodes=2)
        assert first.result().addresses == second.result().addresses == (ONE, TWO)


def test_nodes_that_see_different_sets_of_the_right_size_do_not_start() -> None:
    name, port = Name(ONE, TWO, THREE), free_port()
    name.own = {TWO: (ONE, TWO, FOUR), THREE: (ONE, THREE, FOUR)}
    with ThreadPoolExecutor() as pool:
        found = start(pool, name, port, ONE, TWO, THREE, nodes=3)
        for _ in range(20):
            name.asked.clear()
            assert name.asked.wait(LONG)
        assert not any(item.done() for item in found)
        name.own = {}
        assert [item.result().addresses for item in found] == [(ONE, TWO, THREE)] * 3


def test_strangers_and_nonsense_on_the_port_are_hung_up_on() -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool:
        (first,) = start(pool, Name(ONE, TWO), port, ONE, nodes=2)
        for hello in (b"", b"\xff\n", b"x" * 300, _hello(THREE), _hello(f"{TWO} perhaps")):
            stranger = _connected(ONE, port)
            stranger.sendall(hello)
            if not hello:
                stranger.shutdown(socket.SHUT_WR)
            assert _hung_up(stranger)
        assert not first.done()
        (second,) = start(pool, Name(ONE, TWO), port, TWO, nodes=2)
        assert first.result().addresses == second.result().addresses == (ONE, TWO)


def test_a_node_that_agreed_and_then_ended_does_not_count() -> None:
    name, port = Name(ONE, TWO, THREE), free_port()
    with ThreadPoolExecutor() as pool:
        (first,) = start(pool, name, port, ONE, nodes=3)
        ended = _connected(ONE, port)
        ended.sendall(f"{peers._digest((ONE, TWO, THREE))} {TWO}\n".encode())
        ended.close()
        (third,) = start(pool, name, port, THREE, nodes=3)
        for _ in range(20):
            name.asked.clear()
            assert name.asked.wait(LONG)
        assert not first.done()
        (second,) = start(pool, name, port, TWO, nodes=3)
        assert {item.result().addresses for item in (first, second, third)} == {(ONE, TWO, THREE)}


def _hello(rest: str) -> bytes:
    return f"{peers._digest((ONE, TWO))} {rest}\n".encode()


def _connected(host: str, port: int) -> socket.socket:
    end = time.monotonic() + LONG
    while True:
        try:
            return socket.create_connection((host, port), LONG)
        except OSError:
            assert time.monotonic() < end


def _hung_up(stranger: socket.socket) -> bool:
    with stranger:
        try:
            return stranger.recv(1) == b""
        except ConnectionResetError:
            return True


def waited(known: Sequence[str], *, own: str, nodes: int) -> tuple[Meeting, int]:
    """What is said after 30 s of a clock that goes one second at each look, and how often it paused."""
    now = iter(range(10_000))
    pauses: list[float] = []
    found = meet(
        own,
        nodes=nodes,
        port=free_port(),
        resolve=lambda: known,
        seconds=30.0,
        clock=lambda: float(next(now)),
        pause=pauses.append,
    )
    return found, len(pauses)


def test_too_few_is_said_with_their_number_and_not_waited_for_without_end() -> None:
    found, pauses = waited([ONE, TWO], own=ONE, nodes=3)
    assert (found.addresses, found.known) == ((), (ONE, TWO))
    assert pauses == 29


def test_no_answer_of_dns_and_a_set_without_this_node_are_no_meeting() -> None:
    assert waited([], own=ONE, nodes=2)[0] == Meeting(addresses=(), known=())
    assert waited([TWO, THREE], own=ONE, nodes=2)[0] == Meeting(addresses=(), known=(TWO, THREE))


def test_the_one_that_leads_names_those_that_are_known_and_silent() -> None:
    found, _ = waited([ONE, TWO, THREE], own=ONE, nodes=3)
    assert (found.addresses, found.silent) == ((), (TWO, THREE))


def test_a_failed_look_at_dns_does_not_undo_a_meeting() -> None:
    name, port, answers = Name(ONE, TWO), free_port(), iter(range(1_000_000))

    def flapping() -> Collection[str]:
        return name.addresses if next(answers) % 2 == 0 else ()

    name.seen_by = lambda address: flapping if address == ONE else lambda: name.addresses  # type: ignore[method-assign]
    with ThreadPoolExecutor() as pool:
        found = start(pool, name, port, ONE, TWO, nodes=2)
        assert [item.result().addresses for item in found] == [(ONE, TWO)] * 2


def test_a_name_is_resolved_in_the_family_of_the_pod_and_each_address_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def getaddrinfo(host: str, port: object, family: int = 0, kind: int = 0) -> list[tuple[object, ...]]:
        asked.append((host, port, family, kind))
        if family == socket.AF_INET:
            return [(family, kind, 6, "", (address, 0)) for address in ("10.0.0.9", "10.0.0.10", "10.0.0.9")]
        return [(family, kind, 6, "", (address, 0, 0, 0)) for address in ("fd00::2", "fe80::1%eth0")]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert resolver("peers.rl.svc", "10.0.0.9")() == {"10.0.0.9", "10.0.0.10"}
    assert resolver("peers.rl.svc", "fd00::2")() == {"fd00::2", "fe80::1"}
    assert asked == [
        ("peers.rl.svc", None, socket.AF_INET, socket.SOCK_STREAM),
        ("peers.rl.svc", None, socket.AF_INET6, socket.SOCK_STREAM),
    ]


def test_a_name_that_is_not_there_yet_has_no_addresses() -> None:
    assert resolver("no-such-name.invalid", ONE)() == ()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_node_with_an_ipv6_address_leads_on_it() -> None:
    assert waited(["::1", "::2"], own="::1", nodes=2)[0].silent == ("::2",)
