"""What stops a deploy: missing pins and made-up pins, on every stack."""

from __future__ import annotations

from dataclasses import replace

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Annotations, Match

from infra.config.plan import Plan
from infra.stacks.deploy_gate import gate

from .resources import Plans


@pytest.fixture
def pinned(plan: Plans) -> Plan:
    """A complete plan whose pins are real, as far as a test can say so."""
    return replace(plan("starter-p5en"), fixture_pins=False)


def errors(plan: Plan, *, embedded: bool) -> list[list[str]]:
    """Texts of the errors on each of two stacks."""
    app = cdk.App(analytics_reporting=False)
    stacks = [cdk.Stack(app, name) for name in ("first", "second")]
    gate(app, plan, embedded=embedded)
    return [
        [str(found.entry.data) for found in Annotations.from_stack(stack).find_error("*", Match.any_value())]
        for stack in stacks
    ]


@pytest.mark.parametrize("embedded", [True, False])
def test_complete_pins_of_an_account_may_be_deployed(pinned: Plan, embedded: bool) -> None:
    assert errors(pinned, embedded=embedded) == [[], []]


@pytest.mark.parametrize("embedded", [True, False])
def test_missing_pins_stop_every_stack_and_name_the_command(pinned: Plan, embedded: bool) -> None:
    for said in errors(replace(pinned, unresolved=("AMI release of pool x", "kubectl")), embedded=embedded):
        assert len(said) == 1
        assert "2 pins are unresolved (AMI release of pool x" in said[0]
        assert "moerl lock starter-p5en" in said[0]


def test_made_up_pins_stop_every_stack_outside_the_embedded_aws(pinned: Plan) -> None:
    made_up = replace(pinned, fixture_pins=True)
    assert errors(made_up, embedded=True) == [[], []]
    for said in errors(made_up, embedded=False):
        assert len(said) == 1
        assert "made up for tests" in said[0]


def test_warnings_are_shown_once_and_do_not_stop(pinned: Plan) -> None:
    assert pinned.warnings
    app = cdk.App(analytics_reporting=False)
    first, second = cdk.Stack(app, "first"), cdk.Stack(app, "second")
    gate(app, pinned, embedded=False)
    shown = [str(found.entry.data) for found in Annotations.from_stack(first).find_warning("*", Match.any_value())]
    assert len(shown) == len(pinned.warnings)
    for warning in pinned.warnings:
        assert any(warning.key in text and warning.fix in text for text in shown)
    assert Annotations.from_stack(second).find_warning("*", Match.any_value()) == []
