"""CloudFormation types whose ministack handlers keep every property named here.

Read-back over a deploy of each property proves it (tests/infra/local); a property that is not named is refused.
"""

from __future__ import annotations

_TABLE = {
    "AWS::ECR::Repository": "EmptyOnDelete EncryptionConfiguration ImageScanningConfiguration ImageTagMutability"
    " LifecyclePolicy RepositoryName RepositoryPolicyText Tags",
    "AWS::Events::Rule": "Description EventBusName EventPattern Name RoleArn ScheduleExpression State Targets Tags",
    "AWS::IAM::ManagedPolicy": "Description ManagedPolicyName Path PolicyDocument Roles",
    "AWS::IAM::Policy": "PolicyDocument PolicyName Roles",
    "AWS::KMS::Alias": "AliasName TargetKeyId",
    "AWS::KMS::Key": "Description Enabled EnableKeyRotation KeyPolicy KeySpec KeyUsage MultiRegion PendingWindowInDays"
    " RotationPeriodInDays Tags",
    "AWS::Logs::LogGroup": "KmsKeyId LogGroupClass LogGroupName RetentionInDays Tags",
    "AWS::Logs::MetricFilter": "FilterName FilterPattern LogGroupName MetricTransformations",
    "AWS::Logs::ResourcePolicy": "PolicyName PolicyDocument",
    "AWS::S3::BucketPolicy": "Bucket PolicyDocument",
    "AWS::SNS::TopicPolicy": "PolicyDocument Topics",
    "AWS::SQS::Queue": "ContentBasedDeduplication DeduplicationScope DelaySeconds FifoQueue FifoThroughputLimit"
    " KmsDataKeyReusePeriodSeconds KmsMasterKeyId MaximumMessageSize MessageRetentionPeriod QueueName"
    " ReceiveMessageWaitTimeSeconds RedriveAllowPolicy RedrivePolicy SqsManagedSseEnabled Tags VisibilityTimeout",
    "AWS::SQS::QueuePolicy": "PolicyDocument Queues",
    "AWS::SSM::Parameter": "AllowedPattern Description Name Tags Tier Type Value",
    "AWS::Scheduler::ScheduleGroup": "Name Tags",
}

STOCK_TYPES: dict[str, frozenset[str]] = {name: frozenset(text.split()) for name, text in _TABLE.items()}
