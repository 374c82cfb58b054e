"""Our own policy over synthesized stacks: what a general rule pack cannot know of EKS, EFA and this platform.

Plain functions over template data, so that they see L1 resources, which cdk-nag's EKS rules do in part alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import aws_cdk as cdk

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.cluster import control_plane
from infra.policy.data import buckets, keys, retention, transport
from infra.policy.iam import identities
from infra.policy.launch_templates import launch_templates
from infra.policy.network import exposure
from infra.policy.node_groups import node_groups
from infra.policy.stacks import Rule, Stack

RULES: tuple[Rule, ...] = (
    control_plane,
    node_groups,
    launch_templates,
    identities,
    transport,
    buckets,
    retention,
    keys,
    exposure,
)


def check(stacks: Iterable[Stack], plan: Plan) -> tuple[Finding, ...]:
    """Every finding of every rule, stack by stack."""
    return tuple(finding for stack in stacks for rule in RULES for finding in rule(stack, plan))


def synthesized(app: cdk.App) -> tuple[Stack, ...]:
    """The app's stacks, synthesized."""
    return tuple(
        Stack(name=stack.stack_name, template=stack.template, protected=bool(stack.termination_protection))
        for stack in app.synth().stacks
    )
