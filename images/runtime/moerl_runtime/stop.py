"""How a process learns that it is to end. To be called by the main thread: no other may set handlers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def on_stop(stop: Callable[[], object], *, signals: Sequence[signal.Signals] = SIGNALS) -> None:
    """Has `stop` called, once, in a thread, when one of the signals has come.

    A handler may interrupt the holder of any lock, that of the very event which it is to set too, and would wait for it for
    ever. So it writes to a pipe and takes none.
    """
    reader, writer = os.pipe()
    for number in signals:
        signal.signal(number, lambda *_: os.write(writer, b"."))
    threading.Thread(target=lambda: (os.read(reader, 1), stop()), daemon=True, name="stop").start()


def until_stopped(*, signals: Sequence[signal.Signals] = SIGNALS) -> None:
    """Returns when one of the signals has come."""
    stopped = threading.Event()
    on_stop(stopped.set, signals=signals)
    stopped.wait()
