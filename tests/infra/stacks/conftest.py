"""Plans of the shipped environments and the templates that they become."""

from __future__ import annotations

import os

import pytest

from infra.config.plan import Plan
from infra.node import use_pinned_node
from tests.shipped import plan_of

from .resources import Plans, Template, Templates

use_pinned_node(os.environ)


@pytest.fixture(scope="session")
def plan() -> Plans:
    """`plan(NAME, {"network.egress": "none"})`: the plan of a shipped environment, with dotted keys changed."""
    return plan_of


@pytest.fixture(scope="session")
def template() -> Templates:
    """`template(plan, PART)`: the synthesized template of one stack, for example "network" or "pool-trainer"."""
    assemblies: dict[tuple[int, bool], tuple[Plan, dict[str, Template]]] = {}

    def one(plan: Plan, part: str) -> Template:
        alone = part in ALONE
        key = (id(plan), alone)
        if key not in assemblies:
            assemblies[key] = (plan, synthesize(plan, alone=alone))
        return assemblies[key][1][part]

    return one


ALONE = ("network", "storage", "queue")
"""Stacks that need no other than one another: built without the rest, which saves seconds for each plan."""


def synthesize(plan: Plan, *, alone: bool) -> dict[str, Template]:
    """Templates by part: of every stack of the plan, or of the ALONE ones."""
    from infra.stacks.network import NetworkStack
    from infra.stacks.platform import build_app, build_platform
    from infra.stacks.queue import QueueStack
    from infra.stacks.storage import StorageStack

    app = build_app()
    if alone:
        StorageStack(app, plan, network=NetworkStack(app, plan))
        QueueStack(app, plan)
    else:
        build_platform(app, plan)
    return {stack.stack_name.removeprefix(f"{plan.name}-"): stack.template for stack in app.synth().stacks}
