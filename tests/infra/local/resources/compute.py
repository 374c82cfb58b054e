"""The compute stack: cluster, node groups and their identities."""

from __future__ import annotations

from typing import Any

from .base import EFA_CARDS, Resources, att, identity_policy, imported, ref, resource, sub, tags, trust


def launch_template_data() -> dict[str, Any]:
    interfaces = [
        {
            "NetworkCardIndex": card,
            "DeviceIndex": 0 if card == 0 else 1,
            "InterfaceType": "interface" if card == 0 else "efa-only",
            "Groups": [imported("net-efa")],
            "DeleteOnTermination": True,
            "Description": f"card {card}",
        }
        for card in range(EFA_CARDS)
    ]
    return {
        "InstanceType": "p5en.48xlarge",
        "NetworkInterfaces": interfaces,
        "Placement": {"GroupName": ref("Group")},
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
            "HttpEndpoint": "enabled",
            "InstanceMetadataTags": "enabled",
        },
        "Monitoring": {"Enabled": True},
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvda",
                "Ebs": {
                    "VolumeSize": 500,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                    "Iops": 6000,
                    "Throughput": 500,
                    "KmsKeyId": imported("data-key"),
                },
            }
        ],
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": tags(Name="trainer")},
            {"ResourceType": "volume", "Tags": tags(Name="trainer")},
        ],
        "UserData": {"Fn::Base64": sub("MIME-Version: 1.0\n# ${AWS::Region}\n")},
    }


def block_template_data() -> dict[str, Any]:
    return {
        "InstanceType": "p5en.48xlarge",
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}
        },
        "SecurityGroupIds": [imported("net-efa")],
        "ImageId": "ami-0123456789abcdef0",
    }


