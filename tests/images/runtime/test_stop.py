"""A signal that comes while a lock is held is heard all the same, and nobody waits for that lock."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from moerl_runtime.stop import on_stop, until_stopped


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_it_is_heard_by_the_holder_of_the_events_own_lock(number: signal.Signals) -> None:
    """As in the middle of `Event.wait`, where a handler that sets the event would wait for itself."""
    stopped = threading.Event()
    on_stop(stopped.set, signals=[signal.SIGUSR1, signal.SIGUSR2])
    with stopped._cond:  # type: ignore[attr-defined]
        os.kill(os.getpid(), number)
        assert not stopped._flag  # type: ignore[attr-defined]
    assert stopped.wait(10)


def test_it_is_told_once_however_often_it_comes() -> None:
    told, first = [], threading.Event()

    def stop() -> None:
        told.append(threading.current_thread())
        first.set()

    on_stop(stop, signals=[signal.SIGUSR1])
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert first.wait(10)
    told[0].join(10)
    assert len(told) == 1


def test_a_wait_ends_with_the_signal() -> None:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    until_stopped(signals=[signal.SIGUSR1])
    timer.join()
