"""What every stack of an environment shares: name, account and region, bootstrap qualifier, tags, protection."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from infra.config.names import stack_name
from infra.config.plan import Plan

UNTAGGED = ["AWS::EC2::PlacementGroup"]
"""A changed tag replaces a placement group, and with it every node of the pool."""


class PlanStack(cdk.Stack):
    """One stack of the plan. `part` is its name inside the environment, for example `network` or `pool-trainer`.

    `protected` says that it holds state: then it has termination protection while the environment is protected.
    """

    def __init__(self, scope: Construct, part: str, plan: Plan, *, description: str, protected: bool = False) -> None:
        super().__init__(
            scope,
            part,
            stack_name=stack_name(plan.name, part),
            description=description,
            env=cdk.Environment(account=plan.account, region=plan.region),
            synthesizer=cdk.DefaultStackSynthesizer(qualifier=plan.qualifier),
            termination_protection=protected and plan.protected,
            analytics_reporting=False,
            permissions_boundary=(
                cdk.PermissionsBoundary.from_name(plan.permissions_boundary) if plan.permissions_boundary else None
            ),
        )
        self.plan = plan
        for key, value in sorted(plan.tags.items()):
            cdk.Tags.of(self).add(key, value, exclude_resource_types=UNTAGGED)
