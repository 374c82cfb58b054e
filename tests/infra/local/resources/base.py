"""Short ways to write CloudFormation by hand."""

from __future__ import annotations

from typing import Any

Resource = dict[str, Any]
Resources = dict[str, Resource]

REGION = "us-west-2"
ACCOUNT = "123456789012"
ZONES = ("us-west-2a", "us-west-2b")
EFA_CARDS = 16


def ref(name: str) -> dict[str, str]:
    return {"Ref": name}


def att(name: str, attribute: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, attribute]}


def imported(name: str) -> dict[str, str]:
    return {"Fn::ImportValue": name}


def sub(text: str) -> dict[str, str]:
    return {"Fn::Sub": text}


def tags(**values: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in values.items()]


def resource(kind: str, properties: dict[str, Any] | None = None, **attributes: Any) -> Resource:
    return {"Type": f"AWS::{kind}", **({"Properties": properties} if properties else {}), **attributes}


def allow(principal: str, actions: Any, resources: Any, **more: Any) -> dict[str, Any]:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": principal},
        "Action": actions,
        "Resource": resources,
        **more,
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def trust(principal: str, *actions: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": {"Service": principal}, "Action": list(actions or ("sts:AssumeRole",))}
    return {"Version": "2012-10-17", "Statement": [statement]}


def identity_policy(actions: Any, resources: Any) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": resources}]}
