"""Properties that the other stacks do not set, so that each one the emulator says it keeps is read back somewhere."""

from __future__ import annotations

from .bake import bake
from .base import Resources, allow, att, identity_policy, imported, ref, resource, tags, trust

CLUSTER = "moe"


def rare() -> Resources:
    return {**_network(), **_storage(), **_identity(), **_eks(), **_operations(), **bake()}


def _network() -> Resources:
    rule = {"GroupId": att("Group", "GroupId"), "IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "Description": "rare"}
    return {
        "Partitions": resource("EC2::PlacementGroup", {"Strategy": "partition", "PartitionCount": 3}),
        "Spread": resource("EC2::PlacementGroup", {"Strategy": "spread", "SpreadLevel": "rack"}),
        "Group": resource("EC2::SecurityGroup", {"GroupDescription": "rare", "VpcId": imported("net-vpc")}),
        "In4": resource("EC2::SecurityGroupIngress", {**rule, "CidrIp": "10.1.0.0/16"}),
        "In6": resource("EC2::SecurityGroupIngress", {**rule, "CidrIpv6": "fd00::/8"}),
        "InList": resource("EC2::SecurityGroupIngress", {**rule, "SourcePrefixListId": "pl-0123456789abcdef0"}),
        "Out4": resource("EC2::SecurityGroupEgress", {**rule, "CidrIp": "10.1.0.0/16"}),
        "Out6": resource("EC2::SecurityGroupEgress", {**rule, "CidrIpv6": "fd00::/8"}),
        "OutList": resource("EC2::SecurityGroupEgress", {**rule, "DestinationPrefixListId": "pl-0123456789abcdef0"}),
        "FlowLog": resource(
            "EC2::FlowLog",
            {
                "ResourceId": imported("net-subnet0"),
                "ResourceType": "Subnet",
                "TrafficType": "ALL",
                "LogDestinationType": "s3",
                "LogDestination": att("Bucket", "Arn"),
                "LogFormat": "${srcaddr} ${dstaddr}",
                "DestinationOptions": {
                    "FileFormat": "parquet",
                    "HiveCompatiblePartitions": True,
                    "PerHourPartition": False,
                },
            },
        ),
    }


def _storage() -> Resources:
    return {
        "Key": resource(
            "KMS::Key",
            {
                "Enabled": True,
                "KeySpec": "SYMMETRIC_DEFAULT",
                "KeyUsage": "ENCRYPT_DECRYPT",
                "MultiRegion": False,
                "PendingWindowInDays": 7,
                "KeyPolicy": allow("logs.amazonaws.com", "kms:*", "*"),
            },
        ),
        "Bucket": resource(
            "S3::Bucket",
            {
                "AccessControl": "LogDeliveryWrite",
                "OwnershipControls": {"Rules": [{"ObjectOwnership": "ObjectWriter"}]},
                "CorsConfiguration": {
                    "CorsRules": [
                        {"Id": "a", "AllowedMethods": ["GET"], "AllowedOrigins": ["https://example.com"], "MaxAge": 9}
                    ]
                },
                "NotificationConfiguration": {
                    "EventBridgeConfiguration": {"EventBridgeEnabled": True},
                    "QueueConfigurations": [
                        {
                            "Event": "s3:ObjectCreated:*",
                            "Queue": att("Queue", "Arn"),
                            "Filter": {"S3Key": {"Rules": [{"Name": "prefix", "Value": "samples/"}]}},
                        }
                    ],
                },
            },
            DependsOn=["QueuePolicy"],
        ),
        "Repository": resource("ECR::Repository", {"RepositoryName": "moe/rare", "EmptyOnDelete": True}),
    }


def _identity() -> Resources:
    return {
        "Role": resource("IAM::Role", {"AssumeRolePolicyDocument": trust("pods.eks.amazonaws.com")}),
        "Profile": resource("IAM::InstanceProfile", {"InstanceProfileName": "moe-rare", "Roles": [ref("Role")]}),
        "Policy": resource(
            "IAM::ManagedPolicy",
            {
                "ManagedPolicyName": "moe-rare",
                "Roles": [ref("Role")],
                "PolicyDocument": identity_policy("s3:GetObject", "*"),
            },
        ),
    }


def _eks() -> Resources:
    return {
        "Plain": resource(
            "EKS::Nodegroup",
            {
                "ClusterName": CLUSTER,
                "NodeRole": att("Role", "Arn"),
                "Subnets": [imported("net-subnet0")],
                "Version": "1.33",
                "DiskSize": 50,
                "InstanceTypes": ["m7i.large"],
                "ScalingConfig": {"MinSize": 1, "MaxSize": 2, "DesiredSize": 1},
                "WarmPoolConfig": {"Enabled": True, "MinSize": 1, "PoolState": "STOPPED", "ReuseOnScaleIn": True},
            },
        ),
        "Storage": resource(
            "EKS::Addon",
            {
                "ClusterName": CLUSTER,
                "AddonName": "aws-ebs-csi-driver",
                "ServiceAccountRoleArn": att("Role", "Arn"),
                "NamespaceConfig": {"Namespace": "storage"},
            },
        ),
        "Identity": resource(
            "EKS::PodIdentityAssociation",
            {
                "ClusterName": CLUSTER,
                "Namespace": "rare",
                "ServiceAccount": "rare",
                "RoleArn": att("Role", "Arn"),
                "TargetRoleArn": "arn:aws:iam::210987654321:role/target",
                "DisableSessionTags": True,
            },
        ),
    }


def _operations() -> Resources:
    metric = {"Namespace": "Moe", "MetricName": "m", "Period": 60, "EvaluationPeriods": 1}
    band = {"Id": "band", "Expression": "ANOMALY_DETECTION_BAND(m, 2)", "ReturnData": True}
    stat = {"Metric": {"Namespace": "Moe", "MetricName": "m"}, "Period": 60, "Stat": "Average"}
    return {
        "Usage": resource("CDK::Metadata", {"Analytics": "v2:deflate64:none"}),
        "Queue": resource("SQS::Queue"),
        "QueuePolicy": resource(
            "SQS::QueuePolicy",
            {
                "Queues": [ref("Queue")],
                "PolicyDocument": allow("s3.amazonaws.com", "sqs:SendMessage", att("Queue", "Arn")),
            },
        ),
        "Bus": resource(
            "Events::Rule",
            {
                "EventBusName": "default",
                "EventPattern": {"source": ["aws.s3"]},
                "RoleArn": att("Role", "Arn"),
                "Tags": tags(Name="rare"),
            },
        ),
        "Fifo": resource(
            "SNS::Topic",
            {
                "TopicName": "moe-rare.fifo",
                "FifoTopic": True,
                "ContentBasedDeduplication": True,
                "SignatureVersion": "2",
                "TracingConfig": "Active",
            },
        ),
        "Topic": resource("SNS::Topic", {"Subscription": [{"Protocol": "email", "Endpoint": "rare@example.com"}]}),
        "Subscription": resource(
            "SNS::Subscription",
            {
                "TopicArn": ref("Fifo"),
                "Protocol": "sqs",
                "Endpoint": att("Queue", "Arn"),
                "FilterPolicyScope": "MessageBody",
                "FilterPolicy": {"a": ["b"]},
                "RedrivePolicy": {"deadLetterTargetArn": att("Queue", "Arn")},
            },
        ),
        "Log": resource("Logs::LogGroup", {"KmsKeyId": att("Key", "Arn")}),
        "Percentile": resource(
            "CloudWatch::Alarm",
            {
                **metric,
                "ExtendedStatistic": "p99",
                "EvaluateLowSampleCountPercentile": "ignore",
                "Threshold": 1,
                "ComparisonOperator": "GreaterThanThreshold",
                "Unit": "Seconds",
                "InsufficientDataActions": [ref("Topic")],
            },
        ),
        "Band": resource(
            "CloudWatch::Alarm",
            {
                "EvaluationPeriods": 1,
                "ComparisonOperator": "GreaterThanUpperThreshold",
                "ThresholdMetricId": "band",
                "Metrics": [band, {"Id": "m", "MetricStat": stat, "ReturnData": True}],
            },
        ),
        "Board": resource("CloudWatch::Dashboard", {"DashboardBody": '{"widgets":[]}', "Tags": tags(Name="rare")}),
        "Schedule": resource(
            "Scheduler::Schedule",
            {
                "ScheduleExpression": "rate(1 hour)",
                "FlexibleTimeWindow": {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": 5},
                "StartDate": "2027-01-01T00:00:00Z",
                "EndDate": "2027-02-01T00:00:00Z",
                "KmsKeyArn": att("Key", "Arn"),
                "Target": {"Arn": att("Queue", "Arn"), "RoleArn": att("Role", "Arn")},
            },
        ),
        "Pattern": resource(
            "SSM::Parameter", {"Name": "/moe/rare", "Type": "String", "Value": "abc", "AllowedPattern": "^[a-z]+$"}
        ),
    }
