"""Who is told, of what, and where it can be seen: alert topic, capacity events, alarms, dashboard."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.alarms import cluster_alarms, nat_alarms, pool_alarms, queue_alarms
from infra.constructs.alert_topic import alert_topic
from infra.constructs.capacity_events import PoolGroup, capacity_events
from infra.constructs.dashboard import dashboard
from infra.constructs.stack import PlanStack
from infra.stacks.cluster import ClusterStack
from infra.stacks.network import NetworkStack
from infra.stacks.pool import PoolStack
from infra.stacks.queue import QueueStack


class ObservabilityStack(PlanStack):
    """Alarms and dashboard of one environment; `alerts` is the topic that a budget notifies as well."""

    def __init__(
        self,
        scope: Construct,
        plan: Plan,
        *,
        network: NetworkStack,
        queue: QueueStack,
        cluster: ClusterStack,
        pools: tuple[PoolStack, ...],
    ) -> None:
        super().__init__(scope, "observability", plan, description="Alerts, capacity events, alarms and dashboard")
        # The agent whose metrics the alarms read comes with the cluster: before it, silence would raise one.
        self.add_stack_dependency(cluster)
        self.alerts = alert_topic(self, plan)
        groups = [PoolGroup(pool=stack.pool, node_group=stack.node_group.attr_nodegroup_name) for stack in pools]
        planned = [group.pool for group in groups]
        capacity_events(self, plan, groups)
        queue_alarms(self, plan, self.alerts, tasks=queue.tasks, results=queue.results, dead_letter=queue.dead_letter)
        pool_alarms(self, plan, self.alerts, planned)
        cluster_alarms(self, plan, self.alerts)
        gateways = {zone: gateway.ref for zone, gateway in network.nat_gateways.items()}
        nat_alarms(self, plan, self.alerts, gateways)
        dashboard(
            self,
            plan,
            tasks=queue.tasks,
            results=queue.results,
            dead_letter=queue.dead_letter,
            pools=planned,
            nat_gateways=gateways,
        )
        cdk.CfnOutput(self, "AlertTopicArn", value=self.alerts.topic_arn)
