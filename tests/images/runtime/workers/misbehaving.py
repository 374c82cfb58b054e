"""Stand-ins for a grade's child process that do what graders must not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from moerl_runtime.workers import grading


def sleeps(*_: object) -> None:
    os.setsid()
    threading.Event().wait()


def exhausts_memory(sender: Connection, text: str, memory_bytes: int) -> None:
    def takes_all(*_: object, **__: object) -> tuple[float, dict[str, object]]:
        return float(len(bytearray(memory_bytes))), {}

    grading.graders.grade = takes_all  # type: ignore[assignment]
    grading._child(sender, text, memory_bytes)


def exits(*_: object) -> None:
    os._exit(1)


def writes_half_a_line(sender: Connection, *_: object) -> None:
    os.setsid()
    os.write(sender.fileno(), b'{"reward": 1')
    threading.Event().wait()


def writes_no_json(sender: Connection, *_: object) -> None:
    os.write(sender.fileno(), b"\x80\x04pickle" + grading.END)


def writes_too_much(sender: Connection, *_: object) -> None:
    os.setsid()
    while True:
        os.write(sender.fileno(), bytes(2**20))


def leaves_a_process(sender: Connection, *_: object) -> None:
    os.setsid()
    left = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    reply = f'{{"reward": 0, "metadata": {{"pid": {left.pid}}}, "failure": null}}'
    os.write(sender.fileno(), reply.encode() + grading.END)
