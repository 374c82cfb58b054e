"""Every shipped environment passes our own rules, cdk-nag and cfn-lint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import aws_cdk as cdk
import pytest
import yaml
from aws_cdk import aws_sqs as sqs
from cfnlint.api import ManualArgs, lint

from infra.config.loader import load_text
from infra.config.plan import Plan, build_plan
from infra.constructs.acknowledge import acknowledge
from infra.local.pins import fixture_pins
from infra.policy.check import check, synthesized
from infra.policy.nag import nag
from infra.policy.stacks import Stack, resources
from infra.stacks.platform import build_app, build_platform
from tests.shipped import plan_of

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = sorted(path.stem for path in (ROOT / "environments").glob("*.yaml") if not path.stem.endswith(".lock"))

Plans = Callable[[str], Plan]
Stacks = Callable[[str], tuple[Stack, ...]]

LINT_ACCEPTED = {
    "W3010": "zones are named in the environment: a reservation, a capacity block and its subnet lie in exactly one",
}


def nag_findings(plan: Plan, folder: Path) -> list[str]:
    app = build_app(outdir=folder)
    build_platform(app, plan)
    return [finding.text(plan.name) for finding in nag(app)]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_our_rules_find_nothing(name: str, plan: Plans, stacks: Stacks) -> None:
    assert [finding.text(name) for finding in check(stacks(name), plan(name))] == []


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_cdk_nag_finds_nothing_that_is_not_acknowledged(name: str, plan: Plans, tmp_path: Path) -> None:
    assert nag_findings(plan(name), tmp_path) == []


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_only_the_uploader_brings_checkpoints_to_s3(name: str, stacks: Stacks) -> None:
    """FSx, linked to a bucket, would store every save a second time, under names that nothing prunes."""
    linking = {"AutoImportPolicy", "ExportPath", "ImportPath"}
    built = stacks(name)
    associations = [one for stack in built for one in resources(stack, "AWS::FSx::DataRepositoryAssociation")]
    settings = {
        setting
        for stack in built
        for system in resources(stack, "AWS::FSx::FileSystem")
        for setting in system.properties["LustreConfiguration"]
    }
    assert (associations, settings & linking) == ([], set())


# B76: acknowledgements stand on constructs, so they follow the configuration.
@pytest.mark.parametrize(
    "changes",
    [
        {"network": {"zones": ["us-west-2a", "us-west-2b"], "accelerator_zone": "us-west-2b"}},
        {"network": {"zones": ["us-west-2b", "us-west-2a", "us-west-2c"], "accelerator_zone": "us-west-2a"}},
        {"network": {"zones": ["us-west-2a", "us-west-2b"], "accelerator_zone": "us-west-2b", "egress": "none"}},
        {"kubernetes": {"version": "1.35", "endpoint": {"public_cidrs": ["203.0.113.0/24"]}}},
        {"checkpoints": {"scratch": "fsx", "scratch_gib": 1200}},
        {"checkpoints": {"bucket": "some-checkpoints"}},
        {"images": {"bake_ami": True}},
    ],
    ids=["two-zones", "three-zones-reordered", "no-egress", "public-endpoint", "fsx", "adopted-bucket", "baked-ami"],
)
def test_findings_stay_acknowledged_in_other_configurations(
    changes: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    document = yaml.safe_load((ROOT / "environments" / "starter-p5en.yaml").read_text(encoding="utf-8"))
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value}
    loaded = load_text(yaml.safe_dump(document), "changed", pins=fixture_pins("1.35"))
    changed = build_plan(loaded.environment, loaded.pins, loaded.warnings)
    assert nag_findings(changed, tmp_path) == []


def test_a_baked_ami_passes_our_rules_and_cfn_lint() -> None:
    baking = plan_of("starter-p5en", {"images.bake_ami": True})
    app = build_app()
    build_platform(app, baking)
    built = synthesized(app)
    assert [finding.text("x") for finding in check(built, baking)] == []
    template = next(stack.template for stack in built if stack.name.endswith("-ami"))
    assert lint(json.dumps(template), config=ManualArgs(regions=[baking.region])) == []


def test_an_unacknowledged_finding_is_reported_on_its_construct(tmp_path: Path) -> None:
    app = build_app(outdir=tmp_path)
    sqs.Queue(cdk.Stack(app, "stack"), "Plain")
    assert {(found.rule, found.key) for found in nag(app)} == {
        ("AwsSolutions-SQS3", "stack/Plain/Resource"),
        ("AwsSolutions-SQS4", "stack/Plain/Resource"),
    }


def test_an_acknowledgement_holds_for_its_own_construct_and_its_own_finding(tmp_path: Path) -> None:
    app = build_app(outdir=tmp_path)
    stack = cdk.Stack(app, "stack")
    known, other = sqs.Queue(stack, "Known"), sqs.Queue(stack, "Other")
    acknowledge(known, "AwsSolutions-SQS3", "it is a dead-letter queue itself")
    found = {(finding.rule, finding.key) for finding in nag(app)}
    assert ("AwsSolutions-SQS3", f"{known.node.path}/Resource") not in found
    assert {
        ("AwsSolutions-SQS4", f"{known.node.path}/Resource"),
        ("AwsSolutions-SQS3", f"{other.node.path}/Resource"),
    } <= found


def test_acknowledgements_leave_no_trace_in_templates(stacks: Stacks) -> None:
    assert "acknowledg" not in json.dumps([stack.template for stack in stacks("starter-p5en")]).lower()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_cfn_lint_finds_nothing_but_what_is_accepted(name: str, plan: Plans, stacks: Stacks) -> None:
    arguments = ManualArgs(regions=[plan(name).region])
    matches = [
        (stack.name, match.rule.id, match.message)
        for stack in stacks(name)
        for match in lint(json.dumps(stack.template), config=arguments)
    ]
    assert [match for match in matches if match[1] not in LINT_ACCEPTED] == []
    assert {match[1] for match in matches} == set(LINT_ACCEPTED)


def test_cfn_lint_does_read_the_templates(plan: Plans, stacks: Stacks) -> None:
    broken = json.loads(json.dumps(next(one for one in stacks("starter-p5en") if one.name.endswith("-queue")).template))
    for resource in broken["Resources"].values():
        if resource["Type"] == "AWS::SQS::Queue":
            resource["Properties"]["VisibilityTimeout"] = -1
    found = lint(json.dumps(broken), config=ManualArgs(regions=[plan("starter-p5en").region]))
    assert {match.rule.id for match in found} == {"E3034"}


def test_an_unprotected_environment_may_leave_its_stacks_unprotected(plan: Plans, stacks: Stacks) -> None:
    unprotected = [replace(stack, protected=False) for stack in stacks("starter-p5en")]
    protected_plan, free_plan = plan("starter-p5en"), replace(plan("starter-p5en"), protected=False)
    assert {finding.rule for finding in check(unprotected, protected_plan)} == {"policy.data.termination-protection"}
    assert check(unprotected, free_plan) == ()
