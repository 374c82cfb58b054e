"""Launch template and managed node group of one pool, from the Plan's numbers, as L1 resources.

CDK's L2 classes cannot express any of the parts that matter here: EFA interfaces, capacity reservations, market type,
update strategy, repair overrides; they refuse p5en with the NVIDIA AMI, cannot parse p6-b200, and force updates past
disruption budgets (checked against aws-cdk-lib 2.275).
"""

from __future__ import annotations

import hashlib

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks as eks
from constructs import Construct

from infra.catalog.node_repair import MIN_REPAIR_WAIT_MINUTES, SOFT_REASONS
from infra.config.environment import CapacityType
from infra.config.node_data import pool_user_data
from infra.config.pins import UNRESOLVED_TEXT
from infra.config.plan import Plan
from infra.config.pool_plan import PoolPlan
from infra.config.user_data import JoinData

METADATA_HOP_LIMIT = 2
"""Pods without Pod Identity (EBS CSI's node part, for one) read region and zone through one more hop."""
ROOT_DEVICE = "/dev/xvda"
GPU_ROOT_THROUGHPUT_MIBPS = 500
REPAIR_THRESHOLD_PERCENT = 20

EKS_CAPACITY: dict[CapacityType, str] = {
    "on_demand": "ON_DEMAND",
    "reservation": "ON_DEMAND",
    "spot": "SPOT",
    "capacity_block": "CAPACITY_BLOCK",
}


def launch_template(
    scope: Construct,
    identifier: str,
    *,
    plan: Plan,
    pool: PoolPlan,
    cluster_security_group: str,
    efa_security_group: str,
    join: JoinData | None,
) -> ec2.CfnLaunchTemplate:
    """The pool's launch template. `join` is given for a custom AMI, whose NodeConfig must be complete.

    Security groups stand on the interfaces when there are any, else at top level: EC2 takes one of the two. Only a
    capacity block's template names the instance type, since EKS refuses it in both places.
    """
    template = ec2.CfnLaunchTemplate
    groups = [cluster_security_group, efa_security_group]
    interfaces = [
        template.NetworkInterfaceProperty(
            network_card_index=interface.card,
            device_index=interface.device,
            interface_type=interface.kind,
            groups=[efa_security_group] if interface.kind == "efa-only" else groups,
            delete_on_termination=True,
        )
        for interface in pool.interfaces
    ]
    block = pool.capacity.type == "capacity_block"
    data = template.LaunchTemplateDataProperty(
        image_id=pool.ami.id,
        instance_type=pool.instance_types[0] if block else None,
        instance_market_options=template.InstanceMarketOptionsProperty(market_type="capacity-block") if block else None,
        capacity_reservation_specification=_reservation(pool),
        placement=_placement(scope, pool),
        network_interfaces=interfaces or None,
        security_group_ids=None if interfaces else [cluster_security_group],
        metadata_options=template.MetadataOptionsProperty(
            http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=METADATA_HOP_LIMIT
        ),
        block_device_mappings=[
            template.BlockDeviceMappingProperty(
                device_name=ROOT_DEVICE,
                ebs=template.EbsProperty(
                    volume_size=pool.root_volume_gib,
                    volume_type="gp3",
                    throughput=GPU_ROOT_THROUGHPUT_MIBPS if pool.is_gpu else None,
                    encrypted=True,
                    delete_on_termination=True,
                ),
            )
        ],
        tag_specifications=[
            template.TagSpecificationProperty(resource_type=kind, tags=_instance_tags(plan, pool))
            for kind in ("instance", "volume", "network-interface")
        ],
        user_data=cdk.Fn.base64(pool_user_data(pool, join)),
    )
    return template(scope, identifier, launch_template_data=data)


