"""Requests that botocore writes are read back to the same parameters, and replies to the same values, in each protocol."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.local.emulator import wire
from infra.local.emulator.errors import ServiceError

_text = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=12)
_tags = st.lists(st.fixed_dictionaries({"Key": _text, "Value": _text}), min_size=1, max_size=3)

_interface = st.fixed_dictionaries(
    {"NetworkCardIndex": st.integers(0, 31), "DeviceIndex": st.integers(0, 1), "DeleteOnTermination": st.booleans()},
    optional={
        "InterfaceType": st.sampled_from(["efa", "efa-only", "interface"]),
        "Groups": st.lists(_text, min_size=1),
    },
)
_launch_template = st.fixed_dictionaries(
    {
        "LaunchTemplateName": st.text("abc-", min_size=3, max_size=9),
        "LaunchTemplateData": st.fixed_dictionaries(
            {"NetworkInterfaces": st.lists(_interface, min_size=1, max_size=20)},
            optional={"InstanceType": st.just("p5en.48xlarge"), "UserData": _text},
        ),
    },
    optional={
        "TagSpecifications": st.lists(
            st.fixed_dictionaries({"ResourceType": st.just("launch-template"), "Tags": _tags}), min_size=1, max_size=2
        )
    },
)
_nodegroup = st.fixed_dictionaries(
    {
        "clusterName": st.text("abc-", min_size=1, max_size=9),
        "nodegroupName": _text,
        "subnets": st.lists(_text, min_size=1, max_size=3),
        "nodeRole": _text,
    },
    optional={
        "labels": st.dictionaries(_text, _text, max_size=3),
        "scalingConfig": st.just({"minSize": 0, "maxSize": 4}),
    },
)
_asg_tags = st.fixed_dictionaries(
    {
        "Tags": st.lists(
            st.fixed_dictionaries({"Key": _text, "ResourceId": _text, "PropagateAtLaunch": st.booleans()}), min_size=1
        )
    }
)


@pytest.mark.parametrize(
    ("service", "operation", "parameters"),
    [
        ("ec2", "CreateLaunchTemplate", _launch_template),
        ("ec2", "DescribeSubnets", st.fixed_dictionaries({"SubnetIds": st.lists(_text, min_size=1, max_size=12)})),
        ("eks", "CreateNodegroup", _nodegroup),
        ("autoscaling", "CreateOrUpdateTags", _asg_tags),
        (
            "fsx",
            "UpdateFileSystem",
            st.just({"FileSystemId": "fs-0123456789a", "LustreConfiguration": {"DataCompressionType": "LZ4"}}),
        ),
    ],
)
def test_a_request_survives_the_wire(
    service: str, operation: str, parameters: st.SearchStrategy[dict[str, Any]]
) -> None:
    model = wire.service_model(service)

    @settings(max_examples=40, deadline=None)
    @given(parameters)
    def survives(sent: dict[str, Any]) -> None:
        method, path, headers, body, query = wire.serialize_request(model, operation, sent)
        name, received = wire.parse_request(model, method, path, headers, body, query)
        received.pop("clientRequestToken", None)  # botocore fills in idempotency tokens
        received.pop("ClientToken", None)
        received.pop("ClientRequestToken", None)
        assert (name, received) == (operation, sent)

    survives()


_MOMENT = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("service", "operation", "result"),
    [
        ("eks", "DescribeNodegroup", {"nodegroup": {"labels": {"a/b": "c"}, "createdAt": _MOMENT, "diskSize": 5}}),
        (
            "ec2",
            "DescribePlacementGroups",
            {"PlacementGroups": [{"GroupName": "a<&>b", "Tags": [{"Key": "k", "Value": ""}]}]},
        ),
        (
            "ec2",
            "DescribeLaunchTemplateVersions",
            {"LaunchTemplateVersions": [{"VersionNumber": 3, "DefaultVersion": True}]},
        ),
        ("autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroups": [{"MinSize": 0, "CreatedTime": _MOMENT}]}),
        ("fsx", "DescribeFileSystems", {"FileSystems": [{"StorageCapacity": 1200, "SubnetIds": ["subnet-1"]}]}),
    ],
)
def test_a_reply_survives_the_wire(service: str, operation: str, result: dict[str, Any]) -> None:
    model = wire.service_model(service)
    status, headers, body = wire.render_reply(model, operation, result)
    parsed = wire.parse_reply(model, operation, status, headers, body)
    parsed.pop("ResponseMetadata", None)
    assert parsed == result


@pytest.mark.parametrize("service", ["autoscaling", "ec2", "eks", "fsx"])
def test_an_error_survives_the_wire(service: str) -> None:
    model = wire.service_model(service)
    operation = model.operation_names[0]
    reply = wire.render_error(model, ServiceError("ResourceInUseException", "it is <in> use", 409))
    with pytest.raises(ServiceError, match="it is <in> use") as caught:
        wire.parse_reply(model, operation, *reply)
    assert (caught.value.code, caught.value.status) == ("ResourceInUseException", 409)


def test_a_value_that_no_reader_could_see_is_an_error() -> None:
    with pytest.raises(KeyError, match="no member 'colour'"):
        wire.render_reply(wire.service_model("eks"), "DescribeCluster", {"cluster": {"colour": "red"}})


def test_a_slash_in_a_path_parameter_is_not_a_separator() -> None:
    model = wire.service_model("eks")
    sent = {"clusterName": "c", "principalArn": "arn:aws:iam::1:role/a/b"}
    method, _, headers, body, query = wire.serialize_request(model, "DescribeAccessEntry", sent)
    path = "/clusters/c/access-entries/arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa%2Fb"
    assert wire.parse_request(model, method, path, headers, body, query) == ("DescribeAccessEntry", sent)
