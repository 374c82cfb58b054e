"""Readers for S3, ECR and FSx."""

from __future__ import annotations

import json
from typing import Any

from .base import Actual, Properties, Reader, Source, one, optional, pascal, renamed, tag_list

# What S3 answers for a bucket that has no such configuration.
_NOT_CONFIGURED = (
    "NoSuchBucketPolicy",
    "NoSuchCORSConfiguration",
    "NoSuchLifecycleConfiguration",
    "NoSuchPublicAccessBlockConfiguration",
    "NoSuchTagSet",
    "OwnershipControlsNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError",
)


def _encryption(reply: dict[str, Any]) -> Properties:
    rules = reply.get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    names = {"ApplyServerSideEncryptionByDefault": "ServerSideEncryptionByDefault"}
    return {"ServerSideEncryptionConfiguration": [renamed(rule, names) for rule in rules]}


def _lifecycle_rule(rule: dict[str, Any]) -> Properties:
    chosen = rule.get("Filter", {})
    chosen = chosen.get("And", chosen)
    expiration = renamed(rule.get("Expiration", {}), {"Days": "ExpirationInDays", "Date": "ExpirationDate"})
    found = {key: item for key, item in rule.items() if key not in ("Filter", "Expiration", "ID")}
    found |= {"Id": rule.get("ID"), **expiration}
    found |= {key: item for key, item in chosen.items() if key not in ("Tag", "Tags")}
    tags = chosen.get("Tags") or ([chosen["Tag"]] if "Tag" in chosen else [])
    if tags:
        found["TagFilters"] = tags
    if "Transitions" in rule:
        found["Transitions"] = [renamed(one, {"Days": "TransitionInDays"}) for one in rule["Transitions"]]
    if "NoncurrentVersionTransitions" in rule:
        moves = rule["NoncurrentVersionTransitions"]
        found["NoncurrentVersionTransitions"] = [renamed(one, {"NoncurrentDays": "TransitionInDays"}) for one in moves]
    return found


def _notification(reply: dict[str, Any]) -> Properties:
    found: Properties = {}
    for name, arn, target in (
        ("QueueConfigurations", "QueueArn", "Queue"),
        ("TopicConfigurations", "TopicArn", "Topic"),
        ("LambdaFunctionConfigurations", "LambdaFunctionArn", "Function"),
    ):
        rows = []
        for row in reply.get(name, []):
            rules = row.get("Filter", {}).get("Key", {}).get("FilterRules", [])
            chosen = {"Filter": {"S3Key": {"Rules": rules}}} if rules else {}
            rows += [{target: row[arn], "Event": event, **chosen} for event in row["Events"]]
        if rows:
            found[name.replace("LambdaFunction", "Lambda")] = rows
    if "EventBridgeConfiguration" in reply:
        found["EventBridgeConfiguration"] = {"EventBridgeEnabled": True}
    return found


def _canned_acl(reply: dict[str, Any]) -> str:
    grants = {
        (grant["Grantee"].get("URI", "owner").rpartition("/")[2], grant["Permission"]) for grant in reply["Grants"]
    }
    others = {grant for grant in grants if grant[0] != "owner"}
    if not others:
        return "Private"
    if others == {("LogDelivery", "WRITE"), ("LogDelivery", "READ_ACP")}:
        return "LogDeliveryWrite"
    return f"{sorted(others)}"


