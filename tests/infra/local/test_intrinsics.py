"""Each intrinsic resolves as CloudFormation does, and one without a value is an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from infra.local import intrinsics
from infra.local.intrinsics import Scope, UnresolvedError, resolve


def _attribute(logical_id: str, name: str) -> str:
    return f"{logical_id}/{name}"


def _scope() -> Scope:
    return Scope(
        template={
            "Conditions": {
                "Yes": {"Fn::Equals": [{"Ref": "AWS::Region"}, "us-west-2"]},
                "No": {"Fn::Not": [{"Condition": "Yes"}]},
                "Both": {"Fn::And": [{"Condition": "Yes"}, {"Condition": "No"}]},
                "Either": {"Fn::Or": [{"Condition": "Yes"}, {"Condition": "No"}]},
            },
            "Mappings": {"Map": {"us-west-2": {"zones": ["a", "b"]}}},
        },
        physical_ids={"Vpc": "vpc-1"},
        attribute=_attribute,
        parameters={"Size": "3"},
        pseudo={"AWS::Region": "us-west-2"},
        exports={"net-vpc": "vpc-9"},
        stack_output=lambda stack, output: f"{stack}:{output}",
    )


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ({"Ref": "Vpc"}, "vpc-1"),
        ({"Ref": "Size"}, "3"),
        ({"Ref": "AWS::Region"}, "us-west-2"),
        ({"Fn::GetAtt": ["Vpc", "CidrBlock"]}, "Vpc/CidrBlock"),
        ({"Fn::GetAtt": "Vpc.Nested.Name"}, "Vpc/Nested.Name"),
        ({"Fn::Join": ["-", ["a", {"Ref": "Vpc"}, True]]}, "a-vpc-1-true"),
        ({"Fn::Sub": "${Vpc} ${Vpc.Arn} ${!Keep} ${AWS::Region}"}, "vpc-1 Vpc/Arn ${Keep} us-west-2"),
        ({"Fn::Sub": ["${Own}", {"Own": {"Ref": "Vpc"}}]}, "vpc-1"),
        ({"Fn::Select": ["1", {"Fn::Split": [",", "a,b"]}]}, "b"),
        ({"Fn::If": ["Yes", "then", "else"]}, "then"),
        ({"Fn::If": ["Both", "then", "else"]}, "else"),
        ({"Fn::If": ["Either", "then", "else"]}, "then"),
        ({"Fn::ImportValue": {"Fn::Sub": "net-vpc"}}, "vpc-9"),
        ({"Fn::GetStackOutput": {"StackName": "Net", "OutputName": "Vpc"}}, "Net:Vpc"),
        ({"Fn::Base64": "a"}, "YQ=="),
        ({"Fn::Cidr": ["10.0.0.0/16", 2, 8]}, ["10.0.0.0/24", "10.0.1.0/24"]),
        ({"Fn::FindInMap": ["Map", {"Ref": "AWS::Region"}, "zones"]}, ["a", "b"]),
        ({"a": {"Ref": "AWS::NoValue"}, "b": [1, {"Ref": "AWS::NoValue"}]}, {"b": [1]}),
        ({"Ref": "Vpc", "Other": 1}, {"Ref": "Vpc", "Other": 1}),
    ],
)
def test_resolves(expression: Any, value: Any) -> None:
    assert resolve(expression, _scope()) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({"Ref": "Absent"}, "Ref Absent has no value"),
        ({"Fn::ImportValue": "absent"}, "export absent does not exist"),
        ({"Fn::GetAZs": ""}, "Fn::GetAZs is not known"),
        ({"Fn::FindInMap": ["Map", "eu", "zones"]}, "Map.eu.zones"),
        ({"Fn::If": ["Absent", 1, 2]}, "condition Absent is not declared"),
    ],
)
def test_an_expression_without_a_value_is_named(expression: Any, message: str) -> None:
    with pytest.raises(UnresolvedError, match=message):
        resolve(expression, _scope())


def test_conditions() -> None:
    values = {name: intrinsics.condition(name, _scope()) for name in ("Yes", "No", "Both", "Either")}
    assert values == {"Yes": True, "No": False, "Both": False, "Either": True}
