"""Progress: plain lines for logs, a bar for people, and the end is always shown."""

from __future__ import annotations

import io

import pytest

from moerl_runtime.checkpoint.progress import BAR_WIDTH, LINE_SECONDS, Progress, size

from .bed import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("upload step 10", 100 * 2**20, stream=stream, clock=clock)
    for _ in range(100):
        clock.seconds += LINE_SECONDS / 20
        progress.add(2**20)
    progress.finish()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "upload step 10 20.0 MiB of 100.0 MiB, 2.0 MiB/s"
    assert lines[-1].startswith("upload step 10 100.0 MiB of 100.0 MiB")
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_a_bar_that_is_full_at_the_end() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("restore", 10, stream=stream, clock=clock)
    clock.seconds = 1.0
    progress.add(5)
    progress.add(5)
    progress.finish()
    assert f"[{'#' * 15}{'.' * 15}]" in stream.getvalue()
    assert stream.getvalue().split("\r")[-1].startswith(f"[{'#' * BAR_WIDTH}]")
    assert stream.getvalue().endswith("\n")


def test_nothing_to_move_is_done() -> None:
    stream = io.StringIO()
    Progress("restore", 0, stream=stream, clock=Clock()).finish()
    assert stream.getvalue().startswith("restore 0 B of 0 B")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3.5 * 2**30, "3.5 GiB"), (5 * 2**40, "5.0 TiB")],
)
def test_bytes_are_written_for_people(count: float, text: str) -> None:
    assert size(count) == text
