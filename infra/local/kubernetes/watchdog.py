"""Ends a process group when the process that holds the other end of stdin is gone, whatever ended it."""

import contextlib
import os
import signal
import sys

if __name__ == "__main__":
    sys.stdin.buffer.read()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int(sys.argv[1]), signal.SIGKILL)
