"""Shared scratch: FSx for Lustre beside the trainer. The uploader of the run takes checkpoints from here to S3.

No data repository association ties it to a bucket. One would export every save a second time, under names that nothing
prunes, and list in here what is committed; and FSx's role would need the data key. On a new file system
`checkpoint restore` brings the newest committed checkpoint back.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.security_group import allow_ports, security_group

LUSTRE_PORTS = ((988, 988), (1018, 1023))
LUSTRE_VERSION = "2.15"
THROUGHPUT_MBPS_PER_TIB = 500
"""19200 GiB then take about 9 GB/s: a full save of a 235B model (3.3 TB with optimizer state) in some six minutes."""


def file_system(
    scope: Construct,
    plan: Plan,
    *,
    key: kms.IKey,
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
            # Scratch is disposable: a backup would hold saves that are in S3 already, or were never committed.
            automatic_backup_retention_days=0,
        ),
        tags=[cdk.CfnTag(key="Name", value=f"{plan.name}-scratch")],
    )
    made.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
    return made


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