def cluster() -> Resources:
    name = ref("Cluster")
    return {
        "ClusterRole": resource(
            "IAM::Role",
            {
                "AssumeRolePolicyDocument": trust("eks.amazonaws.com"),
                "ManagedPolicyArns": [sub("arn:${AWS::Partition}:iam::aws:policy/AmazonEKSClusterPolicy")],
            },
        ),
        "Boundary": resource(
            "IAM::ManagedPolicy",
            {"Description": "boundary", "Path": "/moe/", "PolicyDocument": identity_policy("*", "*")},
        ),
        "NodeRole": resource(
            "IAM::Role",
            {
                "RoleName": "moe-node",
                "Path": "/moe/",
                "Description": "nodes",
                "MaxSessionDuration": 7200,
                "PermissionsBoundary": ref("Boundary"),
                "AssumeRolePolicyDocument": trust("ec2.amazonaws.com"),
                "ManagedPolicyArns": [
                    "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy",
                    "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy",
                ],
                "Policies": [
                    {"PolicyName": "pull", "PolicyDocument": identity_policy("ecr:GetAuthorizationToken", "*")}
                ],
                "Tags": tags(Name="node"),
            },
        ),
        "NodeProfile": resource("IAM::InstanceProfile", {"Path": "/moe/", "Roles": [ref("NodeRole")]}),
        "PodRole": resource(
            "IAM::Role",
            {"AssumeRolePolicyDocument": trust("pods.eks.amazonaws.com", "sts:AssumeRole", "sts:TagSession")},
        ),
        "PodPolicy": resource(
            "IAM::Policy",
            {
                "PolicyName": "data",
                "Roles": [ref("PodRole")],
                "PolicyDocument": identity_policy(
                    ["s3:GetObject", "s3:PutObject"],
                    {"Fn::Join": ["", ["arn:aws:s3:::", imported("data-bucket"), "/*"]]},
                ),
            },
        ),
        "Cluster": resource(
            "EKS::Cluster",
            {
                "Name": "moe",
                "Version": "1.34",
                "RoleArn": att("ClusterRole", "Arn"),
                "ResourcesVpcConfig": {
                    "SubnetIds": [imported("net-subnet0"), imported("net-subnet1")],
                    "SecurityGroupIds": [imported("net-efa")],
                    "EndpointPrivateAccess": True,
                    "EndpointPublicAccess": False,
                },
                "AccessConfig": {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False},
                "EncryptionConfig": [{"Provider": {"KeyArn": imported("data-key")}, "Resources": ["secrets"]}],
                "Logging": {"ClusterLogging": {"EnabledTypes": [{"Type": "api"}, {"Type": "audit"}]}},
                "UpgradePolicy": {"SupportType": "STANDARD"},
                "DeletionProtection": False,
                "BootstrapSelfManagedAddons": False,
                "KubernetesNetworkConfig": {"ServiceIpv4Cidr": "172.20.0.0/16", "IpFamily": "ipv4"},
                "Tags": tags(Name="moe"),
            },
        ),
        "Cni": resource(
            "EKS::Addon",
            {
                "ClusterName": name,
                "AddonName": "vpc-cni",
                "AddonVersion": "v1.20.4-eksbuild.1",
                "ConfigurationValues": '{"enableNetworkPolicy":"true"}',
                "ResolveConflicts": "OVERWRITE",
                "PreserveOnDelete": False,
                "PodIdentityAssociations": [{"ServiceAccount": "aws-node", "RoleArn": att("PodRole", "Arn")}],
                "Tags": tags(Name="cni"),
            },
        ),
        "Admin": resource(
            "EKS::AccessEntry",
            {
                "ClusterName": name,
                "PrincipalArn": sub("arn:aws:iam::${AWS::AccountId}:role/Admin"),
                "Type": "STANDARD",
                "KubernetesGroups": ["viewers"],
                "Username": "admin:{{SessionName}}",
                "AccessPolicies": [
                    {
                        "PolicyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
                        "AccessScope": {"Type": "cluster"},
                    },
                    {
                        "PolicyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy",
                        "AccessScope": {"Type": "namespace", "Namespaces": ["rl"]},
                    },
                ],
                "Tags": tags(Name="admin"),
            },
        ),
        "NodeEntry": resource(
            "EKS::AccessEntry", {"ClusterName": name, "PrincipalArn": att("NodeRole", "Arn"), "Type": "EC2_LINUX"}
        ),
        "TrainerIdentity": resource(
            "EKS::PodIdentityAssociation",
            {
                "ClusterName": name,
                "Namespace": "rl",
                "ServiceAccount": "trainer",
                "RoleArn": att("PodRole", "Arn"),
                "Tags": tags(Name="trainer"),
            },
        ),
        "Group": resource("EC2::PlacementGroup", {"Strategy": "cluster", "Tags": tags(Name="trainer")}),
        "Template": resource(
            "EC2::LaunchTemplate",
            {
                "LaunchTemplateData": launch_template_data(),
                "TagSpecifications": [{"ResourceType": "launch-template", "Tags": tags(Name="trainer")}],
            },
        ),
        "Trainers": resource(
            "EKS::Nodegroup",
            {
                "ClusterName": name,
                "NodeRole": att("NodeRole", "Arn"),
                "Subnets": [imported("net-subnet0")],
                "AmiType": "AL2023_x86_64_NVIDIA",
                "CapacityType": "ON_DEMAND",
                "ReleaseVersion": "1.34.1-20261003",
                "ForceUpdateEnabled": False,
                "ScalingConfig": {"MinSize": 2, "MaxSize": 2, "DesiredSize": 2},
                "UpdateConfig": {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"},
                "NodeRepairConfig": {
                    "Enabled": True,
                    "MaxUnhealthyNodeThresholdPercentage": 20,
                    "MaxParallelNodesRepairedCount": 1,
                    "NodeRepairConfigOverrides": [
                        {
                            "NodeMonitoringCondition": "AcceleratedHardwareReady",
                            "NodeUnhealthyReason": "NvidiaXID64Error",
                            "MinRepairWaitTimeMins": 10,
                            "RepairAction": "NoAction",
                        }
                    ],
                },
                "LaunchTemplate": {"Id": ref("Template"), "Version": att("Template", "LatestVersionNumber")},
                "Labels": {"pool": "trainer", "moe/role": "train"},
                "Taints": [{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}],
                "Tags": {"Name": "trainer"},
            },
            DependsOn=["Cni", "NodeEntry"],
        ),
        "Rollouts": resource(
            "EKS::Nodegroup",
            {
                "ClusterName": name,
                "NodeRole": att("NodeRole", "Arn"),
                "Subnets": [imported("net-subnet0"), imported("net-subnet1")],
                "AmiType": "AL2023_x86_64_NVIDIA",
                "CapacityType": "SPOT",
                "InstanceTypes": ["g6e.12xlarge", "g6.12xlarge"],
                "ScalingConfig": {"MinSize": 0, "MaxSize": 8},
            },
            DependsOn=["NodeEntry"],
        ),
        "BlockTemplate": resource(
            "EC2::LaunchTemplate",
            {
                "LaunchTemplateName": "moe-block",
                "VersionDescription": "block",
                "LaunchTemplateData": block_template_data(),
            },
        ),
        "Block": resource(
            "EKS::Nodegroup",
            {
                "ClusterName": name,
                "NodegroupName": "block",
                "NodeRole": att("NodeRole", "Arn"),
                "Subnets": [imported("net-subnet1")],
                "CapacityType": "CAPACITY_BLOCK",
                "ScalingConfig": {"MinSize": 0, "MaxSize": 4, "DesiredSize": 0},
                "LaunchTemplate": {"Name": "moe-block", "Version": att("BlockTemplate", "LatestVersionNumber")},
            },
            DependsOn=["NodeEntry"],
        ),
    }
