"""Shared scratch: FSx for Lustre beside the trainer, its checkpoint directory exported to S3."""

from __future__ import annotations

from pathlib import PurePosixPath

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.config.names import url_suffix
from infra.config.plan import Plan
from infra.constructs.security_group import allow_ports, security_group

LUSTRE_PORTS = ((988, 988), (1018, 1023))
LUSTRE_VERSION = "2.15"
THROUGHPUT_MBPS_PER_TIB = 500
"""19200 GiB then take about 9 GB/s: a full save of a 235B model (3.3 TB with optimizer state) in some six minutes."""
S3_ACCESS_ROLE = "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_*"
"""The service-linked role of a file system's S3 links; its name ends in the file system's id."""


def file_system(
    scope: Construct,
    plan: Plan,
    *,
    key: kms.IKey,
    bucket: s3.IBucket,
    vpc_id: str,
    subnet_id: str,
    efa_security_group: ec2.CfnSecurityGroup,
) -> fsx.CfnFileSystem:
    """A persistent SSD file system in the trainer's subnet, `plan.storage.scratch_gib` GiB large.

    Scratch goes with its stack: what counts is in S3 by then. Its EFA support stays off, since the client side of it
    has not been proven on the AMIs used here; Lustre then speaks TCP over the primary interface.
    """
    made = fsx.CfnFileSystem(
        scope,
        "FileSystem",
        file_system_type="LUSTRE",
        file_system_type_version=LUSTRE_VERSION,
        storage_type="SSD",
        storage_capacity=plan.storage.scratch_gib,
        subnet_ids=[subnet_id],
        security_group_ids=[_lustre_group(scope, plan, vpc_id, efa_security_group).attr_group_id],
        kms_key_id=key.key_arn,
        lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
            deployment_type="PERSISTENT_2",
            per_unit_storage_throughput=THROUGHPUT_MBPS_PER_TIB,
            data_compression_type="LZ4",
            # FSx makes no backups of a file system that is linked to S3.
            automatic_backup_retention_days=0,
            # Failed exports show up in /aws/fsx/lustre.
            log_configuration=fsx.CfnFileSystem.LogConfigurationProperty(level="WARN_ERROR"),
        ),
        tags=[cdk.CfnTag(key="Name", value=f"{plan.name}-scratch")],
    )
    made.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
    _checkpoint_link(scope, plan, made, bucket)
    return made


def export_statement(plan: Plan) -> iam.PolicyStatement:
    """Lets FSx export to the checkpoint bucket under its key, for the key's policy.

    Service-linked roles get their key access from key policies alone, and this one's name holds an id that exists only
    after the key: hence any principal, narrowed to this account's roles of that service, through S3, for that bucket.
    With bucket keys the encryption context is the bucket's ARN; objects written before it was on have the object's.
    """
    bucket = f"arn:{plan.partition}:s3:::{plan.names.checkpoint_bucket}"
    return iam.PolicyStatement(
        sid="FsxExport",
        principals=[iam.AnyPrincipal()],
        actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
        resources=["*"],
        conditions={
            "StringEquals": {
                "kms:CallerAccount": plan.account,
                "kms:ViaService": f"s3.{plan.region}.{url_suffix(plan.region)}",
            },
            "ArnLike": {"aws:PrincipalArn": f"arn:{plan.partition}:iam::{plan.account}:{S3_ACCESS_ROLE}"},
            "StringLike": {"kms:EncryptionContext:aws:s3:arn": [bucket, f"{bucket}/*"]},
        },
    )


def _lustre_group(
    scope: Construct, plan: Plan, vpc_id: str, efa_security_group: ec2.CfnSecurityGroup
) -> ec2.CfnSecurityGroup:
    """File servers talk to each other and to the nodes, and call clients back; nothing else.

    The nodes' group gets no egress rule here: it would revoke that group's allow-all, which already covers this one.
    """
    group = security_group(
        scope,
        "ScratchSecurityGroup",
        vpc_id=vpc_id,
        name=f"{plan.name}-scratch",
        description="FSx for Lustre file servers",
    )
    for identifier, source, target in (
        ("ScratchFromItself", group, group),
        ("ScratchFromNodes", efa_security_group, group),
        ("NodesFromScratch", group, efa_security_group),
    ):
        allow_ports(scope, identifier, source=source, target=target, ports=LUSTRE_PORTS, description="Lustre")
    for identifier, target in (("ScratchToItself", group), ("ScratchToNodes", efa_security_group)):
        for first, last in LUSTRE_PORTS:
            ec2.CfnSecurityGroupEgress(
                scope,
                f"{identifier}{first}",
                group_id=group.attr_group_id,
                destination_security_group_id=target.attr_group_id,
                ip_protocol="tcp",
                from_port=first,
                to_port=last,
                description="Lustre",
            )
    return group


def _checkpoint_link(scope: Construct, plan: Plan, system: fsx.CfnFileSystem, bucket: s3.IBucket) -> None:
    """Files below the checkpoint directory reach S3 as they are written; nothing that happens here deletes there.

    Pods mount the file system at the parent of `plan.storage.checkpoint_path`. Deletions are not exported, so clearing
    scratch, or losing it, leaves S3 whole. A new file system lists what S3 already holds and fetches it when read;
    afterwards nothing is imported, and a resume that needs more downloads it.
    """
    link = fsx.CfnDataRepositoryAssociation(
        scope,
        "CheckpointLink",
        file_system_id=system.ref,
        file_system_path=f"/{PurePosixPath(plan.storage.checkpoint_path).name}",
        data_repository_path=f"s3://{plan.names.checkpoint_bucket}/{plan.storage.checkpoint_prefix}",
        batch_import_meta_data_on_create=True,
        s3=fsx.CfnDataRepositoryAssociation.S3Property(
            auto_export_policy=fsx.CfnDataRepositoryAssociation.AutoExportPolicyProperty(events=["NEW", "CHANGED"])
        ),
        tags=[cdk.CfnTag(key="Name", value=f"{plan.name}-checkpoints")],
    )
    link.node.add_dependency(bucket)
