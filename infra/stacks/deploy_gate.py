"""What may be rendered and read, but not deployed; and the plan's warnings, where the CDK CLI shows them."""

from __future__ import annotations

import aws_cdk as cdk

from infra.config.plan import Plan


def refusals(plan: Plan, *, embedded: bool) -> tuple[str, ...]:
    """Why the CDK entry must not synthesize: pins that nobody looked up, or pins that are made up. `moerl lock ENV` in it is
    for the caller to fill in (`faults.addressed`).

    `embedded` says that the AWS behind the endpoint is the embedded one, which alone accepts made-up pins.
    """
    reasons = []
    if plan.unresolved:
        reasons.append(
            f"{len(plan.unresolved)} pins are unresolved ({plan.unresolved[0]}, ...): run `moerl lock ENV`."
            " `moerl render` shows the stacks without them."
        )
    if plan.fixture_pins and not embedded:
        reasons.append("the pins are made up for tests and name nothing in AWS: run `moerl lock ENV`")
    return tuple(reasons)


def show_warnings(app: cdk.App, plan: Plan) -> None:
    """Puts every warning of the plan on the first stack, so that synth and deploy show each once."""
    first = next(stack for stack in app.node.children if isinstance(stack, cdk.Stack))
    for finding in plan.warnings:
        message = f"{finding.key}: {finding.why}. {finding.fix}"
        cdk.Annotations.of(first).add_warning_v2(f"moerl:{finding.rule}:{finding.key}", message)
