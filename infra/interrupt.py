"""Ctrl-C: a command ends in order and without a traceback."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERRUPTED = 130
"""Exit code of a program that SIGINT ended, as shells write it."""


class Interrupted(BaseException):
    """SIGINT. Not KeyboardInterrupt, which click turns into an exit code of 1."""


def interruptible(run: Callable[[], T]) -> T:
    """Runs a command. At the first Ctrl-C every `finally` of it runs, undisturbed by more, and the process exits with 130.

    To be called by the main thread, before imports that take long: it sets the handler of SIGINT.
    """
    signal.signal(signal.SIGINT, _interrupt)
    try:
        return run()
    except Interrupted:
        print("interrupted", file=sys.stderr)
        # The same Ctrl-C ended Node, to which jsii's exit handler says goodbye: nobody can do anything about that.
        sys.unraisablehook = lambda _: None
        sys.exit(INTERRUPTED)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Interrupted
