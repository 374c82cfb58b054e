"""Leads a process group, and ends it when the process that holds the other end of stdin is gone, whatever ended that."""

import os
import signal
import sys

if __name__ == "__main__":
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)
