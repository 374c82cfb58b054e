"""The API transcript: exactly the calls that a change causes, with who caused them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from botocore.exceptions import ClientError

from ..conftest import Embedded
from ..pools import pool

pytestmark = pytest.mark.emulator
_numbers = count()


@pytest.fixture
def name(aws: Embedded) -> Iterator[str]:
    made = f"Transcript{next(_numbers)}"
    assert aws.stack(made, pool()) == "CREATE_COMPLETE", aws.reasons(made)
    aws.clear_transcript()
    yield made
    aws.client("cloudformation").delete_stack(StackName=made)
    aws.clear_transcript()


def test_a_new_maximum_is_one_config_update(aws: Embedded, name: str) -> None:
    assert aws.stack(name, pool(ScalingConfig={"MinSize": 0, "MaxSize": 9}), update=True) == "UPDATE_COMPLETE"
    (entry,) = aws.request("GET", "/_moerl/transcript")
    cluster, _, group = aws.physical_id(name, "Group").partition("/")
    assert entry == {
        "service": "eks",
        "operation": "UpdateNodegroupConfig",
        "parameters": {"clusterName": cluster, "nodegroupName": group, "scalingConfig": {"minSize": 0, "maxSize": 9}},
        "origin": "cloudformation",
        "stack": name,
        "logical_id": "Group",
    }


def test_new_template_data_is_a_template_version_and_a_node_group_version(aws: Embedded, name: str) -> None:
    made = pool()
    made["Template"]["Properties"]["LaunchTemplateData"]["Monitoring"]["Enabled"] = False
    assert aws.stack(name, made, update=True) == "UPDATE_COMPLETE"
    assert aws.operations() == ["ec2:CreateLaunchTemplateVersion", "eks:UpdateNodegroupVersion"]


def test_a_release_is_a_version_update_without_force(aws: Embedded, name: str) -> None:
    assert aws.stack(name, pool(ReleaseVersion="1.34.2-20261101"), update=True) == "UPDATE_COMPLETE"
    (entry,) = aws.request("GET", "/_moerl/transcript")
    assert entry["operation"] == "UpdateNodegroupVersion"
    assert entry["parameters"]["releaseVersion"] == "1.34.2-20261101"
    assert "force" not in entry["parameters"]


def test_force_alone_calls_nothing_and_rides_on_the_next_version(aws: Embedded, name: str) -> None:
    assert aws.stack(name, pool(ForceUpdateEnabled=True), update=True) == "UPDATE_COMPLETE"
    assert aws.operations() == []
    changed = pool(ForceUpdateEnabled=True, ReleaseVersion="1.34.2-20261101")
    assert aws.stack(name, changed, update=True) == "UPDATE_COMPLETE"
    (entry,) = aws.request("GET", "/_moerl/transcript")
    assert entry["parameters"]["force"] is True


def test_an_unchanged_stack_calls_nothing(aws: Embedded, name: str) -> None:
    with pytest.raises(ClientError, match="No updates are to be performed"):
        aws.stack(name, pool(), update=True)
    assert aws.operations() == []


def test_a_client_is_told_from_cloudformation(aws: Embedded, name: str) -> None:
    cluster, _, group = aws.physical_id(name, "Group").partition("/")
    aws.client("eks").update_nodegroup_config(
        clusterName=cluster, nodegroupName=group, labels={"addOrUpdateLabels": {"a": "b"}}
    )
    aws.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=group)
    (entry,) = aws.request("GET", "/_moerl/transcript")
    assert (entry["origin"], entry["stack"], entry["operation"]) == ("client", None, "UpdateNodegroupConfig")


def test_a_refused_call_is_recorded_with_its_code(aws: Embedded, name: str) -> None:
    with pytest.raises(ClientError):
        aws.client("eks").delete_nodegroup(clusterName="moe", nodegroupName=name)
    (entry,) = aws.request("GET", "/_moerl/transcript")
    assert entry["error"] == "ResourceNotFoundException"
