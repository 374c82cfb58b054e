"""The operations stack: queues, topics, rules, logs, alarms, builds and schedules."""

from __future__ import annotations

import json

from .base import Resources, allow, att, imported, ref, resource, tags, trust


def operations() -> Resources:
    queue_policy = allow(
        "events.amazonaws.com",
        "sqs:SendMessage",
        att("Notices", "Arn"),
        Condition={"ArnEquals": {"aws:SourceArn": att("Spot", "Arn")}},
    )
    return {
        "Dead": resource("SQS::Queue", {"SqsManagedSseEnabled": True, "MessageRetentionPeriod": 1209600}),
        "Notices": resource(
            "SQS::Queue",
            {
                "QueueName": "moe-notices",
                "DelaySeconds": 1,
                "MaximumMessageSize": 65536,
                "MessageRetentionPeriod": 300,
                "ReceiveMessageWaitTimeSeconds": 20,
                "VisibilityTimeout": 120,
                "SqsManagedSseEnabled": True,
                "RedrivePolicy": {"deadLetterTargetArn": att("Dead", "Arn"), "maxReceiveCount": 5},
                "Tags": tags(Name="notices"),
            },
        ),
        "DeadAllow": resource(
            "SQS::Queue",
            {
                "QueueName": "moe-dead.fifo",
                "FifoQueue": True,
                "ContentBasedDeduplication": True,
                "DeduplicationScope": "messageGroup",
                "FifoThroughputLimit": "perMessageGroupId",
                "KmsMasterKeyId": "alias/aws/sqs",
                "KmsDataKeyReusePeriodSeconds": 600,
                "RedriveAllowPolicy": {"redrivePermission": "denyAll"},
            },
        ),
        "NoticesPolicy": resource("SQS::QueuePolicy", {"Queues": [ref("Notices")], "PolicyDocument": queue_policy}),
        "Spot": resource(
            "Events::Rule",
            {
                "Description": "Spot notices",
                "EventPattern": {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]},
                "State": "ENABLED",
                "Targets": [
                    {
                        "Id": "queue",
                        "Arn": att("Notices", "Arn"),
                        "DeadLetterConfig": {"Arn": att("Dead", "Arn")},
                        "RetryPolicy": {"MaximumEventAgeInSeconds": 120, "MaximumRetryAttempts": 2},
                    }
                ],
            },
        ),
        "Daily": resource(
            "Events::Rule", {"Name": "moe-daily", "ScheduleExpression": "rate(1 day)", "State": "DISABLED"}
        ),
        "Alerts": resource(
            "SNS::Topic",
            {
                "TopicName": "moe-alerts",
                "DisplayName": "alerts",
                "KmsMasterKeyId": "alias/aws/sns",
                "Tags": tags(Name="alerts"),
            },
        ),
        "AlertsPolicy": resource(
            "SNS::TopicPolicy",
            {
                "Topics": [ref("Alerts")],
                "PolicyDocument": allow("cloudwatch.amazonaws.com", "sns:Publish", ref("Alerts")),
            },
        ),
        "AlertsToQueue": resource(
            "SNS::Subscription",
            {
                "TopicArn": ref("Alerts"),
                "Protocol": "sqs",
                "Endpoint": att("Notices", "Arn"),
                "RawMessageDelivery": True,
                "FilterPolicy": {"kind": ["alarm"]},
            },
        ),
        "Mail": resource(
            "SNS::Subscription", {"TopicArn": ref("Alerts"), "Protocol": "email", "Endpoint": "ops@example.com"}
        ),
        "Log": resource(
            "Logs::LogGroup",
            {"LogGroupName": "/moe/rl", "RetentionInDays": 90, "LogGroupClass": "STANDARD", "Tags": tags(Name="rl")},
        ),
        "Fallbacks": resource(
            "Logs::MetricFilter",
            {
                "LogGroupName": ref("Log"),
                "FilterName": "tcp-fallback",
                "FilterPattern": '"NET/Socket"',
                "MetricTransformations": [
                    {
                        "MetricName": "TcpFallback",
                        "MetricNamespace": "Moe",
                        "MetricValue": "1",
                        "DefaultValue": 0,
                        "Unit": "Count",
                    }
                ],
            },
        ),
        "LogAccess": resource(
            "Logs::ResourcePolicy",
            {
                "PolicyName": "moe-events",
                "PolicyDocument": json.dumps(allow("events.amazonaws.com", ["logs:PutLogEvents"], "*")),
            },
        ),
        "Depth": resource(
            "CloudWatch::Alarm",
            {
                "AlarmName": "moe-depth",
                "AlarmDescription": "tasks wait",
                "Namespace": "AWS/SQS",
                "MetricName": "ApproximateNumberOfMessagesVisible",
                "Dimensions": [{"Name": "QueueName", "Value": att("Notices", "QueueName")}],
                "Statistic": "Maximum",
                "Period": 300,
                "EvaluationPeriods": 3,
                "DatapointsToAlarm": 2,
                "Threshold": 10,
                "ComparisonOperator": "GreaterThanThreshold",
                "TreatMissingData": "notBreaching",
                "AlarmActions": [ref("Alerts")],
                "OKActions": [ref("Alerts")],
                "ActionsEnabled": True,
                "Tags": tags(Name="depth"),
            },
        ),
        "Ratio": resource(
            "CloudWatch::Alarm",
            {
                "EvaluationPeriods": 1,
                "Threshold": 0.5,
                "ComparisonOperator": "LessThanThreshold",
                "Metrics": [
                    {"Id": "r", "Expression": "a/b", "Label": "ratio", "ReturnData": True},
                    {
                        "Id": "a",
                        "ReturnData": False,
                        "MetricStat": {
                            "Metric": {
                                "Namespace": "Moe",
                                "MetricName": "Done",
                                "Dimensions": [{"Name": "Pool", "Value": "rollout"}],
                            },
                            "Period": 60,
                            "Stat": "Sum",
                        },
                    },
                    {
                        "Id": "b",
                        "ReturnData": False,
                        "MetricStat": {
                            "Metric": {"Namespace": "Moe", "MetricName": "Started"},
                            "Period": 60,
                            "Stat": "Sum",
                        },
                    },
                ],
            },
        ),
        "Board": resource(
            "CloudWatch::Dashboard",
            {
                "DashboardName": "moe",
                "DashboardBody": {
                    "Fn::Join": [
                        "",
                        [
                            '{"widgets":[{"type":"text","x":0,"y":0,"width":6,"height":3,"properties":{"markdown":"',
                            ref("AWS::Region"),
                            '"}}]}',
                        ],
                    ]
                },
            },
        ),
        "Monthly": resource(
            "Budgets::Budget",
            {
                "Budget": {
                    "BudgetName": "moe-monthly",
                    "BudgetType": "COST",
                    "TimeUnit": "MONTHLY",
                    "BudgetLimit": {"Amount": 250000, "Unit": "USD"},
                    "CostFilters": {"TagKeyValue": ["user:moerl:environment$demo"]},
                },
                "NotificationsWithSubscribers": [
                    {
                        "Notification": {
                            "NotificationType": "FORECASTED",
                            "ComparisonOperator": "GREATER_THAN",
                            "Threshold": 80,
                            "ThresholdType": "PERCENTAGE",
                        },
                        "Subscribers": [{"SubscriptionType": "SNS", "Address": ref("Alerts")}],
                    }
                ],
                "ResourceTags": tags(Name="monthly"),
            },
        ),
        "BuildRole": resource("IAM::Role", {"AssumeRolePolicyDocument": trust("codebuild.amazonaws.com")}),
        "Build": resource(
            "CodeBuild::Project",
            {
                "Name": "moe-apply",
                "Description": "applies manifests",
                "ServiceRole": att("BuildRole", "Arn"),
                "Artifacts": {"Type": "NO_ARTIFACTS"},
                "Cache": {"Type": "NO_CACHE"},
                "ConcurrentBuildLimit": 1,
                "EncryptionKey": "alias/aws/s3",
                "TimeoutInMinutes": 30,
                "QueuedTimeoutInMinutes": 60,
                "Source": {
                    "Type": "NO_SOURCE",
                    "BuildSpec": "version: 0.2\nphases:\n  build:\n    commands:\n      - kubectl version\n",
                },
                "Environment": {
                    "Type": "LINUX_CONTAINER",
                    "ComputeType": "BUILD_GENERAL1_SMALL",
                    "Image": "aws/codebuild/standard:7.0",
                    "PrivilegedMode": False,
                    "ImagePullCredentialsType": "CODEBUILD",
                    "EnvironmentVariables": [{"Name": "CLUSTER", "Type": "PLAINTEXT", "Value": "moe"}],
                },
                "LogsConfig": {"CloudWatchLogs": {"Status": "ENABLED", "GroupName": ref("Log"), "StreamName": "apply"}},
                "VpcConfig": {
                    "VpcId": imported("net-vpc"),
                    "Subnets": [imported("net-subnet0")],
                    "SecurityGroupIds": [imported("net-efa")],
                },
                "Tags": tags(Name="apply"),
            },
        ),
        "ScheduleRole": resource("IAM::Role", {"AssumeRolePolicyDocument": trust("scheduler.amazonaws.com")}),
        "Schedules": resource("Scheduler::ScheduleGroup", {"Name": "moe", "Tags": tags(Name="moe")}),
        "Drain": resource(
            "Scheduler::Schedule",
            {
                "Name": "moe-drain",
                "GroupName": ref("Schedules"),
                "Description": "drain before the block ends",
                "ScheduleExpression": "at(2027-01-01T00:00:00)",
                "ScheduleExpressionTimezone": "UTC",
                "State": "ENABLED",
                "FlexibleTimeWindow": {"Mode": "OFF"},
                "Target": {
                    "Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig",
                    "RoleArn": att("ScheduleRole", "Arn"),
                    "Input": '{"clusterName":"moe","nodegroupName":"block"}',
                    "RetryPolicy": {"MaximumEventAgeInSeconds": 600, "MaximumRetryAttempts": 3},
                    "DeadLetterConfig": {"Arn": att("Dead", "Arn")},
                },
            },
        ),
        "Parameter": resource(
            "SSM::Parameter",
            {
                "Name": "/moe/plan",
                "Type": "String",
                "Value": '{"efa":16}',
                "Description": "plan",
                "Tier": "Standard",
                "Tags": {"Name": "plan"},
            },
        ),
    }
