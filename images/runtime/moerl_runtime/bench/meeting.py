"""Where ranks meet: a TCP store that listens on the rendezvous address alone.

torch's own store listens on every interface unless it is handed a socket, so it is handed one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

RETRY_SECONDS = 1.0
BACKLOG = 1024


def listening_socket(
    host: str, port: int, *, seconds: float, clock: Callable[[], float], pause: Callable[[float], object]
) -> socket.socket:
    """A socket that listens on `host`, whose name DNS may not know before this pod is up. Raises OSError after `seconds`."""
    end = clock() + seconds
    while True:
        try:
            # create_server turns this error into one that cannot be told from others.
            (family, *_), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        except socket.gaierror:
            if clock() >= end:
                raise
            pause(RETRY_SECONDS)


def store(
    host: str,
    port: int,
    *,
    ranks: int,
    leads: bool,
    seconds: float,
    clock: Callable[[], float],
    pause: Callable[[float], object],
) -> Any:
    """The store that all ranks share; rank 0 leads. torch retries the connection for as long as `seconds`."""
    import torch.distributed as dist

    store_of: Any = dist.TCPStore  # type: ignore[attr-defined]
    timeout = timedelta(seconds=seconds)
    if not leads:
        return store_of(host, port, ranks, False, timeout)
    listening = listening_socket(host, port, seconds=seconds, clock=clock, pause=pause)
    return store_of(
        host, port, ranks, True, timeout, wait_for_workers=False, master_listen_fd=listening.detach(), use_libuv=True
    )
