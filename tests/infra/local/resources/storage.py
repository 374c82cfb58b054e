"""The data stack: S3, KMS, ECR and FSx."""

from __future__ import annotations

import json

from .base import Resources, att, imported, ref, resource, sub, tags


def storage() -> Resources:
    key_policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {
                    "AWS": {"Fn::Join": [":", ["arn", ref("AWS::Partition"), "iam:", ref("AWS::AccountId"), "root"]]}
                },
                "Action": "kms:*",
                "Resource": "*",
            }
        ],
    }
    closed = dict.fromkeys(("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True)
    return {
        "Key": resource(
            "KMS::Key",
            {"Description": "data", "EnableKeyRotation": True, "KeyPolicy": key_policy, "Tags": tags(Name="data")},
        ),
        "KeyAlias": resource("KMS::Alias", {"AliasName": "alias/data", "TargetKeyId": att("Key", "Arn")}),
        "Logs": resource(
            "S3::Bucket",
            {
                "BucketEncryption": {
                    "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
                },
                "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerPreferred"}]},
                "PublicAccessBlockConfiguration": closed,
            },
        ),
        "Checkpoints": resource(
            "S3::Bucket",
            {
                "BucketName": sub("checkpoints-${AWS::AccountId}"),
                "BucketEncryption": {
                    "ServerSideEncryptionConfiguration": [
                        {
                            "BucketKeyEnabled": True,
                            "ServerSideEncryptionByDefault": {
                                "SSEAlgorithm": "aws:kms",
                                "KMSMasterKeyID": att("Key", "Arn"),
                            },
                        }
                    ]
                },
                "VersioningConfiguration": {"Status": "Enabled"},
                "PublicAccessBlockConfiguration": closed,
                "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
                "LoggingConfiguration": {"DestinationBucketName": ref("Logs"), "LogFilePrefix": "checkpoints/"},
                "LifecycleConfiguration": {
                    "Rules": [
                        {
                            "Id": "old",
                            "Status": "Enabled",
                            "NoncurrentVersionExpiration": {"NoncurrentDays": 14, "NewerNoncurrentVersions": 3},
                            "NoncurrentVersionTransitions": [{"StorageClass": "STANDARD_IA", "TransitionInDays": 30}],
                        },
                        {
                            "Id": "parts",
                            "Status": "Enabled",
                            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
                        },
                        {
                            "Id": "samples",
                            "Status": "Enabled",
                            "Prefix": "samples/",
                            "ExpirationInDays": 30,
                            "Transitions": [{"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 7}],
                        },
                        {
                            "Id": "tagged",
                            "Status": "Disabled",
                            "Prefix": "tmp/",
                            "TagFilters": [{"Key": "keep", "Value": "no"}],
                            "ExpirationInDays": 1,
                        },
                        {"Id": "markers", "Status": "Enabled", "ExpiredObjectDeleteMarker": True},
                    ]
                },
                "Tags": tags(Name="checkpoints"),
            },
            DeletionPolicy="Retain",
            UpdateReplacePolicy="Retain",
        ),
        "CheckpointPolicy": resource(
            "S3::BucketPolicy",
            {
                "Bucket": ref("Checkpoints"),
                "PolicyDocument": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Sid": "TlsOnly",
                            "Effect": "Deny",
                            "Principal": {"AWS": "*"},
                            "Action": "s3:*",
                            "Resource": [
                                att("Checkpoints", "Arn"),
                                {"Fn::Join": ["", [att("Checkpoints", "Arn"), "/*"]]},
                            ],
                            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                        }
                    ],
                },
            },
        ),
        "Repository": resource(
            "ECR::Repository",
            {
                "RepositoryName": "moe/train",
                "ImageScanningConfiguration": {"ScanOnPush": True},
                "ImageTagMutability": "IMMUTABLE",
                "EncryptionConfiguration": {"EncryptionType": "KMS", "KmsKey": att("Key", "Arn")},
                "LifecyclePolicy": {
                    "LifecyclePolicyText": json.dumps(
                        {
                            "rules": [
                                {
                                    "rulePriority": 1,
                                    "selection": {
                                        "tagStatus": "any",
                                        "countType": "imageCountMoreThan",
                                        "countNumber": 50,
                                    },
                                    "action": {"type": "expire"},
                                }
                            ]
                        }
                    )
                },
                "RepositoryPolicyText": {
                    "Version": "2012-10-17",
                    "Statement": [
                        {
                            "Sid": "Pull",
                            "Effect": "Allow",
                            "Principal": {"AWS": sub("arn:aws:iam::${AWS::AccountId}:root")},
                            "Action": ["ecr:BatchGetImage"],
                        }
                    ],
                },
                "Tags": tags(Name="train"),
            },
        ),
        "FileSystem": resource(
            "FSx::FileSystem",
            {
                "FileSystemType": "LUSTRE",
                "FileSystemTypeVersion": "2.15",
                "StorageCapacity": 1200,
                "StorageType": "SSD",
                "SubnetIds": [imported("net-subnet0")],
                "SecurityGroupIds": [imported("net-efa")],
                "KmsKeyId": att("Key", "Arn"),
                "LustreConfiguration": {
                    "DeploymentType": "PERSISTENT_2",
                    "PerUnitStorageThroughput": 250,
                    "DataCompressionType": "LZ4",
                    "EfaEnabled": True,
                    "MetadataConfiguration": {"Mode": "AUTOMATIC"},
                },
                "Tags": tags(Name="scratch"),
            },
        ),
    }


STORAGE_EXPORTS = {
    "data-key": att("Key", "Arn"),
    "data-bucket": ref("Checkpoints"),
    "data-repository": att("Repository", "RepositoryUri"),
}
