"""S3 buckets of an environment: private, TLS only, never emptied by a stack.

A retained bucket keeps its name. After a stack has gone, `cdk deploy --import-existing-resources` takes it back in.
"""

from __future__ import annotations

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.workload_access import SAMPLES_PREFIX

ABORT_UPLOAD_DAYS = 3
NONCURRENT_DAYS = 14
"""How long an overwritten or pruned checkpoint can still be brought back."""
REWRITTEN_DAYS, REWRITTEN_VERSIONS = 1, 100
"""An object with more noncurrent versions than that, the most that S3 counts, is no checkpoint's: it is a run's lease, of
which each day leaves 4320."""
WEIGHTS_DAYS = 3
"""Engines follow the newest policy weights; older versions serve nobody."""
LOG_DAYS = 365
SECONDS_PER_DAY = 24 * 3600


def log_bucket(scope: Construct, plan: Plan) -> s3.Bucket:
    """Target of S3 access logs. SSE-S3, since log delivery refuses buckets under a customer key."""
    return _bucket(
        scope,
        "LogBucket",
        plan.names.log_bucket,
        rules=[_abort_uploads(), s3.LifecycleRule(id="expire-logs", expiration=cdk.Duration.days(LOG_DAYS))],
    )


def checkpoint_bucket(scope: Construct, plan: Plan, *, key: kms.IKey, logs: s3.IBucket) -> s3.IBucket:
    """The run's checkpoints: versioned, and no rule ever expires a current object.

    An adopted bucket is referred to as it is: its encryption, policy and lifecycle stay with its owner.
    """
    if plan.storage.adopt_checkpoint_bucket:
        return s3.Bucket.from_bucket_name(scope, "CheckpointBucket", plan.names.checkpoint_bucket)
    return _bucket(
        scope,
        "CheckpointBucket",
        plan.names.checkpoint_bucket,
        key=key,
        logs=logs,
        versioned=True,
        removal_policy=cdk.RemovalPolicy.DESTROY if plan.storage.destroy_checkpoints else cdk.RemovalPolicy.RETAIN,
        rules=[
            _abort_uploads(),
            s3.LifecycleRule(
                id="expire-noncurrent",
                noncurrent_version_expiration=cdk.Duration.days(NONCURRENT_DAYS),
                # The marker that a pruned object leaves, once nothing lies under it: a million of them slow a listing.
                expired_object_delete_marker=True,
            ),
            # By count, since a lease lies below its run's name, which no rule can know. Where rules overlap S3 takes the
            # shorter one (user guide, conflicts in lifecycle configurations): without the count it would be this one.
            s3.LifecycleRule(
                id="expire-rewritten",
                prefix=plan.storage.checkpoint_prefix,
                noncurrent_version_expiration=cdk.Duration.days(REWRITTEN_DAYS),
                noncurrent_versions_to_retain=REWRITTEN_VERSIONS,
            ),
        ],
    )


def weights_bucket(scope: Construct, plan: Plan, *, key: kms.IKey, logs: s3.IBucket) -> s3.Bucket:
    """Policy weights and samples, both short-lived, beside base models, which no rule expires.

    A sample outlives the result message that names it: one day more than the queue keeps a message.
    """
    samples_days = plan.queue.retention_seconds // SECONDS_PER_DAY + 1
    return _bucket(
        scope,
        "WeightsBucket",
        plan.names.weights_bucket,
        key=key,
        logs=logs,
        rules=[
            _abort_uploads(),
            _expire("expire-weights", plan.storage.weights_prefix, WEIGHTS_DAYS),
            _expire("expire-samples", SAMPLES_PREFIX, samples_days),
        ],
    )


def _bucket(
    scope: Construct,
    identifier: str,
    name: str,
    *,
    rules: Sequence[s3.LifecycleRule],
    key: kms.IKey | None = None,
    logs: s3.IBucket | None = None,
    versioned: bool = False,
    removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.RETAIN,
) -> s3.Bucket:
    """A private bucket under `key` (SSE-S3 without one), its access logged to `logs` below its own name."""
    return s3.Bucket(
        scope,
        identifier,
        bucket_name=name,
        encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
        encryption_key=key,
        bucket_key_enabled=True if key else None,
        versioned=versioned,
        enforce_ssl=True,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        lifecycle_rules=list(rules),
        server_access_logs_bucket=logs,
        server_access_logs_prefix=f"s3/{name}/" if logs else None,
        removal_policy=removal_policy,
    )


def _abort_uploads() -> s3.LifecycleRule:
    """Parts of an upload that never completed are billed and listed nowhere."""
    return s3.LifecycleRule(
        id="abort-uploads", abort_incomplete_multipart_upload_after=cdk.Duration.days(ABORT_UPLOAD_DAYS)
    )


def _expire(identifier: str, prefix: str, days: int) -> s3.LifecycleRule:
    return s3.LifecycleRule(id=identifier, prefix=prefix, expiration=cdk.Duration.days(days))
