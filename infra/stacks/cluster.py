"""Control plane, system node group, add-ons, access entries and Pod Identity of one cluster.

Order matters and CloudFormation knows none of it by itself: CNI, kube-proxy and the Pod Identity agent before the first
node, everything with pods of its own after it, and each role's association before the add-on that uses it.
"""

from __future__ import annotations

import hashlib
import json

import aws_cdk as cdk
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.pins import UNRESOLVED_TEXT
from infra.config.plan import AddonPlan, Plan
from infra.config.pool_plan import PoolPlan
from infra.config.user_data import JoinData
from infra.constructs.acknowledge import acknowledge
from infra.constructs.container_logs import container_log_groups
from infra.constructs.node_group import launch_template, node_group
from infra.constructs.pod_identity import association, pod_role
from infra.constructs.stack import PlanStack
from infra.constructs.workload_access import Identity, identities
from infra.stacks.network import NetworkStack
from infra.stacks.queue import QueueStack
from infra.stacks.storage import StorageStack

CONTROL_PLANE_LOGS = ("api", "audit", "authenticator", "controllerManager", "scheduler")
CONTROL_PLANE_LOG_RETENTION = logs.RetentionDays.THREE_MONTHS
ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"
NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonSSMManagedInstanceCore")
LOG_SHIPPER = "amazon-cloudwatch-observability"
TOLERATE_ALL = [{"operator": "Exists"}]

ADDON_VALUES: dict[str, dict[str, object]] = {
    # Warm addresses are cluster-wide: few of them, since a GPU node runs few pods and 48 nodes share one subnet.
    "vpc-cni": {
        "enableNetworkPolicy": "true",
        "env": {"MINIMUM_IP_TARGET": "16", "WARM_IP_TARGET": "4", "WARM_ENI_TARGET": "0"},
    },
    "aws-ebs-csi-driver": {"node": {"tolerateAllTaints": True}},
    "aws-fsx-csi-driver": {"node": {"tolerateAllTaints": True}},
    "eks-node-monitoring-agent": {"monitoringAgent": {"tolerations": TOLERATE_ALL}},
    # One DCGM owner per node: the platform chart runs the exporter, so the add-on's own stays off.
    LOG_SHIPPER: {
        "containerLogs": {"enabled": True},
        "dcgmExporter": {"enabled": False},
        "neuronMonitor": {"enabled": False},
        "tolerations": TOLERATE_ALL,
    },
}


