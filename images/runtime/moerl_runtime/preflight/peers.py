"""How nodes without stable names find each other: the addresses behind a headless Service, agreed on before ranks start.

DNS alone does not do. It shows a pod before its own checks are done and for as long as it takes to end, and servers cache,
so two nodes may see different sets of the right size. A set counts once every member has said that it sees the same one:
the lowest address leads, the others tell it the digest of what they see, and it lets all go together.

A node whose own checks have failed comes as well, to say so: then none goes, and none waits for it without knowing why.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

PAUSE_SECONDS = 1.0
POLL_SECONDS = 0.5
"""How long a socket is waited for before the names are read again."""
CONNECT_SECONDS = 5.0
HELLO_BYTES = 256
ANSWER_BYTES = 16 * 1024
GO, STAY, FAILED = "+", "-", "failed"

Resolve = Callable[[], Collection[str]]
"""Addresses that the name has now; empty where DNS gives no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What came of waiting for others."""

    addresses: tuple[str, ...]
    """All nodes in the order of their ranks; empty where they did not all come."""
    known: tuple[str, ...]
    """Nodes that the name had at the end, this one included."""
    silent: tuple[str, ...] = ()
    """Of those, the ones that had told this node nothing, where this one leads."""
    unsound: tuple[str, ...] = ()
    """Of those, the ones that came to say that their own checks have failed; this one included."""


def resolver(name: str, own: str) -> Resolve:
    """Addresses of `name` in the family of `own`: in a cluster with both families a pod has one of each."""
    family = _family(own)

    def resolve() -> Collection[str]:
        try:
            found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
        except socket.gaierror:
            return ()
        return {str(entry[4][0]).partition("%")[0] for entry in found}

    return resolve


def meet(
    own: str,
    *,
    nodes: int,
    port: int,
    resolve: Resolve,
    seconds: float,
    clock: Callable[[], float],
    pause: Callable[[float], object],
    sound: bool = True,
) -> Meeting:
    """Waits until exactly `nodes` addresses, `own` among them, have agreed, for `seconds` at most. None goes where one is not
    `sound`. Raises OSError where `port` cannot be had on `own`."""
    end = clock() + seconds
    known: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    while clock() < end:
        known, silent = _ordered(resolve()), ()
        if len(known) == nodes and own in known:
            still = _unchanged(resolve, known, clock, end)
            if known[0] == own:
                unsound, silent = _lead(known, port, still, sound)
            else:
                unsound = _follow(own, known, port, still, sound)
            if unsound is not None:
                return Meeting(addresses=() if unsound else known, known=known, unsound=unsound)
        pause(PAUSE_SECONDS)
    return Meeting(addresses=(), known=known, silent=silent)


def _ordered(addresses: Collection[str]) -> tuple[str, ...]:
    """By number, as the frameworks order nodes; each once."""
    return tuple(map(str, sorted({ipaddress.ip_address(address) for address in addresses}, key=int)))


def _unchanged(resolve: Resolve, members: Sequence[str], clock: Callable[[], float], end: float) -> Callable[[], bool]:
    def still() -> bool:
        latest = resolve()
        # No answer says nothing about who is there.
        return clock() < end and (not latest or _ordered(latest) == tuple(members))

    return still


def _lead(
    members: Sequence[str], port: int, still: Callable[[], bool], sound: bool
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """(members that are not sound once all have agreed, else None; those that have not agreed)."""
    own, wanted = members[0], _digest(members)
    peers: dict[str, socket.socket] = {}
    states = {own: sound}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((own, port), family=_family(own), backlog=len(members)))
        server.settimeout(POLL_SECONDS)
        while still():
            peers = {address: peer for address, peer in peers.items() if not _gone(peer)}
            if len(peers) == len(members) - 1:
                unsound = tuple(address for address in members if not states[address])
                answer = " ".join([STAY, *unsound]) if unsound else GO
                for peer in peers.values():
                    with contextlib.suppress(OSError):
                        peer.sendall(f"{answer}\n".encode())
                return unsound, ()
            with contextlib.suppress(OSError):
                peer, _ = server.accept()
                stack.enter_context(peer)
                peer.settimeout(POLL_SECONDS)
                digest, _, rest = peer.recv(HELLO_BYTES).decode("ascii", "replace").strip().partition(" ")
                address, _, word = rest.partition(" ")
                if digest == wanted and address in members[1:] and word in ("", FAILED):
                    peer.setblocking(False)
                    peers[address], states[address] = peer, not word
                else:
                    peer.close()
    return None, tuple(address for address in members[1:] if address not in peers)


def _follow(
    own: str, members: Sequence[str], port: int, still: Callable[[], bool], sound: bool
) -> tuple[str, ...] | None:
    """Members that are not sound, by the one that leads; None where it did not answer."""
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection((members[0], port), CONNECT_SECONDS) as leader:
        leader.sendall(f"{_digest(members)} {own}{'' if sound else f' {FAILED}'}\n".encode())
        leader.settimeout(POLL_SECONDS)
        while still() and not answer.endswith(b"\n"):
            with contextlib.suppress(TimeoutError):
                part = leader.recv(ANSWER_BYTES - len(answer))
                if not part:
                    return None
                answer += part
    return _unsound(answer.decode("ascii", "replace"), members)


def _unsound(answer: str, members: Sequence[str]) -> tuple[str, ...] | None:
    """Of a whole answer; None for anything else."""
    if answer == f"{GO}\n":
        return ()
    first, *unsound = answer.split() or [""]
    if answer.endswith("\n") and first == STAY and unsound and set(unsound) <= set(members):
        return tuple(unsound)
    return None


def _gone(peer: socket.socket) -> bool:
    """Whether the other side has closed; it sends nothing more before it does."""
    try:
        return peer.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _digest(members: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(members).encode()).hexdigest()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
