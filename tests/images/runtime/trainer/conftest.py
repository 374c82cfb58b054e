"""A bucket and queues for each test, and no framework that another test has imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.images.runtime.trainer.fakes import Bed, bed


@pytest.fixture
def aws(at_local_aws: str, request: pytest.FixtureRequest) -> Bed:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return bed(at_local_aws, f"t{abs(hash(request.node.nodeid)) % 10**8}-{name}"[:50].rstrip("-"))


@pytest.fixture(autouse=True)
def _no_framework() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("miles", "slime")]:
        del sys.modules[name]
