"""AWS::Budgets::Budget over ministack's Budgets API."""

from __future__ import annotations

from typing import Any

from . import shapes, state
from .gateway import call_ministack
from .registry import Created, Params, resource


def _budget(name: str, props: Params) -> dict[str, Any]:
    own = {"BudgetName": name, **props["Budget"]}
    if isinstance(own.get("BudgetLimit"), dict):
        own["BudgetLimit"] = {**own["BudgetLimit"], "Amount": str(own["BudgetLimit"]["Amount"])}
    budget: dict[str, Any] = shapes.to_api("budgets", "Budget", own)
    return budget


def _create(name: str, props: Params) -> Created:
    budget = _budget(name, props)
    sent: Params = {"AccountId": state.account(), "Budget": budget}
    if props.get("NotificationsWithSubscribers"):
        sent["NotificationsWithSubscribers"] = shapes.to_api(
            "budgets", "NotificationWithSubscribersList", props["NotificationsWithSubscribers"]
        )
    if props.get("ResourceTags"):
        sent["ResourceTags"] = shapes.tag_list(props["ResourceTags"])
    call_ministack("budgets", "CreateBudget", sent)
    return budget["BudgetName"], {"Id": budget["BudgetName"]}


def _update(name: str, old: Params, new: Params) -> dict[str, Any]:
    if old.get("Budget") != new.get("Budget"):
        call_ministack("budgets", "UpdateBudget", {"AccountId": state.account(), "NewBudget": _budget(name, new)})
    gone, fresh = shapes.tag_changes(old.get("ResourceTags"), new.get("ResourceTags"))
    arn = state.arn("budgets", f"budget/{name}", regional=False)
    if gone:
        call_ministack("budgets", "UntagResource", {"ResourceARN": arn, "ResourceTagKeys": gone})
    if fresh:
        call_ministack("budgets", "TagResource", {"ResourceARN": arn, "ResourceTags": shapes.tag_list(fresh)})
    return {"Id": name}


resource(
    "AWS::Budgets::Budget",
    create=_create,
    update=_update,
    delete=lambda name, _props: call_ministack(
        "budgets", "DeleteBudget", {"AccountId": state.account(), "BudgetName": name}
    ),
    properties="Budget NotificationsWithSubscribers ResourceTags",
    replaces="Budget/BudgetName NotificationsWithSubscribers",
    name_length=100,
)
