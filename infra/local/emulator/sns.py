"""SNS topics and subscriptions over ministack's SNS API."""

from __future__ import annotations

import json
from typing import Any

from . import shapes
from .gateway import call_ministack
from .registry import Created, Params, begun, resource

_TOPIC_ATTRIBUTES = (
    "ContentBasedDeduplication",
    "DisplayName",
    "FifoTopic",
    "KmsMasterKeyId",
    "SignatureVersion",
    "TracingConfig",
)


def _call(name: str, **params: Any) -> dict[str, Any]:
    return call_ministack("sns", name, params)


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _topic_create(name: str, props: Params) -> Created:
    attributes = {key: _text(props[key]) for key in _TOPIC_ATTRIBUTES if key in props}
    fifo = ".fifo" if shapes.is_true(props.get("FifoTopic", False)) and "TopicName" not in props else ""
    sent = {"Name": props.get("TopicName", name + fifo), "Attributes": attributes}
    arn = _call("CreateTopic", **sent, Tags=shapes.tag_list(props.get("Tags")))["TopicArn"]
    begun(arn)
    _subscribe(arn, [], props.get("Subscription") or [])
    return arn, _topic_attributes(arn)


def _topic_attributes(arn: str) -> dict[str, Any]:
    return {"TopicArn": arn, "TopicName": arn.rpartition(":")[2]}


def _subscribe(arn: str, old: list[Params], new: list[Params]) -> None:
    """Bring the topic's inline subscriptions from the old to the new list."""
    for row in new:
        if row not in old:
            _call("Subscribe", TopicArn=arn, Protocol=row["Protocol"], Endpoint=row["Endpoint"])
    gone = [(row["Protocol"], row["Endpoint"]) for row in old if row not in new]
    for row in _call("ListSubscriptionsByTopic", TopicArn=arn)["Subscriptions"] if gone else []:
        if (row["Protocol"], row["Endpoint"]) in gone:
            _call("Unsubscribe", SubscriptionArn=row["SubscriptionArn"])


def _topic_update(arn: str, old: Params, new: Params) -> dict[str, Any]:
    for key in shapes.changed(old, new) & set(_TOPIC_ATTRIBUTES):
        _call("SetTopicAttributes", TopicArn=arn, AttributeName=key, AttributeValue=_text(new.get(key, "")))
    _subscribe(arn, old.get("Subscription") or [], new.get("Subscription") or [])
    gone, fresh = shapes.tag_changes(old.get("Tags"), new.get("Tags"))
    if gone:
        _call("UntagResource", ResourceArn=arn, TagKeys=gone)
    if fresh:
        _call("TagResource", ResourceArn=arn, Tags=shapes.tag_list(fresh))
    return _topic_attributes(arn)


resource(
    "AWS::SNS::Topic",
    create=_topic_create,
    update=_topic_update,
    delete=lambda arn, _props: _call("DeleteTopic", TopicArn=arn),
    properties=frozenset({*_TOPIC_ATTRIBUTES, "Subscription", "Tags", "TopicName"}),
    replaces="TopicName FifoTopic",
    name_length=256,
)

_SUBSCRIPTION_ATTRIBUTES = ("FilterPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy")


def _subscription_create(_name: str, props: Params) -> Created:
    attributes = {key: _text(props[key]) for key in _SUBSCRIPTION_ATTRIBUTES if key in props}
    target = {key: props[key] for key in ("TopicArn", "Protocol", "Endpoint")}
    arn = _call("Subscribe", **target, Attributes=attributes, ReturnSubscriptionArn=True)["SubscriptionArn"]
    return arn, {"Arn": arn}


def _subscription_update(arn: str, old: Params, new: Params) -> dict[str, Any]:
    undone = {"FilterPolicy": "{}", "FilterPolicyScope": "MessageAttributes", "RawMessageDelivery": "false"}
    for key in shapes.changed(old, new) & set(_SUBSCRIPTION_ATTRIBUTES):
        value = _text(new[key]) if key in new else undone.get(key, "")
        _call("SetSubscriptionAttributes", SubscriptionArn=arn, AttributeName=key, AttributeValue=value)
    return {"Arn": arn}


resource(
    "AWS::SNS::Subscription",
    create=_subscription_create,
    update=_subscription_update,
    delete=lambda arn, _props: _call("Unsubscribe", SubscriptionArn=arn),
    properties=frozenset({*_SUBSCRIPTION_ATTRIBUTES, "TopicArn", "Protocol", "Endpoint"}),
    replaces="Endpoint Protocol TopicArn",
    tags=None,
)
