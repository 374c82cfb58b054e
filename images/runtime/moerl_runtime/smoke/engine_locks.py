"""The lock between requests and weight updates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class UpdateLock:
    """Requests read, updates write. A writer waits for all readers, and new readers wait behind a waiting writer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writers = 0
        self._written = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._changed:
            self._writers += 1
            self._changed.wait_for(lambda: not self._readers and not self._written)
            self._written = True
        try:
            yield
        finally:
            with self._changed:
                self._writers -= 1
                self._written = False
                self._changed.notify_all()

    def wait_unread(self, seconds: float) -> bool:
        """Whether nobody reads, at the latest after `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._readers, seconds)
