"""Plans of the shipped environments, and their stacks as the policy sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import pytest

from infra.config.plan import Plan
from infra.node import use_pinned_node
from infra.policy.check import synthesized
from infra.policy.stacks import Stack
from infra.stacks.platform import build_app, build_platform
from tests.shipped import plan_of

use_pinned_node(os.environ)


@pytest.fixture(scope="session")
def plan() -> Callable[[str], Plan]:
    """`plan(NAME)`: the plan of a shipped environment, with fixture pins."""
    return plan_of


@pytest.fixture(scope="session")
def stacks(plan: Callable[[str], Plan]) -> Callable[[str], tuple[Stack, ...]]:
    """`stacks(NAME)`: every stack of a shipped environment, synthesized once."""

    @cache
    def built(name: str) -> tuple[Stack, ...]:
        app = build_app()
        build_platform(app, plan(name))
        return synthesized(app)

    return built
