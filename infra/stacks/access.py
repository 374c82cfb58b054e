"""The private way in: a bucket for rendered folders and a build project, inside the VPC, that applies them."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.acknowledge import acknowledge
from infra.constructs.apply_project import apply_project, apply_role, apply_security_group
from infra.constructs.apply_script import RENDERED_PREFIX
from infra.constructs.image_script import CONTEXT_PREFIX
from infra.constructs.security_group import HTTPS
from infra.constructs.stack import PlanStack
from infra.stacks.cluster import ClusterStack, access_entry
from infra.stacks.network import NetworkStack

RENDERED_RETENTION = cdk.Duration.days(30)


class AccessStack(PlanStack):
    """Bucket, project and the project's rights on the cluster; `moerl apply` uses the first two."""

    def __init__(self, scope: Construct, plan: Plan, *, network: NetworkStack, cluster: ClusterStack) -> None:
        super().__init__(scope, "access", plan, description="Applies manifests from inside the VPC", protected=True)
        self.bucket = self._bucket()
        subnets = [network.private_subnets[zone].ref for zone in plan.network.zones]
        group = apply_security_group(self, plan, vpc_id=network.vpc.ref)
        ec2.CfnSecurityGroupIngress(
            self,
            "ApiServerFromApply",
            group_id=cluster.cluster.attr_cluster_security_group_id,
            source_security_group_id=group.attr_group_id,
            ip_protocol="tcp",
            from_port=HTTPS,
            to_port=HTTPS,
            description="Kubernetes API for builds that apply manifests",
        )
        role = apply_role(self, plan, subnet_ids=subnets, security_group_id=group.attr_group_id)
        # Admin, since rendered folders hold custom resource definitions, roles and admission policies.
        access_entry(self, "ApplyAccess", plan=plan, cluster=cluster.cluster, principal_arn=role.role_arn)
        self.project = apply_project(
            self, plan, role=role, vpc_id=network.vpc.ref, subnet_ids=subnets, security_group_id=group.attr_group_id
        )
        cdk.CfnOutput(self, "ApplyProjectName", value=self.project.ref)
        cdk.CfnOutput(self, "ApplyBucketName", value=self.bucket.bucket_name)

    def _bucket(self) -> s3.Bucket:
        bucket = s3.Bucket(
            self,
            "ApplyBucket",
            bucket_name=self.plan.names.apply_bucket,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            versioned=True,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            lifecycle_rules=[_expiring("expire", RENDERED_PREFIX), _expiring("expire-contexts", CONTEXT_PREFIX)],
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        acknowledge(
            bucket,
            "AwsSolutions-S1",
            "two projects read it, and their logs name each archive that they read",
        )
        return bucket


def _expiring(identifier: str, prefix: str) -> s3.LifecycleRule:
    return s3.LifecycleRule(
        id=identifier,
        prefix=prefix,
        expiration=RENDERED_RETENTION,
        noncurrent_version_expiration=RENDERED_RETENTION,
        abort_incomplete_multipart_upload_after=cdk.Duration.days(1),
    )
