"""Data at rest and on the way: transport, public access, and what a deleted stack leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.stacks import Resource, Stack, as_list, refers_to, resources

BLOCKS = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
LASTING = ("AWS::S3::Bucket", "AWS::ECR::Repository")
"""Types whose content outlives the stack; a key is lasting in a stack that has one of them."""
STATEFUL = (*LASTING, "AWS::SQS::Queue", "AWS::EKS::Cluster", "AWS::FSx::FileSystem", "AWS::EC2::VPC")
EMPTYING = ("Custom::S3AutoDeleteObjects", "Custom::ECRAutoDeleteImages")
TRANSPORT: dict[str, tuple[str, str]] = {
    "AWS::S3::Bucket": ("AWS::S3::BucketPolicy", "Bucket"),
    "AWS::SQS::Queue": ("AWS::SQS::QueuePolicy", "Queues"),
    "AWS::SNS::Topic": ("AWS::SNS::TopicPolicy", "Topics"),
}
"""Resource type to the type of its policy and the property in which that policy names it."""


def transport(stack: Stack, plan: Plan) -> Iterator[Finding]:
    """Buckets, queues and topics refuse requests without TLS."""
    del plan
    for kind, (policy_type, target) in TRANSPORT.items():
        policies = list(resources(stack, policy_type))
        for resource in resources(stack, kind):
            own = [one for one in policies if refers_to(one.properties.get(target), resource.logical_id)]
            if not any(_denies_plain(statement) for policy in own for statement in _statements(policy)):
                yield resource.finding(
                    "data.tls",
                    policy_type.rpartition(":")[2],
                    None,
                    "it answers requests that anyone on the way can read",
                    "Deny requests whose aws:SecureTransport is false.",
                )


def buckets(stack: Stack, plan: Plan) -> Iterator[Finding]:
    """Buckets are closed to the public and encrypted, and nothing empties them."""
    del plan
    for bucket in resources(stack, "AWS::S3::Bucket"):
        block = bucket.properties.get("PublicAccessBlockConfiguration", {})
        open_ways = [name for name in BLOCKS if block.get(name) is not True]
        if open_ways:
            yield bucket.finding(
                "data.public-access",
                "PublicAccessBlockConfiguration",
                open_ways,
                "a policy or an ACL could open the bucket to everybody",
                "Block all four.",
            )
        if not bucket.properties.get("BucketEncryption"):
            yield bucket.finding(
                "data.bucket-encryption", "BucketEncryption", None, "how objects are encrypted is left open", "Say it."
            )
    for emptying in resources(stack, *EMPTYING):
        yield emptying.finding(
            "data.emptied", "Type", emptying.type, "the stack's deletion would empty the store first", "Leave it out."
        )


def retention(stack: Stack, plan: Plan) -> Iterator[Finding]:
    """What lasts is retained when the stack goes and when it is replaced; where state lives the stack is protected."""
    lasting = list(resources(stack, *LASTING))
    keys = list(resources(stack, "AWS::KMS::Key")) if lasting else []
    for resource in (*lasting, *keys):
        destroyable = (
            plan.storage.destroy_checkpoints and resource.properties.get("BucketName") == plan.names.checkpoint_bucket
        )
        for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
            if not destroyable and resource.body.get(policy) not in ("Retain", "RetainExceptOnCreate"):
                yield resource.finding(
                    "data.retain",
                    policy,
                    resource.body.get(policy),
                    "its content would go with the resource",
                    "Set it to Retain.",
                )
    state = next(resources(stack, *STATEFUL), None)
    if plan.protected and state is not None and not stack.protected:
        yield Finding(
            rule="policy.data.termination-protection",
            key=stack.name,
            value=False,
            why=f"the stack holds state ({state.type}) and one call deletes it",
            fix="Give it termination protection, or write `protected: false` in the environment.",
        )


def keys(stack: Stack, plan: Plan) -> Iterator[Finding]:
    """Customer keys rotate, and their policies say whom they let in."""
    del plan
    for key in resources(stack, "AWS::KMS::Key"):
        if key.properties.get("EnableKeyRotation") is not True:
            yield key.finding(
                "data.key-rotation",
                "EnableKeyRotation",
                key.properties.get("EnableKeyRotation"),
                "its material would never change",
                "Set it to true.",
            )
        for statement in as_list(key.properties.get("KeyPolicy", {}).get("Statement")):
            if statement.get("Effect") == "Allow" and _everybody(statement):
                yield key.finding(
                    "data.key-open",
                    "KeyPolicy",
                    statement.get("Sid", statement.get("Action")),
                    "the statement lets any principal in, held back by its conditions alone",
                    "Name the principals: the account's root leaves it to IAM policies.",
                )


def _statements(policy: Resource) -> list[Mapping[str, Any]]:
    return as_list(policy.properties.get("PolicyDocument", {}).get("Statement"))


def _denies_plain(statement: Mapping[str, Any]) -> bool:
    secure = statement.get("Condition", {}).get("Bool", {}).get("aws:SecureTransport")
    return statement.get("Effect") == "Deny" and _everybody(statement) and str(secure).lower() == "false"


def _everybody(statement: Mapping[str, Any]) -> bool:
    principal = statement.get("Principal")
    return "*" in as_list(principal.get("AWS") if isinstance(principal, Mapping) else principal)
