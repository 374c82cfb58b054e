"""A one-pool stack on the shared cluster: placement group, launch template, node group."""

from __future__ import annotations

from typing import Any

from .resources import Resources, att, imported, ref, resource, tags


def pool(**nodegroup: Any) -> Resources:
    """Node group 'Group' with template 'Template'; keyword arguments replace node group properties (None removes one)."""
    properties = {
        "ClusterName": "moe",
        "NodeRole": "arn:aws:iam::123456789012:role/moe/moe-node",
        "Subnets": [imported("net-subnet0")],
        "AmiType": "AL2023_x86_64_NVIDIA",
        "CapacityType": "ON_DEMAND",
        "InstanceTypes": ["g6.12xlarge"],
        "ScalingConfig": {"MinSize": 0, "MaxSize": 4},
        "LaunchTemplate": {"Id": ref("Template"), "Version": att("Template", "LatestVersionNumber")},
        **nodegroup,
    }
    return {
        "Placement": resource("EC2::PlacementGroup", {"Strategy": "cluster", "Tags": tags(pool="a")}),
        "Template": template(),
        "Group": resource("EKS::Nodegroup", {key: value for key, value in properties.items() if value is not None}),
    }


def template(**data: Any) -> dict[str, Any]:
    return resource("EC2::LaunchTemplate", {"LaunchTemplateData": {"Monitoring": {"Enabled": True}, **data}})
