"""Everything that outlives a cluster: keys, buckets, the image repository; and the scratch file system beside it.

Buckets, keys and repository are retained. Their names are fixed, so after the stack has been deleted on purpose
`cdk deploy --import-existing-resources` takes them back; the keys have no name, so a new stack makes new ones, and
objects under the old key stay readable for as long as that key is kept.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.buckets import checkpoint_bucket, log_bucket, weights_bucket
from infra.constructs.scratch import file_system
from infra.constructs.stack import PlanStack
from infra.stacks.network import NetworkStack

KEY_PENDING_DAYS = 30
"""The longest that KMS offers between a key's deletion and its end."""
UNTAGGED_IMAGE_DAYS = 14


class StorageStack(PlanStack):
    """Keys, buckets, repository, and FSx where the Plan's scratch is `fsx`."""

    def __init__(self, scope: Construct, plan: Plan, *, network: NetworkStack) -> None:
        super().__init__(scope, "storage", plan, description="Keys, buckets, image repository, scratch", protected=True)
        self.data_key = self._key("DataKey", "checkpoints, weights, scratch and images")
        self.secrets_key = self._key("SecretsKey", "Kubernetes secrets")
        self.log_bucket = log_bucket(self, plan)
        self.checkpoint_bucket = checkpoint_bucket(self, plan, key=self.data_key, logs=self.log_bucket)
        self.weights_bucket = weights_bucket(self, plan, key=self.data_key, logs=self.log_bucket)
        self.repository = self._repository()
        self.file_system = self._scratch(network) if plan.storage.scratch == "fsx" else None

        cdk.CfnOutput(self, "DataKeyArn", value=self.data_key.key_arn)
        cdk.CfnOutput(self, "RepositoryUri", value=self.repository.repository_uri)

    def _key(self, identifier: str, use: str) -> kms.Key:
        return kms.Key(
            self,
            identifier,
            description=f"{self.plan.name}: {use}",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(KEY_PENDING_DAYS),
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )

    def _repository(self) -> ecr.Repository:
        """Images of the run. Tags are immutable: a digest, once submitted, stays what it was."""
        return ecr.Repository(
            self,
            "Repository",
            repository_name=self.plan.names.repository,
            encryption=ecr.RepositoryEncryption.KMS,
            encryption_key=self.data_key,
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[
                ecr.LifecycleRule(
                    description="untagged images",
                    tag_status=ecr.TagStatus.UNTAGGED,
                    max_image_age=cdk.Duration.days(UNTAGGED_IMAGE_DAYS),
                )
            ],
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )

    def _scratch(self, network: NetworkStack) -> fsx.CfnFileSystem:
        plan = self.plan
        trainer = next(pool for pool in plan.pools if pool.role == "trainer")
        system = file_system(
            self,
            plan,
            key=self.data_key,
            vpc_id=network.vpc.ref,
            subnet_id=network.accelerator_subnets[trainer.zones[0]].ref,
            efa_security_group=network.efa_security_group,
        )
        cdk.CfnOutput(self, "FileSystemId", value=system.ref)
        cdk.CfnOutput(self, "FileSystemMountName", value=system.attr_lustre_mount_name)
        return system
