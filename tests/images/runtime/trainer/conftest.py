"""A bucket and queues for each test."""

from __future__ import annotations

import re

import pytest

from tests.images.runtime.trainer.fakes import Bed, bed


@pytest.fixture
def aws(local_aws: str, request: pytest.FixtureRequest) -> Bed:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return bed(local_aws, f"t{abs(hash(request.node.nodeid)) % 10**8}-{name}"[:50].rstrip("-"))
