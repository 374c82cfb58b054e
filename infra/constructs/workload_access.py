"""Who in the cluster may call what in AWS: every Pod Identity of an environment, as data.

Statements name the run's own buckets, prefixes and queues. Nobody but CloudFormation creates buckets, and the node
role has no data access at all, so a pod that misses its own role fails loudly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import aws_iam as iam

from infra.config.model_plan import MODELS_PREFIX
from infra.config.names import NAMESPACE, url_suffix
from infra.config.plan import Plan
from infra.config.pool_plan import AUTOSCALER_TAG
from infra.constructs.pod_identity import allow, bucket_arn, queue_arn

SAMPLES_PREFIX = "samples/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One service account and what it may do. `acknowledged` are policy findings with the reason they stand."""

    identifier: str
    namespace: str
    service_account: str
    statements: tuple[iam.PolicyStatement, ...] = ()
    managed_policies: tuple[str, ...] = ()
    acknowledged: tuple[tuple[str, str], ...] = ()


def identities(plan: Plan, *, data_key_arn: str) -> tuple[Identity, ...]:
    """All identities of the plan, add-ons first. `data_key_arn` is the key of checkpoints and weights."""
    run = (_trainer(plan, data_key_arn), _rollout(plan, data_key_arn), _prepare(plan, data_key_arn))
    return (*_addons(plan), *_controllers(plan), *run)


def _addons(plan: Plan) -> tuple[Identity, ...]:
    installed = {addon.name for addon in plan.addons}
    return tuple(
        identity
        for addon, identity in (
            ("vpc-cni", _managed("Cni", "kube-system", "aws-node", "AmazonEKS_CNI_Policy")),
            (
                "aws-ebs-csi-driver",
                _managed("EbsCsi", "kube-system", "ebs-csi-controller-sa", "service-role/AmazonEBSCSIDriverPolicy"),
            ),
            (
                "aws-fsx-csi-driver",
                # Volumes are static here: the driver reads the file system's DNS name and creates none.
                Identity(
                    identifier="FsxCsi",
                    namespace="kube-system",
                    service_account="fsx-csi-controller-sa",
                    statements=(allow(["fsx:DescribeFileSystems"], [_fsx_arn(plan)]),),
                    acknowledged=(
                        (
                            f"AwsSolutions-IAM5[Resource::{_fsx_arn(plan)}]",
                            "the file system's id exists only after a deploy; the action only reads",
                        ),
                    ),
                ),
            ),
            (
                "amazon-cloudwatch-observability",
                _managed("LogShipper", "amazon-cloudwatch", "cloudwatch-agent", "CloudWatchAgentServerPolicy"),
            ),
        )
        if addon in installed
    )


def _managed(identifier: str, namespace: str, service_account: str, policy: str) -> Identity:
    return Identity(
        identifier=identifier,
        namespace=namespace,
        service_account=service_account,
        managed_policies=(policy,),
        acknowledged=(
            (
                f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{policy}]",
                "EKS documents this policy for the add-on and keeps it in step with the add-on's versions",
            ),
        ),
    )


def _controllers(plan: Plan) -> tuple[Identity, ...]:
    owned = f"aws:ResourceTag/k8s.io/cluster-autoscaler/{plan.names.cluster}"
    node_groups = f"arn:{plan.partition}:eks:{plan.region}:{plan.account}:nodegroup/{plan.names.cluster}/*"
    return (
        Identity(
            identifier="ClusterAutoscaler",
            namespace="kube-system",
            service_account="cluster-autoscaler",
            statements=(
                allow(
                    [
                        "autoscaling:DescribeAutoScalingGroups",
                        "autoscaling:DescribeAutoScalingInstances",
                        "autoscaling:DescribeLaunchConfigurations",
                        "autoscaling:DescribeScalingActivities",
                        "autoscaling:DescribeTags",
                        "ec2:DescribeImages",
                        "ec2:DescribeInstanceTypes",
                        "ec2:DescribeLaunchTemplateVersions",
                        "ec2:GetInstanceTypesFromInstanceRequirements",
                    ],
                    ["*"],
                ),
                allow(["eks:DescribeNodegroup"], [node_groups]),
                allow(
                    ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
                    [f"arn:{plan.partition}:autoscaling:{plan.region}:{plan.account}:autoScalingGroup:*"],
                    # EKS marks every managed group as owned, a trainer's and a capacity block's too.
                    StringEquals={owned: "owned", f"aws:ResourceTag/{AUTOSCALER_TAG}": "autoscaler"},
                ),
            ),
            acknowledged=(
                ("AwsSolutions-IAM5[Resource::*]", "these describe calls take no resource"),
                (
                    f"AwsSolutions-IAM5[Resource::{node_groups}]",
                    "node groups have generated names; the action only reads",
                ),
                (
                    "AwsSolutions-IAM5[Resource::"
                    f"arn:{plan.partition}:autoscaling:{plan.region}:{plan.account}:autoScalingGroup:*]",
                    "group names are generated by EKS; the conditions admit this cluster's autoscaled groups alone",
                ),
            ),
        ),
        Identity(
            identifier="Keda",
            namespace="keda",
            service_account="keda-operator",
            statements=(
                allow(
                    ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"],
                    [queue_arn(plan, plan.names.task_queue), queue_arn(plan, plan.names.result_queue)],
                ),
            ),
        ),
    )


