"""What EKS refuses in a managed node group, each with its own message, at creation and on the way to a new template version."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from ...conftest import Embedded
from ...pools import pool
from ...resources import imported, ref

pytestmark = pytest.mark.emulator
_numbers = count()

_PRIMARY = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
_BLOCK = {
    "InstanceType": "p5en.48xlarge",
    "InstanceMarketOptions": {"MarketType": "capacity-block"},
    "CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}},
}


def _interfaces(*more: dict[str, Any]) -> dict[str, Any]:
    return {"NetworkInterfaces": [_PRIMARY, *more]}


# (node group properties, launch template data, what the refusal says)
REFUSED = {
    "types on both sides": (
        {},
        {"InstanceType": "g6.xlarge"},
        "instance types in both the node group and its launch template",
    ),
    "subnet in an interface": (
        {},
        {"NetworkInterfaces": [{**_PRIMARY, "SubnetId": imported("net-subnet0")}]},
        "must not specify a subnet id in its network interfaces",
    ),
    "groups beside interfaces": (
        {},
        {**_interfaces(), "SecurityGroupIds": [imported("net-efa")]},
        "Network interfaces and an instance-level security groups may not be specified",
    ),
    "spot in the template": ({}, {"InstanceMarketOptions": {"MarketType": "spot"}}, "must not request Spot Instances"),
    "device index 2": ({}, _interfaces({"NetworkCardIndex": 1, "DeviceIndex": 2}), "device index 2 on network card 1"),
    "same card and device": (
        {},
        _interfaces({"NetworkCardIndex": 1, "DeviceIndex": 1}, {"NetworkCardIndex": 1, "DeviceIndex": 1}),
        "network card 1, device 1 is used twice",
    ),
    "efa-only primary": (
        {},
        {"NetworkInterfaces": [{**_PRIMARY, "InterfaceType": "efa-only"}]},
        "cannot be of type efa-only",
    ),
    "no primary": ({}, {"NetworkInterfaces": [{"NetworkCardIndex": 1, "DeviceIndex": 1}]}, "primary network interface"),
    "block without market type": (
        {"CapacityType": "CAPACITY_BLOCK", "InstanceTypes": None},
        {key: value for key, value in _BLOCK.items() if key != "InstanceMarketOptions"},
        "needs market type capacity-block",
    ),
    "block without reservation": (
        {"CapacityType": "CAPACITY_BLOCK", "InstanceTypes": None},
        {key: value for key, value in _BLOCK.items() if key != "CapacityReservationSpecification"},
        "needs the reservation id",
    ),
    "block market without block type": ({"InstanceTypes": None}, _BLOCK, "needs capacity type CAPACITY_BLOCK"),
    "AMI type with image": ({}, {"ImageId": "ami-1"}, "AMI Type other than CUSTOM"),
    "release with image": (
        {"AmiType": "CUSTOM", "ReleaseVersion": "1.34.1-1"},
        {"ImageId": "ami-1"},
        "cannot specify the field releaseVersion when using custom AMIs",
    ),
    "CUSTOM without image": ({"AmiType": "CUSTOM"}, {}, "needs an image id"),
    "disk size with template": ({"DiskSize": 100}, {}, "Disk size must be specified within the launch template"),
    "absent subnet": ({"Subnets": ["subnet-absent"]}, {}, "The subnet ID 'subnet-absent' does not exist"),
    "absent cluster": ({"ClusterName": "absent"}, {}, "No cluster found for name: absent"),
    "absent template": ({"LaunchTemplate": {"Id": "lt-absent", "Version": "1"}}, {}, "lt-absent' does not exist"),
    "absent version": (
        {"LaunchTemplate": {"Id": ref("Template"), "Version": "7"}},
        {},
        "Could not find the specified version 7",
    ),
    "absent security group": ({}, {"SecurityGroupIds": ["sg-absent"]}, "The security group 'sg-absent' does not exist"),
    "absent placement group": ({}, {"Placement": {"GroupName": "absent"}}, "Placement Group 'absent' is unknown"),
    "desired above maximum": (
        {"ScalingConfig": {"MinSize": 0, "MaxSize": 2, "DesiredSize": 3}},
        {},
        "desired capacity 3 can't be greater than max size 2",
    ),
    "minimum above maximum": ({"ScalingConfig": {"MinSize": 3, "MaxSize": 2}}, {}, "Minimum capacity 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_creation_is_refused(aws: Embedded, case: str) -> None:
    properties, data, message = REFUSED[case]
    made = pool(**properties)
    made["Template"]["Properties"]["LaunchTemplateData"] |= data
    name = f"Rules{next(_numbers)}"
    assert aws.stack(name, made) == "ROLLBACK_COMPLETE"
    assert message in aws.reasons(name)


def test_a_new_template_version_is_checked_too(aws: Embedded) -> None:
    name = f"Rules{next(_numbers)}"
    assert aws.stack(name, pool()) == "CREATE_COMPLETE"
    made = pool()
    made["Template"]["Properties"]["LaunchTemplateData"] |= {"InstanceMarketOptions": {"MarketType": "spot"}}
    assert aws.stack(name, made, update=True) == "UPDATE_ROLLBACK_COMPLETE"
    assert "must not request Spot Instances" in aws.reasons(name)
    group = aws.client("eks").describe_nodegroup(
        clusterName="moe", nodegroupName=aws.physical_id(name, "Group").partition("/")[2]
    )
    assert group["nodegroup"]["launchTemplate"]["version"] == "1"
    aws.client("cloudformation").delete_stack(StackName=name)


@pytest.mark.parametrize("other", [{"Labels": {"a": "b"}}, {"ScalingConfig": {"MinSize": 0, "MaxSize": 5}}])
def test_a_version_update_is_not_combined_with_another(aws: Embedded, other: dict[str, Any]) -> None:
    name = f"Rules{next(_numbers)}"
    assert aws.stack(name, pool()) == "CREATE_COMPLETE"
    aws.clear_transcript()
    assert aws.stack(name, pool(ReleaseVersion="1.34.2-1", **other), update=True) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Version and ReleaseVersion updates cannot be combined with other updates" in aws.reasons(name)
    assert aws.operations("Group") == []
    aws.client("cloudformation").delete_stack(StackName=name)
