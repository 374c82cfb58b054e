"""How a process that only serves learns that it is to end."""

from __future__ import annotations

import signal
import threading


def until_stopped() -> None:
    """Returns at SIGTERM or SIGINT. To be called by the main thread: no other may set handlers."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
