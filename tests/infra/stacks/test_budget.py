"""The monthly budget: what it counts, whom it tells, and that a changed address does not collide with itself."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config.plan import Plan

from .resources import Plans, properties

TOPIC = "arn:aws:sns:us-west-2:123456789012:reference-p5en-alerts"


def test_limit_is_the_plans_and_only_the_environments_tag_counts(plan: Plans) -> None:
    budget = _budget(plan("reference-p5en"))["Budget"]
    assert budget["BudgetLimit"] == {"Amount": 2_500_000, "Unit": "USD"}
    assert (budget["BudgetType"], budget["TimeUnit"]) == ("COST", "MONTHLY")
    assert budget["CostFilters"] == {"TagKeyValue": ["user:moerl:environment$reference-p5en"]}


def test_the_tag_that_the_budget_counts_is_one_that_every_resource_carries(plan: Plans) -> None:
    planned = plan("reference-p5en")
    (counted,) = _budget(planned)["Budget"]["CostFilters"]["TagKeyValue"]
    key, value = counted.removeprefix("user:").split("$")
    assert planned.tags[key] == value


def test_topic_and_addresses_hear_of_80_and_100_percent_and_of_a_forecast_of_100(plan: Plans) -> None:
    notified = _budget(plan("reference-p5en"))["NotificationsWithSubscribers"]
    told = [(one["Notification"]["NotificationType"], one["Notification"]["Threshold"]) for one in notified]
    assert told == [("ACTUAL", 80), ("ACTUAL", 100), ("FORECASTED", 100)]
    for one in notified:
        assert one["Notification"]["ComparisonOperator"] == "GREATER_THAN"
        assert one["Notification"]["ThresholdType"] == "PERCENTAGE"
        assert [(each["SubscriptionType"], each["Address"]) for each in one["Subscribers"]] == [
            ("SNS", TOPIC),
            ("EMAIL", "ml-platform@example.com"),
        ]


def test_addresses_beyond_what_aws_takes_are_left_to_the_topic(plan: Plans) -> None:
    addresses = [f"person{number}@example.com" for number in range(12)]
    for one in _budget(plan("reference-p5en", {"alerts.emails": addresses}))["NotificationsWithSubscribers"]:
        assert len(one["Subscribers"]) == 11


def test_changed_addresses_change_the_name_since_they_replace_the_budget(plan: Plans) -> None:
    names = {
        _budget(plan("reference-p5en", changes))["Budget"]["BudgetName"]
        for changes in ({}, {"alerts.emails": ["other@example.com"]})
    }
    assert len(names) == 2
    assert all(name.startswith("reference-p5en-monthly-") for name in names)


def test_changed_thresholds_change_the_name_too(plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    from infra.stacks import budget

    before = _budget(plan("reference-p5en"))["Budget"]["BudgetName"]
    monkeypatch.setattr(budget, "THRESHOLDS", (("ACTUAL", 50),))
    assert _budget(plan("reference-p5en"))["Budget"]["BudgetName"] != before


def test_a_changed_limit_keeps_the_name_and_with_it_the_budgets_history(plan: Plans) -> None:
    before, after = (
        _budget(plan("reference-p5en", changes))["Budget"] for changes in ({}, {"budget.monthly_usd": 3_000_000})
    )
    assert before["BudgetName"] == after["BudgetName"]
    assert before["BudgetLimit"] != after["BudgetLimit"]


def test_an_environment_without_a_budget_has_no_budget_stack(plan: Plans) -> None:
    with pytest.raises(ValueError, match="reference-p5en has no budget"):
        _budget(plan("reference-p5en", {"budget": None}))


def _budget(planned: Plan) -> dict[str, Any]:
    import aws_cdk as cdk
    from aws_cdk import aws_sns as sns

    from infra.stacks.budget import BudgetStack
    from infra.stacks.platform import build_app

    app = build_app()
    topic = sns.Topic.from_topic_arn(cdk.Stack(app, "alerts"), "Topic", TOPIC)
    stack = BudgetStack(app, planned, topic=topic)
    (budget,) = properties(app.synth().get_stack_by_name(stack.stack_name).template, "AWS::Budgets::Budget")
    return budget
