"""How far a transfer is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TextIO

BAR_WIDTH = 30
BAR_SECONDS, LINE_SECONDS = 0.2, 10.0


class Progress:
    """Bytes of one transfer. `add` may be called by any thread."""

    def __init__(self, label: str, total: int, *, stream: TextIO, clock: Callable[[], float]) -> None:
        self._label, self._total, self._stream, self._clock = label, total, stream, clock
        self._terminal = stream.isatty()
        self._lock = threading.Lock()
        self._done, self._began = 0, clock()
        self._shown = self._began

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = self._clock()
            if now - self._shown >= (BAR_SECONDS if self._terminal else LINE_SECONDS):
                self._shown = now
                self._show(now)

    def finish(self) -> None:
        with self._lock:
            self._show(self._clock())
            if self._terminal:
                print(file=self._stream, flush=True)

    def _show(self, now: float) -> None:
        share = min(1.0, self._done / self._total) if self._total else 1.0
        seconds = max(now - self._began, 1e-9)
        text = f"{self._label} {size(self._done)} of {size(self._total)}, {size(self._done / seconds)}/s"
        if self._terminal:
            filled = round(share * BAR_WIDTH)
            print(f"\r[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {text}   ", end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