class ClusterStack(PlanStack):
    """One EKS cluster. The cluster's name is fixed; everything else may be replaced."""

    def __init__(
        self, scope: Construct, plan: Plan, *, network: NetworkStack, storage: StorageStack, queue: QueueStack
    ) -> None:
        super().__init__(
            scope, "cluster", plan, description="EKS control plane, add-ons and identities", protected=True
        )
        self.add_stack_dependency(queue)
        self.cluster = self._control_plane(network, storage)
        self.node_role = self._node_role()
        self.join = JoinData(
            cluster=plan.names.cluster,
            endpoint=self.cluster.attr_endpoint,
            certificate_authority=self.cluster.attr_certificate_authority_data,
            service_cidr=plan.kubernetes.service_cidr,
        )
        for arn in plan.kubernetes.admins:
            # By principal: EKS takes one entry for each, and a place in the list would pass from one to the next.
            identifier = f"Admin{hashlib.sha256(arn.encode()).hexdigest()[:8].upper()}"
            access_entry(self, identifier, plan=plan, cluster=self.cluster, principal_arn=arn)
        associations = self._associations(identities(plan, data_key_arn=storage.data_key.key_arn))
        before = [self._addon(addon, associations) for addon in plan.addons if not addon.after_nodes]
        system = next(pool for pool in plan.pools if pool.role == "system")
        nodes = self._system_nodes(system, network)
        for addon in before:
            nodes.add_resource_dependency(addon)
        log_groups = container_log_groups(self, plan)
        for planned in plan.addons:
            if planned.after_nodes:
                addon = self._addon(planned, associations)
                addon.add_resource_dependency(nodes)
                if planned.name == LOG_SHIPPER:
                    addon.node.add_dependency(*log_groups)
        cdk.CfnOutput(self, "ClusterName", value=self.cluster.ref)
        cdk.CfnOutput(self, "ClusterEndpoint", value=self.cluster.attr_endpoint)

    def _control_plane(self, network: NetworkStack, storage: StorageStack) -> eks.CfnCluster:
        plan, cluster = self.plan, eks.CfnCluster
        role = iam.Role(
            self,
            "ClusterRole",
            assumed_by=iam.ServicePrincipal("eks.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKSClusterPolicy")],
        )
        acknowledge(
            role,
            "AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/AmazonEKSClusterPolicy]",
            "EKS requires this policy on the control plane's role and widens it with new features",
        )
        # Made here, before EKS would make it: a group that EKS makes keeps audit logs for ever.
        log_group = logs.LogGroup(
            self,
            "ControlPlaneLogs",
            log_group_name=f"/aws/eks/{plan.names.cluster}/cluster",
            retention=CONTROL_PLANE_LOG_RETENTION,
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        public = plan.kubernetes.public_cidrs
        control_plane = cluster(
            self,
            "Cluster",
            name=plan.names.cluster,
            version=plan.kubernetes.version,
            role_arn=role.role_arn,
            resources_vpc_config=cluster.ResourcesVpcConfigProperty(
                subnet_ids=[network.private_subnets[zone].ref for zone in plan.network.zones],
                endpoint_private_access=True,
                endpoint_public_access=bool(public),
                public_access_cidrs=list(public) or None,
            ),
            kubernetes_network_config=cluster.KubernetesNetworkConfigProperty(
                service_ipv4_cidr=plan.kubernetes.service_cidr, ip_family="ipv4"
            ),
            access_config=cluster.AccessConfigProperty(
                authentication_mode="API", bootstrap_cluster_creator_admin_permissions=False
            ),
            bootstrap_self_managed_addons=False,
            encryption_config=[
                cluster.EncryptionConfigProperty(
                    resources=["secrets"], provider=cluster.ProviderProperty(key_arn=storage.secrets_key.key_arn)
                )
            ],
            logging=cluster.LoggingProperty(
                cluster_logging=cluster.ClusterLoggingProperty(
                    enabled_types=[cluster.LoggingTypeConfigProperty(type=kind) for kind in CONTROL_PLANE_LOGS]
                )
            ),
            upgrade_policy=cluster.UpgradePolicyProperty(support_type=plan.kubernetes.support_type),
            deletion_protection=plan.protected,
        )
        control_plane.node.add_dependency(log_group)
        if public:
            acknowledge(
                control_plane, "AwsSolutions-EKS1", f"the environment opens the endpoint to {', '.join(public)}"
            )
        return control_plane

    def _node_role(self) -> iam.Role:
        """Joins, pulls images, answers Session Manager. No data access: pods have roles of their own."""
        role = iam.Role(
            self,
            "NodeRole",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in NODE_POLICIES],
        )
        for name in NODE_POLICIES:
            acknowledge(
                role,
                f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{name}]",
                "EKS documents this policy for nodes; it grants no access to data",
            )
        return role

    def _associations(self, wanted: tuple[Identity, ...]) -> dict[str, eks.CfnPodIdentityAssociation]:
        """Associations by `namespace/service account`."""
        made = {}
        for identity in wanted:
            role = pod_role(
                self,
                f"{identity.identifier}Role",
                plan=self.plan,
                namespace=identity.namespace,
                service_account=identity.service_account,
                statements=identity.statements,
                managed_policies=[
                    iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in identity.managed_policies
                ],
            )
            for finding, reason in identity.acknowledged:
                acknowledge(role, finding, reason)
            made[f"{identity.namespace}/{identity.service_account}"] = association(
                self,
                f"{identity.identifier}Identity",
                cluster_name=self.cluster.ref,
                namespace=identity.namespace,
                service_account=identity.service_account,
                role=role,
            )
        return made

    def _addon(self, planned: AddonPlan, associations: dict[str, eks.CfnPodIdentityAssociation]) -> eks.CfnAddon:
        values = ADDON_VALUES.get(planned.name)
        addon = eks.CfnAddon(
            self,
            f"Addon-{planned.name}",
            cluster_name=self.cluster.ref,
            addon_name=planned.name,
            addon_version=planned.version or UNRESOLVED_TEXT,
            configuration_values=json.dumps(values, sort_keys=True) if values else None,
            # Values set here win over hand edits, at creation and on update; otherwise an update fails half-way.
            resolve_conflicts="OVERWRITE",
            preserve_on_delete=False,
        )
        needed = associations.get(f"{planned.namespace}/{planned.service_account}")
        if needed is not None:
            addon.add_resource_dependency(needed)
        return addon

    def _system_nodes(self, pool: PoolPlan, network: NetworkStack) -> eks.CfnNodegroup:
        template = launch_template(
            self,
            "SystemLaunchTemplate",
            plan=self.plan,
            pool=pool,
            cluster_security_group=self.cluster.attr_cluster_security_group_id,
            efa_security_group=network.efa_security_group.attr_group_id,
            join=self.join if pool.ami.id else None,
        )
        return node_group(
            self,
            pool=pool,
            cluster_name=self.cluster.ref,
            node_role_arn=self.node_role.role_arn,
            subnet_ids=[network.private_subnets[zone].ref for zone in pool.zones],
            template=template,
        )


def access_entry(
    scope: Construct, identifier: str, *, plan: Plan, cluster: eks.CfnCluster, principal_arn: str
) -> eks.CfnAccessEntry:
    """Cluster-admin for one IAM principal, through the EKS access API."""
    entry = eks.CfnAccessEntry
    return entry(
        scope,
        identifier,
        cluster_name=cluster.ref,
        principal_arn=principal_arn,
        type="STANDARD",
        access_policies=[
            entry.AccessPolicyProperty(
                policy_arn=f"arn:{plan.partition}:eks::aws:cluster-access-policy/{ADMIN_POLICY}",
                access_scope=entry.AccessScopeProperty(type="cluster"),
            )
        ],
    )
