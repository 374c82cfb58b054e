"""CloudFormation values become API parameters by the API's shapes, and what does not fit is refused by name."""

from __future__ import annotations

import pytest

from infra.local.emulator import shapes


def test_keys_take_the_apis_case_and_scalars_its_type() -> None:
    value = {"ClusterName": "c", "ScalingConfig": {"MinSize": "0", "MaxSize": 4}, "Labels": {"Pool/x": 1}}
    assert shapes.to_api("eks", "CreateNodegroupRequest", value) == {
        "clusterName": "c",
        "scalingConfig": {"minSize": 0, "maxSize": 4},
        "labels": {"Pool/x": "1"},
    }


def test_policy_documents_become_text() -> None:
    own = {"VpcId": "v", "PolicyDocument": {"Version": "2012-10-17"}}
    assert shapes.to_api("ec2", "CreateVpcEndpointRequest", own)["PolicyDocument"] == '{"Version": "2012-10-17"}'


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"Colour": "red"}, r"RequestLaunchTemplateData: extraneous key \[Colour\]"),
        ({"NetworkInterfaces": [{"CardIndex": 1}]}, r"NetworkInterfaces\[0\]: extraneous key \[CardIndex\]"),
        ({"Placement": "group"}, "Placement: expected an object"),
    ],
)
def test_a_key_without_a_member_is_refused_with_its_path(value: dict[str, object], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        shapes.to_api("ec2", "RequestLaunchTemplateData", value)


def test_tag_changes() -> None:
    old = [{"Key": "same", "Value": "1"}, {"Key": "gone", "Value": "1"}, {"Key": "changed", "Value": "1"}]
    new = {"same": "1", "changed": "2", "new": "3"}
    assert shapes.tag_changes(old, new) == (["gone"], {"changed": "2", "new": "3"})
    assert shapes.tag_changes(None, None) == ([], {})