def _trainer(plan: Plan, data_key_arn: str) -> Identity:
    """Saves and resumes checkpoints, publishes weights, issues tasks, collects results."""
    names = plan.names
    statements = [
        *_objects(plan, names.checkpoint_bucket, [plan.storage.checkpoint_prefix], write=True),
        *_objects(plan, names.weights_bucket, [plan.storage.weights_prefix, SAMPLES_PREFIX], write=True),
        *_objects(plan, names.weights_bucket, [MODELS_PREFIX], write=False),
        _key(plan, data_key_arn),
        allow(["sqs:SendMessage", "sqs:GetQueueAttributes", "sqs:GetQueueUrl"], [queue_arn(plan, names.task_queue)]),
        allow(
            ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes"],
            [queue_arn(plan, names.result_queue), queue_arn(plan, names.dead_letter_queue)],
        ),
    ]
    signals = [pool.capacity.block.save_signal_parameter for pool in plan.pools if pool.capacity.block]
    if signals:
        statements.append(
            allow(
                ["ssm:GetParameter"],
                [f"arn:{plan.partition}:ssm:{plan.region}:{plan.account}:parameter{name}" for name in signals],
            )
        )
    prefixes = [
        (names.checkpoint_bucket, plan.storage.checkpoint_prefix),
        (names.weights_bucket, plan.storage.weights_prefix),
        (names.weights_bucket, SAMPLES_PREFIX),
        (names.weights_bucket, MODELS_PREFIX),
    ]
    return Identity(
        identifier="Trainer",
        namespace=NAMESPACE,
        service_account="trainer",
        statements=tuple(statements),
        acknowledged=_acknowledged_prefixes(plan, prefixes),
    )


def _rollout(plan: Plan, data_key_arn: str) -> Identity:
    """Leases tasks, reads weights, publishes samples and results, moves poison to the dead-letter queue."""
    names = plan.names
    prefixes = [
        (names.weights_bucket, plan.storage.weights_prefix),
        (names.weights_bucket, MODELS_PREFIX),
        (names.weights_bucket, SAMPLES_PREFIX),
    ]
    return Identity(
        identifier="Rollout",
        namespace=NAMESPACE,
        service_account="rollout",
        statements=(
            *_objects(plan, names.weights_bucket, [plan.storage.weights_prefix, MODELS_PREFIX], write=False),
            *_objects(plan, names.weights_bucket, [SAMPLES_PREFIX], write=True),
            _key(plan, data_key_arn),
            allow(
                # It sends a task again that it failed at, with the failure counted in it.
                ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:SendMessage"],
                [queue_arn(plan, names.task_queue)],
            ),
            allow(
                ["sqs:SendMessage", "sqs:GetQueueAttributes"],
                [queue_arn(plan, names.result_queue), queue_arn(plan, names.dead_letter_queue)],
            ),
        ),
        acknowledged=_acknowledged_prefixes(plan, prefixes),
    )


def _prepare(plan: Plan, data_key_arn: str) -> Identity:
    """Brings the model in and writes its forms; the one account that may read the hub's token."""
    bucket, secret = plan.names.weights_bucket, plan.workload.hub_token_secret_arn
    token = (allow(["secretsmanager:GetSecretValue"], [secret]),) if secret else ()
    return Identity(
        identifier="Prepare",
        namespace=NAMESPACE,
        service_account="prepare",
        statements=(*_objects(plan, bucket, [MODELS_PREFIX], write=True), _key(plan, data_key_arn), *token),
        acknowledged=_acknowledged_prefixes(plan, [(bucket, MODELS_PREFIX)]),
    )


def _objects(plan: Plan, bucket: str, prefixes: Sequence[str], *, write: bool) -> list[iam.PolicyStatement]:
    """Objects below the prefixes, multipart actions included; listing is limited to the same prefixes."""
    actions = ["s3:GetObject"]
    if write:
        actions += ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    arn = bucket_arn(plan, bucket)
    return [
        allow(actions, [f"{arn}/{prefix}*" for prefix in prefixes]),
        allow(
            ["s3:ListBucket", *(["s3:ListBucketMultipartUploads"] if write else [])],
            [arn],
            StringLike={"s3:prefix": [f"{prefix}*" for prefix in prefixes]},
        ),
    ]


def _key(plan: Plan, data_key_arn: str) -> iam.PolicyStatement:
    """Multipart upload needs decrypt beside data-key generation; the key answers for S3 alone."""
    return allow(
        ["kms:Decrypt", "kms:GenerateDataKey"],
        [data_key_arn],
        StringEquals={"kms:ViaService": f"s3.{plan.region}.{url_suffix(plan.region)}"},
    )


def _acknowledged_prefixes(plan: Plan, prefixes: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"AwsSolutions-IAM5[Resource::{bucket_arn(plan, bucket)}/{prefix}*]",
            "objects below one prefix of the run's own bucket; their keys are not known before the run",
        )
        for bucket, prefix in prefixes
    )


def _fsx_arn(plan: Plan) -> str:
    return f"arn:{plan.partition}:fsx:{plan.region}:{plan.account}:file-system/*"
