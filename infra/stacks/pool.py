"""One node pool in a stack of its own, so that missing capacity rolls back a pool and never the cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from infra.config.plan import Plan
from infra.config.pool_plan import BlockPlan, PoolPlan
from infra.constructs.node_group import launch_template, node_group
from infra.constructs.pod_identity import allow
from infra.constructs.stack import PlanStack
from infra.stacks.cluster import ClusterStack
from infra.stacks.network import NetworkStack


class PoolStack(PlanStack):
    """Launch template, node group and, for a capacity block, its schedule."""

    def __init__(
        self, scope: Construct, plan: Plan, pool: PoolPlan, *, network: NetworkStack, cluster: ClusterStack
    ) -> None:
        super().__init__(scope, f"pool-{pool.name}", plan, description=f"Node pool {pool.name} ({pool.role})")
        self.pool = pool
        self.template = launch_template(
            self,
            "LaunchTemplate",
            plan=plan,
            pool=pool,
            cluster_security_group=cluster.cluster.attr_cluster_security_group_id,
            efa_security_group=network.efa_security_group.attr_group_id,
            join=cluster.join if pool.ami.id else None,
        )
        self.node_group = node_group(
            self,
            pool=pool,
            cluster_name=plan.names.cluster,
            node_role_arn=cluster.node_role.role_arn,
            subnet_ids=[network.accelerator_subnets[pool.zones[0]].ref],
            template=self.template,
        )
        self.add_stack_dependency(cluster)
        if pool.capacity.block is not None:
            self._schedule(pool.capacity.block)
        cdk.CfnOutput(self, "NodeGroupName", value=self.node_group.attr_nodegroup_name)

    def _schedule(self, block: BlockPlan) -> None:
        """Up at the start, a save signal and down to 0 before the end. EventBridge Scheduler calls the services itself."""
        plan, pool = self.plan, self.pool
        name = self.node_group.attr_nodegroup_name
        parameter = f"arn:{plan.partition}:ssm:{plan.region}:{plan.account}:parameter{block.save_signal_parameter}"
        group_arn = f"arn:{plan.partition}:scheduler:{plan.region}:{plan.account}:schedule-group/{block.schedule_group}"
        role = iam.Role(
            self,
            "ScheduleRole",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": plan.account, "aws:SourceArn": group_arn}},
            ),
        )
        role.add_to_policy(allow(["eks:UpdateNodegroupConfig"], [self.node_group.attr_arn]))
        role.add_to_policy(allow(["ssm:PutParameter"], [parameter]))
        group = scheduler.CfnScheduleGroup(self, "ScheduleGroup", name=block.schedule_group)

        def at(identifier: str, when: datetime, service_call: str, arguments: dict[str, object]) -> None:
            schedule = scheduler.CfnSchedule
            schedule(
                self,
                identifier,
                group_name=group.ref,
                description=f"{plan.name}/{pool.name}: {identifier} for capacity block {pool.capacity.reservation_id}",
                schedule_expression=f"at({when.astimezone(UTC):%Y-%m-%dT%H:%M:%S})",
                schedule_expression_timezone="UTC",
                flexible_time_window=schedule.FlexibleTimeWindowProperty(mode="OFF"),
                target=schedule.TargetProperty(
                    arn=f"arn:{plan.partition}:scheduler:::aws-sdk:{service_call}",
                    role_arn=role.role_arn,
                    input=self.to_json_string(arguments),
                    retry_policy=schedule.RetryPolicyProperty(
                        maximum_event_age_in_seconds=900, maximum_retry_attempts=30
                    ),
                ),
            )

        def sized(minimum: int, desired: int) -> dict[str, object]:
            return {
                "ClusterName": plan.names.cluster,
                "NodegroupName": name,
                "ScalingConfig": {"MinSize": minimum, "MaxSize": pool.size.max, "DesiredSize": desired},
            }

        at("ScaleUp", block.scale_up_at, "eks:updateNodegroupConfig", sized(0, pool.size.max))
        at(
            "SaveSignal",
            block.save_signal_at,
            "ssm:putParameter",
            {
                "Name": block.save_signal_parameter,
                "Type": "String",
                "Overwrite": True,
                "Value": f"save before {block.scale_down_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            },
        )
        at("ScaleDown", block.scale_down_at, "eks:updateNodegroupConfig", sized(0, 0))