def node_group(
    scope: Construct,
    *,
    pool: PoolPlan,
    cluster_name: str,
    node_role_arn: str,
    subnet_ids: list[str],
    template: ec2.CfnLaunchTemplate,
) -> eks.CfnNodegroup:
    """The pool's managed node group.

    It has no fixed name, and its construct id carries a digest of everything whose change replaces it, so that a
    replacement shows as a new resource in a diff and never meets its own old name.
    """
    group = eks.CfnNodegroup
    custom = pool.ami.id is not None
    return group(
        scope,
        f"NodeGroup{replacement_digest(pool)}",
        cluster_name=cluster_name,
        node_role=node_role_arn,
        subnets=subnet_ids,
        ami_type=None if custom else pool.ami.type,
        release_version=None if custom else pool.ami.release or UNRESOLVED_TEXT,
        capacity_type=EKS_CAPACITY[pool.capacity.type],
        instance_types=None if pool.capacity.type == "capacity_block" else list(pool.instance_types),
        launch_template=group.LaunchTemplateSpecificationProperty(
            id=template.ref, version=template.attr_latest_version_number
        ),
        scaling_config=group.ScalingConfigProperty(
            min_size=pool.size.min, max_size=pool.size.max, desired_size=pool.size.desired
        ),
        update_config=group.UpdateConfigProperty(
            max_unavailable=1, update_strategy="DEFAULT" if pool.capacity.type == "spot" else "MINIMAL"
        ),
        force_update_enabled=False,
        labels=dict(pool.labels),
        taints=[
            group.TaintProperty(key=taint.key, value=taint.value or None, effect=taint.effect) for taint in pool.taints
        ]
        or None,
        node_repair_config=_repair(pool),
    )


def replacement_digest(pool: PoolPlan) -> str:
    """Eight hex digits over what EKS cannot change in place: types, zones, image kind, purchase type."""
    parts = (*pool.instance_types, *pool.zones, pool.ami.type or "CUSTOM", EKS_CAPACITY[pool.capacity.type])
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8].upper()


def _reservation(pool: PoolPlan) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
    template = ec2.CfnLaunchTemplate
    if pool.capacity.reservation_id:
        return template.CapacityReservationSpecificationProperty(
            capacity_reservation_target=template.CapacityReservationTargetProperty(
                capacity_reservation_id=pool.capacity.reservation_id
            )
        )
    if pool.capacity.type == "on_demand":
        # Said, since a tool that leaves it to 'none' pays for an open reservation and never uses it.
        return template.CapacityReservationSpecificationProperty(capacity_reservation_preference="open")
    return None


def _placement(scope: Construct, pool: PoolPlan) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
    if pool.placement is None:
        return None
    if pool.placement.create:
        name = ec2.CfnPlacementGroup(scope, "PlacementGroup", strategy="cluster").ref
    else:
        name = pool.placement.name or ""
    return ec2.CfnLaunchTemplate.PlacementProperty(group_name=name)


def _instance_tags(plan: Plan, pool: PoolPlan) -> list[cdk.CfnTag]:
    """Tags that never change for a pool. The file's own tags reach instances through the Auto Scaling group
    (`moerl pool tag`): in here, editing one would make a new template version and roll every node."""
    return [
        cdk.CfnTag(key="Name", value=f"{plan.name}-{pool.name}"),
        cdk.CfnTag(key="moerl:environment", value=plan.name),
        cdk.CfnTag(key="moerl:pool", value=pool.name),
    ]


def _repair(pool: PoolPlan) -> eks.CfnNodegroup.NodeRepairConfigProperty:
    group = eks.CfnNodegroup
    overrides = [
        group.NodeRepairConfigOverridesProperty(
            node_monitoring_condition=soft.condition,
            node_unhealthy_reason=soft.reason,
            min_repair_wait_time_mins=MIN_REPAIR_WAIT_MINUTES,
            repair_action="NoAction",
        )
        for soft in SOFT_REASONS
    ]
    return group.NodeRepairConfigProperty(
        enabled=True,
        max_parallel_nodes_repaired_count=1,
        max_unhealthy_node_threshold_percentage=REPAIR_THRESHOLD_PERCENT,
        node_repair_config_overrides=overrides if pool.role == "trainer" else None,
    )
