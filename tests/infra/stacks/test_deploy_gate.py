"""What stops a deploy: missing pins and made-up pins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import aws_cdk as cdk
import pytest

from infra.config.plan import Plan
from infra.stacks.deploy_gate import refusals, show_warnings

from .resources import Plans


@pytest.fixture
def pinned(plan: Plans) -> Plan:
    """A complete plan whose pins are real, as far as a test can say so."""
    return replace(plan("starter-p5en"), fixture_pins=False)


@pytest.mark.parametrize("embedded", [True, False])
def test_complete_pins_of_an_account_may_be_deployed(pinned: Plan, embedded: bool) -> None:
    assert refusals(pinned, embedded=embedded) == ()


@pytest.mark.parametrize("embedded", [True, False])
def test_missing_pins_stop_a_deploy_and_name_the_command(pinned: Plan, embedded: bool) -> None:
    (said,) = refusals(replace(pinned, unresolved=("AMI release of pool x", "kubectl")), embedded=embedded)
    assert "2 pins are unresolved (AMI release of pool x" in said
    assert "`moerl lock ENV`" in said


def test_made_up_pins_stop_a_deploy_outside_the_embedded_aws(pinned: Plan) -> None:
    made_up = replace(pinned, fixture_pins=True)
    assert refusals(made_up, embedded=True) == ()
    (said,) = refusals(made_up, embedded=False)
    assert "made up for tests" in said


def test_warnings_are_shown_once_and_do_not_stop(pinned: Plan, tmp_path: Path) -> None:
    assert pinned.warnings
    app = cdk.App(analytics_reporting=False, outdir=str(tmp_path))
    cdk.Stack(app, "first")
    cdk.Stack(app, "second")
    show_warnings(app, pinned)
    app.synth()
    shown = annotations(tmp_path, "first", "aws:cdk:warning")
    assert len(shown) == len(pinned.warnings)
    for warning in pinned.warnings:
        assert any(warning.key in text and warning.fix in text for text in shown)
    assert annotations(tmp_path, "second", "aws:cdk:warning") == []
    assert annotations(tmp_path, "first", "aws:cdk:error") == []


def annotations(assembly: Path, stack: str, kind: str) -> list[str]:
    """Read from the assembly, as the CLI does: two packages that pip unpacks into one folder give jsii's struct two names."""
    artifact = json.loads((assembly / "manifest.json").read_text())["artifacts"][stack]
    metadata = json.loads((assembly / artifact["additionalMetadataFile"]).read_text())
    return [entry["data"] for entries in metadata.values() for entry in entries if entry["type"] == kind]
