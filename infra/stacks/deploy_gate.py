"""What may be rendered and read, but not deployed."""

from __future__ import annotations

import aws_cdk as cdk

from infra.config.plan import Plan


def gate(app: cdk.App, plan: Plan, *, embedded: bool) -> None:
    """Adds errors that stop `cdk deploy` (and `cdk synth`) while pins are missing or made up, and shows the warnings.

    `embedded` says that the AWS behind the endpoint is the embedded one, which alone accepts made-up pins. The error
    stands on every stack, so that deploying a single one does not pass it by.
    """
    stacks = [stack for stack in app.node.children if isinstance(stack, cdk.Stack)]
    for stack in stacks:
        if plan.unresolved:
            cdk.Annotations.of(stack).add_error(
                f"{len(plan.unresolved)} pins are unresolved ({plan.unresolved[0]}, ...): run `moerl lock {plan.name}`"
            )
        if plan.fixture_pins and not embedded:
            cdk.Annotations.of(stack).add_error(
                f"the pins are made up for tests and name nothing in AWS: run `moerl lock {plan.name}`"
            )
    for finding in plan.warnings:
        message = f"{finding.key}: {finding.why}. {finding.fix}"
        cdk.Annotations.of(stacks[0]).add_warning_v2(f"moerl:{finding.rule}:{finding.key}", message)
