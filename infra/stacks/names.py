"""Names of CloudFormation stacks, without importing the CDK."""

from __future__ import annotations

from infra.config.names import stack_name
from infra.config.plan import Plan


def stack_names(plan: Plan) -> tuple[str, ...]:
    """CloudFormation names of the plan's stacks, in deploy order."""
    parts = ["network", "storage", "queue", "cluster"]
    parts += [f"pool-{pool.name}" for pool in plan.pools if pool.role != "system"]
    parts += ["access", "images", *(["ami"] if plan.bake else [])]
    parts += ["observability", *(["budget"] if plan.budget_monthly_usd else [])]
    return tuple(stack_name(plan.name, part) for part in parts)


def toolkit_name(qualifier: str) -> str:
    """Stack of the CDK bootstrap resources that carry this qualifier."""
    return f"{qualifier}-toolkit"
