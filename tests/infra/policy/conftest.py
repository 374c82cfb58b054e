"""Plans of the shipped environments, and their stacks as the policy sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from infra.catalog import CATALOG
from infra.config.loader import load
from infra.config.plan import Plan, build_plan
from infra.local.pins import fixture_pins
from infra.node import use_pinned_node
from infra.policy.check import synthesized
from infra.policy.stacks import Stack
from infra.stacks.platform import build_app, build_platform

use_pinned_node(os.environ)

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def plan() -> Callable[[str], Plan]:
    """`plan(NAME)`: the plan of a shipped environment, with fixture pins."""

    @cache
    def built(name: str) -> Plan:
        loaded = load(ROOT / "environments" / f"{name}.yaml", pins=fixture_pins("1.35", CATALOG.addons))
        return build_plan(loaded.environment, loaded.pins, loaded.warnings)

    return built


@pytest.fixture(scope="session")
def stacks(plan: Callable[[str], Plan]) -> Callable[[str], tuple[Stack, ...]]:
    """`stacks(NAME)`: every stack of a shipped environment, synthesized once."""

    @cache
    def built(name: str) -> tuple[Stack, ...]:
        app = build_app()
        build_platform(app, plan(name))
        return synthesized(app)

    return built
