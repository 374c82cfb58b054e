"""Changes to the stacks of `resources`: ones that CloudFormation makes in place, and ones that replace."""

from __future__ import annotations

import json
from typing import Any

from .resources import Resources, allow, att, imported, ref, sub, tags, trust

_DROP = object()

_DENY = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": sub("${Checkpoints.Arn}/*")}
_PULL = {"Sid": "Pull2", "Effect": "Allow", "Principal": "*", "Action": ["ecr:DescribeImages"]}


def _lifecycle_policy(images: int) -> str:
    selection = {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": images}
    return json.dumps({"rules": [{"rulePriority": 1, "selection": selection, "action": {"type": "expire"}}]})


# (stack, logical id, property path, new value); every property here updates in place on AWS.
IN_PLACE: tuple[tuple[str, str, str, Any], ...] = (
    ("Net", "Vpc", "EnableDnsHostnames", False),
    ("Net", "Vpc", "Tags", tags(Name="net2", Added="yes")),
    ("Net", "Igw", "Tags", tags(Name="igw2")),
    ("Net", "Public", "MapPublicIpOnLaunch", False),
    ("Net", "Eip", "Tags", _DROP),
    ("Net", "Nat", "Tags", tags(Name="nat2")),
    ("Net", "PublicTable", "Tags", tags(Name="public2")),
    ("Net", "S3Endpoint", "RouteTableIds", [ref("PrivateTable"), ref("PublicTable")]),
    ("Net", "S3Endpoint", "PolicyDocument", _DROP),
    ("Net", "EcrEndpoint", "SubnetIds", [ref("Private1")]),
    ("Net", "EcrEndpoint", "PrivateDnsEnabled", False),
    ("Net", "EcrEndpoint", "SecurityGroupIds", [att("EndpointGroup", "GroupId"), att("EfaGroup", "GroupId")]),
    (
        "Net",
        "EndpointGroup",
        "SecurityGroupIngress",
        [{"IpProtocol": "tcp", "FromPort": 443, "ToPort": 444, "CidrIp": "10.0.0.0/8", "Description": "wider"}],
    ),
    ("Net", "EndpointGroup", "SecurityGroupEgress", [{"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}]),
    ("Net", "EfaIn", "Description", "changed"),
    ("Net", "FlowGroup", "RetentionInDays", 60),
    ("Net", "FlowRole", "Tags", tags(Other="flow")),
    ("Net", "FlowLog", "Tags", tags(Name="flow2")),
    ("Data", "Key", "Description", "data, changed"),
    ("Data", "Key", "Tags", tags(Name="data2")),
    ("Data", "Key", "RotationPeriodInDays", 180),
    ("Data", "Checkpoints", "VersioningConfiguration", {"Status": "Suspended"}),
    ("Data", "Checkpoints", "LoggingConfiguration", _DROP),
    ("Data", "Checkpoints", "Tags", tags(Name="checkpoints2")),
    (
        "Data",
        "Checkpoints",
        "LifecycleConfiguration",
        {"Rules": [{"Id": "one", "Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 5}}]},
    ),
    ("Data", "Repository", "ImageTagMutability", "MUTABLE"),
    ("Data", "Repository", "ImageScanningConfiguration", {"ScanOnPush": False}),
    ("Data", "Repository", "Tags", tags(Name="train2")),
    ("Data", "FileSystem", "StorageCapacity", 2400),
    ("Data", "FileSystem", "LustreConfiguration.DataCompressionType", "NONE"),
    ("Data", "FileSystem", "Tags", tags(Name="scratch2")),
    ("Compute", "NodeRole", "Description", "other nodes"),
    ("Compute", "NodeRole", "PermissionsBoundary", _DROP),
    ("Compute", "NodeRole", "MaxSessionDuration", 3600),
    ("Compute", "NodeRole", "ManagedPolicyArns", ["arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"]),
    ("Compute", "NodeRole", "Policies", [{"PolicyName": "other", "PolicyDocument": allow("x", "s3:Get*", "*")}]),
    ("Compute", "NodeRole", "Tags", _DROP),
    ("Compute", "Boundary", "PolicyDocument.Statement", [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]),
    ("Compute", "PodPolicy", "PolicyDocument.Statement", [{"Effect": "Allow", "Action": "s3:Get*", "Resource": "*"}]),
    ("Compute", "Cluster", "Logging", {"ClusterLogging": {"EnabledTypes": [{"Type": "scheduler"}]}}),
    ("Compute", "Cluster", "UpgradePolicy", {"SupportType": "EXTENDED"}),
    ("Compute", "Cluster", "DeletionProtection", True),
    ("Compute", "Cluster", "ResourcesVpcConfig.EndpointPublicAccess", True),
    ("Compute", "Cluster", "ResourcesVpcConfig.PublicAccessCidrs", ["203.0.113.0/24"]),
    ("Compute", "Cluster", "Tags", tags(Name="moe2")),
    ("Compute", "Cni", "AddonVersion", "v1.21.0-eksbuild.1"),
    ("Compute", "Cni", "ConfigurationValues", _DROP),
    ("Compute", "Cni", "PodIdentityAssociations", []),
    ("Compute", "Cni", "Tags", _DROP),
    ("Compute", "Admin", "KubernetesGroups", ["editors"]),
    (
        "Compute",
        "Admin",
        "AccessPolicies",
        [
            {
                "PolicyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy",
                "AccessScope": {"Type": "namespace", "Namespaces": ["rl", "rollout"]},
            }
        ],
    ),
    ("Compute", "TrainerIdentity", "RoleArn", att("NodeRole", "Arn")),
    ("Compute", "TrainerIdentity", "Tags", tags(Name="trainer2")),
    ("Compute", "Template", "LaunchTemplateData.Monitoring", {"Enabled": False}),
    ("Compute", "Trainers", "UpdateConfig", {"MaxUnavailablePercentage": 50, "UpdateStrategy": "DEFAULT"}),
    ("Compute", "Trainers", "NodeRepairConfig", {"Enabled": False}),
    ("Compute", "Trainers", "Labels", {"pool": "trainers", "new": "label"}),
    ("Compute", "Trainers", "Taints", [{"Key": "dedicated", "Value": "rl", "Effect": "NO_EXECUTE"}]),
    ("Compute", "Trainers", "Tags", {"Other": "trainer"}),
    ("Compute", "Rollouts", "ScalingConfig", {"MinSize": 0, "MaxSize": 32}),
    ("Ops", "Notices", "VisibilityTimeout", 240),
    ("Ops", "Notices", "RedrivePolicy", {"deadLetterTargetArn": att("Dead", "Arn"), "maxReceiveCount": 9}),
    ("Ops", "Notices", "Tags", tags(Name="notices2")),
    ("Ops", "Spot", "Description", "changed"),
    ("Ops", "Spot", "Targets", [{"Id": "other", "Arn": att("Notices", "Arn")}]),
    ("Ops", "Daily", "ScheduleExpression", "rate(2 days)"),
    ("Ops", "Daily", "State", "ENABLED"),
    ("Ops", "Alerts", "DisplayName", "changed"),
    ("Ops", "Alerts", "Tags", tags(Name="alerts2")),
    ("Ops", "AlertsPolicy", "PolicyDocument", allow("budgets.amazonaws.com", "sns:Publish", ref("Alerts"))),
    ("Ops", "AlertsToQueue", "RawMessageDelivery", False),
    ("Ops", "AlertsToQueue", "FilterPolicy", {"kind": ["other"]}),
    ("Ops", "Log", "RetentionInDays", 7),
    ("Ops", "Log", "Tags", tags(Name="rl2")),
    ("Ops", "Fallbacks", "FilterPattern", '"NET/OFI"'),
    ("Ops", "LogAccess", "PolicyDocument", '{"Version":"2012-10-17","Statement":[]}'),
    ("Ops", "Depth", "Threshold", 20),
    ("Ops", "Depth", "AlarmActions", _DROP),
    ("Ops", "Depth", "Tags", tags(Name="depth2")),
    ("Ops", "Board", "DashboardBody", '{"widgets":[]}'),
    ("Ops", "Monthly", "Budget.BudgetLimit.Amount", 300000),
    ("Ops", "Monthly", "ResourceTags", tags(Name="monthly2")),
    ("Ops", "Build", "TimeoutInMinutes", 45),
    ("Ops", "Build", "ConcurrentBuildLimit", _DROP),
    ("Ops", "Build", "Environment.Image", "aws/codebuild/standard:8.0"),
    ("Ops", "Build", "VpcConfig.Subnets", [imported("net-subnet1")]),
    ("Ops", "Build", "Tags", tags(Name="apply2")),
    ("Ops", "Schedules", "Tags", tags(Name="moe2")),
    ("Ops", "Drain", "ScheduleExpression", "at(2027-02-01T00:00:00)"),
    ("Ops", "Drain", "ScheduleExpressionTimezone", "Europe/Berlin"),
    ("Ops", "Drain", "State", "DISABLED"),
    ("Ops", "Parameter", "Value", "{}"),
    ("Ops", "Parameter", "Description", "changed"),
    ("Ops", "Parameter", "Tags", {"Name": "plan2"}),
    ("Data", "Key", "KeyPolicy", allow("logs.amazonaws.com", "kms:*", "*")),
    ("Data", "CheckpointPolicy", "PolicyDocument.Statement", [_DENY]),
    ("Data", "Repository", "LifecyclePolicy.LifecyclePolicyText", _lifecycle_policy(7)),
    ("Data", "Repository", "RepositoryPolicyText.Statement", [_PULL]),
    ("Compute", "NodeRole", "AssumeRolePolicyDocument", trust("ec2.amazonaws.com", "sts:AssumeRole", "sts:TagSession")),
    ("Compute", "PodPolicy", "Roles", [ref("PodRole"), ref("NodeRole")]),
    ("Ops", "Notices", "MessageRetentionPeriod", 600),
    ("Ops", "Notices", "DelaySeconds", 3),
    ("Ops", "Notices", "MaximumMessageSize", 2048),
    ("Ops", "Notices", "ReceiveMessageWaitTimeSeconds", 7),
    ("Ops", "NoticesPolicy", "PolicyDocument", allow("sns.amazonaws.com", "sqs:SendMessage", att("Notices", "Arn"))),
    ("Ops", "DeadAllow", "RedriveAllowPolicy", {"redrivePermission": "allowAll"}),
    ("Ops", "DeadAllow", "KmsDataKeyReusePeriodSeconds", 900),
    ("Ops", "DeadAllow", "ContentBasedDeduplication", False),
    ("Ops", "Spot", "EventPattern", {"source": ["aws.ec2"], "detail-type": ["EC2 Instance Rebalance Recommendation"]}),
    (
        "Ops",
        "Fallbacks",
        "MetricTransformations",
        [{"MetricName": "Other", "MetricNamespace": "Moe", "MetricValue": "2", "Unit": "Bytes"}],
    ),
    ("Rare", "Topic", "Subscription", [{"Protocol": "email", "Endpoint": "other@example.com"}]),
    ("Rare", "Fifo", "TracingConfig", "PassThrough"),
    ("Rare", "Profile", "Roles", []),
    ("Rare", "Policy", "Roles", []),
    ("Rare", "Bucket", "NotificationConfiguration", {"EventBridgeConfiguration": {"EventBridgeEnabled": True}}),
    ("Rare", "Bucket", "CorsConfiguration", _DROP),
    ("Rare", "Plain", "Version", "1.34"),
    ("Rare", "Storage", "ServiceAccountRoleArn", "arn:aws:iam::123456789012:role/other"),
    ("Rare", "Identity", "DisableSessionTags", False),
    ("Rare", "Bus", "Tags", tags(Name="rare2")),
    ("Rare", "Log", "KmsKeyId", _DROP),
    ("Rare", "Board", "Tags", tags(Name="rare2")),
    ("Rare", "Schedule", "EndDate", "2027-03-01T00:00:00Z"),
    ("Rare", "Key", "Enabled", False),
    ("Rare", "BakeScript", "Tags", {"Name": "script2"}),
    ("Rare", "BakeRecipe", "Tags", _DROP),
    ("Rare", "BakeBuilder", "Description", _DROP),
    ("Rare", "BakeBuilder", "InstanceTypes", ["m7i.large"]),
    ("Rare", "BakeBuilder", "TerminateInstanceOnFailure", False),
    ("Rare", "BakeBuilder", "SubnetId", imported("net-subnet1")),
    ("Rare", "BakeTarget", "Description", "changed"),
    (
        "Rare",
        "BakeTarget",
        "Distributions",
        [{"Region": "us-west-2", "AmiDistributionConfiguration": {"Name": "other {{ imagebuilder:buildDate }}"}}],
    ),
    ("Rare", "BakePipeline", "Description", "changed"),
    ("Rare", "BakePipeline", "ImageTestsConfiguration", {"ImageTestsEnabled": False, "TimeoutMinutes": 120}),
    ("Rare", "BakePipeline", "Status", "DISABLED"),
)


def apply(
    stacks: dict[str, Resources], changes: tuple[tuple[str, str, str, Any], ...] = IN_PLACE
) -> dict[str, Resources]:
    """`stacks` with the changes made in them; returns the same object."""
    for stack, logical_id, path, value in changes:
        *parents, leaf = path.split(".")
        node = stacks[stack][logical_id]["Properties"]
        for name in parents:
            node = node[name]
        if value is _DROP:
            del node[leaf]
        else:
            node[leaf] = value
    return stacks
