"""Stacks of different environments in one account never meet at a name."""

from __future__ import annotations

from typing import Any

from infra.config.plan import Plan
from infra.stacks.names import stack_names
from tests.infra.config.test_names import KINDS
from tests.shipped import document_of

from .conftest import synthesize
from .resources import Plans

NOT_OF_THE_ACCOUNT = {
    ("AWS::EKS::Addon", "AddonName"),
    ("AWS::EC2::VPCEndpoint", "ServiceName"),
    ("AWS::CloudWatch::Alarm", "MetricName"),
    ("AWS::IAM::Policy", "PolicyName"),
}
"""Names that AWS gives, and names inside one role."""


def test_every_stack_that_is_no_pool_has_a_kind_that_the_test_of_names_knows(plan: Plans) -> None:
    planned = plan("starter-p5en", {"images.bake_ami": True})
    parts = {name.removeprefix(f"{planned.name}-") for name in stack_names(planned)}
    assert {part for part in parts if not part.startswith("pool-")} == set(KINDS)


def test_two_environments_of_one_account_share_no_physical_name(plan: Plans) -> None:
    trainer = document_of("p6-b200")["pools"]["trainer"]
    longer = plan("p6-b200", {"name": "x", "pools.a-trainer": trainer, "pools.trainer": ...})
    shorter = plan("p6-b200", {"name": "x-a"})
    shared = _physical_names(longer) & _physical_names(shorter)
    assert {(kind, key) for kind, key, _ in shared} <= NOT_OF_THE_ACCOUNT


def _physical_names(plan: Plan) -> set[tuple[str, str, str]]:
    """(resource type, property, value) of every property that names its resource, and of the stacks themselves."""
    found = {("AWS::CloudFormation::Stack", "StackName", name) for name in stack_names(plan)}
    for template in synthesize(plan, alone=False).values():
        resources: dict[str, dict[str, Any]] = template.get("Resources", {})
        for resource in resources.values():
            for key, value in resource.get("Properties", {}).items():
                if isinstance(value, str) and key.endswith("Name"):
                    found.add((resource["Type"], key, value))
    return found