def bucket(source: Source, physical_id: str, _props: Properties) -> Actual:
    s3 = source.client("s3")

    def get(name: str) -> dict[str, Any]:
        reply: dict[str, Any] = optional(getattr(s3, name), *_NOT_CONFIGURED, Bucket=physical_id)
        return reply

    logging = get("get_bucket_logging").get("LoggingEnabled", {})
    cors_names = {"ID": "Id", "ExposeHeaders": "ExposedHeaders", "MaxAgeSeconds": "MaxAge"}
    found = {
        "BucketName": physical_id,
        "AccessControl": _canned_acl(s3.get_bucket_acl(Bucket=physical_id)),
        "BucketEncryption": _encryption(get("get_bucket_encryption")),
        "VersioningConfiguration": {"Status": get("get_bucket_versioning").get("Status")},
        "PublicAccessBlockConfiguration": get("get_public_access_block").get("PublicAccessBlockConfiguration", {}),
        "OwnershipControls": get("get_bucket_ownership_controls").get("OwnershipControls", {}),
        "LoggingConfiguration": renamed(
            logging, {"TargetBucket": "DestinationBucketName", "TargetPrefix": "LogFilePrefix"}
        ),
        "LifecycleConfiguration": {
            "Rules": [_lifecycle_rule(rule) for rule in get("get_bucket_lifecycle_configuration").get("Rules", [])]
        },
        "NotificationConfiguration": _notification(get("get_bucket_notification_configuration")),
        "CorsConfiguration": {
            "CorsRules": [renamed(rule, cors_names) for rule in get("get_bucket_cors").get("CORSRules", [])]
        },
        "Tags": tag_list(get("get_bucket_tagging").get("TagSet")),
    }
    attributes = {
        "Arn": f"arn:aws:s3:::{physical_id}",
        "DomainName": f"{physical_id}.s3.amazonaws.com",
        "RegionalDomainName": f"{physical_id}.s3.{source.region}.amazonaws.com",
    }
    return Actual(found, attributes)


def bucket_policy(source: Source, _physical_id: str, props: Properties) -> Actual:
    reply = source.client("s3").get_bucket_policy(Bucket=props["Bucket"])
    return Actual({"Bucket": props["Bucket"], "PolicyDocument": json.loads(reply["Policy"])})


_ECR_ABSENT = ("LifecyclePolicyNotFoundException", "RepositoryPolicyNotFoundException")


def repository(source: Source, physical_id: str, _props: Properties) -> Actual:
    ecr = source.client("ecr")
    raw = one(ecr.describe_repositories(repositoryNames=[physical_id])["repositories"], physical_id)
    key = {"repositoryName": physical_id}
    lifecycle = optional(ecr.get_lifecycle_policy, *_ECR_ABSENT, **key)
    policy = optional(ecr.get_repository_policy, *_ECR_ABSENT, **key)
    found = pascal(raw)
    found["LifecyclePolicy"] = {"LifecyclePolicyText": lifecycle.get("lifecyclePolicyText")}
    found["RepositoryPolicyText"] = policy.get("policyText")
    found["Tags"] = tag_list(ecr.list_tags_for_resource(resourceArn=raw["repositoryArn"])["tags"])
    return Actual(found, {"Arn": raw["repositoryArn"], "RepositoryUri": raw["repositoryUri"]})


def file_system(source: Source, physical_id: str, _props: Properties) -> Actual:
    raw = one(source.client("fsx").describe_file_systems(FileSystemIds=[physical_id])["FileSystems"], physical_id)
    # FSx itself does not show security groups: they are on its network interfaces.
    ec2 = source.client("ec2")
    rows = ec2.describe_network_interfaces(NetworkInterfaceIds=raw["NetworkInterfaceIds"])["NetworkInterfaces"]
    groups = sorted({group["GroupId"] for row in rows for group in row["Groups"]})
    attributes = {
        "Id": physical_id,
        "DNSName": raw["DNSName"],
        "ResourceARN": raw["ResourceARN"],
        "LustreMountName": raw["LustreConfiguration"]["MountName"],
    }
    return Actual({**raw, "SecurityGroupIds": groups, "Tags": tag_list(raw["Tags"])}, attributes)


READERS: dict[str, Reader] = {
    "AWS::ECR::Repository": repository,
    "AWS::FSx::FileSystem": file_system,
    "AWS::S3::Bucket": bucket,
    "AWS::S3::BucketPolicy": bucket_policy,
}
