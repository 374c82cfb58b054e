"""Embedded AWS servers for tests; each is stopped by the fixture that started it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.local import server
from infra.node import use_pinned_node

use_pinned_node(os.environ)

from tests.shipped import ROOT  # noqa: E402

from .bed import EMULATOR_PYTHON, Bed  # noqa: E402 - jsii must find its Node first


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Bed]]:
    """`beds(REGION)`: a fresh embedded AWS."""
    started: list[Path] = []

    def start(region: str) -> Bed:
        folder = tmp_path_factory.mktemp("bed")
        started.append(folder / "server")
        running = server.start(folder / "server", python=EMULATOR_PYTHON, project_root=ROOT, region=region)
        return Bed(running, folder)

    yield start
    for folder in started:
        server.stop(folder)
