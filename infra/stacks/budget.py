"""Monthly cost budget of one environment, by its tag.

The tag filter sees what carries `moerl:environment` once that key is an active cost allocation tag, which only the
payer account can make it (`aws ce update-cost-allocation-tags-status`); until then AWS counts nothing. Charges that
carry no tag of ours stay outside: the upfront price of a capacity block, unused hours of a reservation, tax, support.
"""

from __future__ import annotations

import hashlib

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.stack import PlanStack

ENVIRONMENT_TAG = "moerl:environment"
THRESHOLDS = (("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100))
"""(kind, percent of the monthly limit)"""
MAX_EMAILS = 10
"""Addresses that one notification takes beside its topic; the topic reaches everyone else."""


class BudgetStack(PlanStack):
    """The budget, its notifications going to `topic`, whose policy admits AWS Budgets, and to the plan's addresses."""

    def __init__(self, scope: Construct, plan: Plan, *, topic: sns.ITopic) -> None:
        super().__init__(scope, "budget", plan, description="Monthly cost budget")
        if plan.budget_monthly_usd is None:
            raise ValueError(f"{plan.name} has no budget")
        subscribers = [budgets.CfnBudget.SubscriberProperty(subscription_type="SNS", address=topic.topic_arn)]
        subscribers += [
            budgets.CfnBudget.SubscriberProperty(subscription_type="EMAIL", address=email)
            for email in plan.emails[:MAX_EMAILS]
        ]
        self.budget = budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_name=_budget_name(plan),
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=plan.budget_monthly_usd, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:{ENVIRONMENT_TAG}${plan.name}"]},
            ),
            notifications_with_subscribers=[
                budgets.CfnBudget.NotificationWithSubscribersProperty(
                    notification=budgets.CfnBudget.NotificationProperty(
                        notification_type=kind,
                        comparison_operator="GREATER_THAN",
                        threshold=percent,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=subscribers,
                )
                for kind, percent in THRESHOLDS
            ],
        )


def _budget_name(plan: Plan) -> str:
    """The plan's name for it, with a digest of its notifications.

    CloudFormation replaces a budget whose notifications change, new one first: under an unchanged name it would meet
    the old one and fail.
    """
    notified = repr((THRESHOLDS, plan.names.alert_topic, plan.emails[:MAX_EMAILS]))
    return f"{plan.names.budget}-{hashlib.sha256(notified.encode()).hexdigest()[:8]}"
