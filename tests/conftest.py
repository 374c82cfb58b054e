"""What fault tests counted, shown when all tests are done; and no test that a slow machine could fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

PROVED: list[str] = []
"""Lines of this run; `make test` repeats them in its report."""


@pytest.fixture
def proved() -> Callable[[str], None]:
    """`proved("runtime: 2000 tasks, lost = 0")` shows the line when all tests are done."""
    return PROVED.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in PROVED:
        terminalreporter.write_line(line)
