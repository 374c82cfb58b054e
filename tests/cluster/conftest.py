"""Control planes for tests: started on loopback, ended by the fixture that started them, whatever happens."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from infra.config.plan import Plan
from infra.local.kubernetes import cluster
from infra.local.kubernetes.processes import Group
from infra.local.kubernetes.programs import Programs, ProgramsMissing, locate
from infra.node import use_pinned_node

use_pinned_node(os.environ)

from infra.local.kubernetes.fleet import controller_values  # noqa: E402

from .bed import Bed, Tally  # noqa: E402 - jsii must find its Node first

TALLY = Tally()


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Skips where the programs are not built."""
    try:
        return locate(os.environ)
    except ProgramsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def start_bed(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Plan], Bed]]:
    """`start_bed(PLAN)`: a fresh control plane without nodes, its controllers configured as the plan's Helm values say."""
    groups: list[Group] = []

    def start(plan: Plan) -> Bed:
        began = time.monotonic()
        running, group = cluster.start(tmp_path_factory.mktemp("control-plane"), programs, controller_values(plan))
        groups.append(group)
        TALLY.starts.append(time.monotonic() - began)
        return Bed(running, group, running.api(), TALLY)

    yield start
    for group in groups:
        group.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.starts:
        terminalreporter.write_line(
            f"control plane: {len(TALLY.starts)} started in {max(TALLY.starts):.1f} s at most, "
            f"{TALLY.objects_applied} objects applied, {TALLY.pods_placed} pods placed"
        )
    if TALLY.unknown_kinds:
        terminalreporter.write_line(
            f"not applied, since their definitions could not be had: {', '.join(sorted(TALLY.unknown_kinds))}"
        )
