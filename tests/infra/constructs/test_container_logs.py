"""Log groups of the CloudWatch agent: the names it writes to, and an end to what they keep."""

from __future__ import annotations

import os
from pathlib import Path

import aws_cdk as cdk

from infra.config.loader import load
from infra.config.plan import build_plan
from infra.constructs.container_logs import container_log_groups
from infra.node import use_pinned_node
from infra.stacks.platform import build_app

use_pinned_node(os.environ)


def test_the_agent_s_groups_exist_before_it_and_forget() -> None:
    loaded = load(Path(__file__).parents[3] / "environments" / "starter-p5en.yaml")
    app = build_app()
    stack = cdk.Stack(app, "stack")
    container_log_groups(stack, build_plan(loaded.environment, loaded.pins))
    (template,) = (one.template for one in app.synth().stacks)
    assert {
        one["Properties"]["LogGroupName"]: one["Properties"]["RetentionInDays"]
        for one in template["Resources"].values()
    } == {
        "/aws/containerinsights/starter-p5en/application": 30,
        "/aws/containerinsights/starter-p5en/dataplane": 30,
        "/aws/containerinsights/starter-p5en/host": 30,
        "/aws/containerinsights/starter-p5en/performance": 7,
    }
