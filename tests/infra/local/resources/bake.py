"""Image Builder: a component, the recipe that names it, and the pipeline around them."""

from __future__ import annotations

import json

from .base import Resources, att, imported, ref, resource

SCRIPT = {
    "name": "script",
    "schemaVersion": 1.0,
    "phases": [
        {"name": "build", "steps": [{"name": "x", "action": "ExecuteBash", "inputs": {"commands": ["set -e\ntrue\n"]}}]}
    ],
}


def bake() -> Resources:
    return {
        "BakeScript": resource(
            "ImageBuilder::Component",
            {
                "Name": "moe-Script",
                "Version": "1.0.7",
                "Platform": "Linux",
                "SupportedOsVersions": ["Amazon Linux 2023"],
                "Description": "a script",
                "Data": json.dumps(SCRIPT),
                "Tags": {"Name": "script"},
            },
        ),
        "BakeRecipe": resource(
            "ImageBuilder::ImageRecipe",
            {
                "Name": "moe",
                "Version": "1.0.9",
                "Description": "a recipe",
                "ParentImage": "ssm:/aws/service/eks/image_id",
                "Components": [{"ComponentArn": att("BakeScript", "Arn")}],
                "BlockDeviceMappings": [
                    {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 60, "VolumeType": "gp3", "Encrypted": True}}
                ],
                "Tags": {"Name": "recipe"},
            },
        ),
        "BakeBuilder": resource(
            "ImageBuilder::InfrastructureConfiguration",
            {
                "Name": "moe",
                "Description": "a builder",
                "InstanceProfileName": ref("Profile"),
                "InstanceTypes": ["m7i.xlarge", "m6i.xlarge"],
                "SubnetId": imported("net-subnet0"),
                "SecurityGroupIds": [att("Group", "GroupId")],
                "InstanceMetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
                "TerminateInstanceOnFailure": True,
                "Tags": {"Name": "builder"},
            },
        ),
        "BakeTarget": resource(
            "ImageBuilder::DistributionConfiguration",
            {
                "Name": "moe",
                "Description": "a target",
                "Distributions": [
                    {
                        "Region": "us-west-2",
                        "AmiDistributionConfiguration": {
                            "Name": "moe {{ imagebuilder:buildDate }}",
                            "AmiTags": {"team:name": "rl"},
                        },
                        "SsmParameterConfigurations": [
                            {"ParameterName": "/imagebuilder/moe", "DataType": "aws:ec2:image"}
                        ],
                    }
                ],
                "Tags": {"Name": "target"},
            },
        ),
        "BakePipeline": resource(
            "ImageBuilder::ImagePipeline",
            {
                "Name": "moe",
                "Description": "a pipeline",
                "ImageRecipeArn": att("BakeRecipe", "Arn"),
                "InfrastructureConfigurationArn": att("BakeBuilder", "Arn"),
                "DistributionConfigurationArn": att("BakeTarget", "Arn"),
                "ImageTestsConfiguration": {"ImageTestsEnabled": True, "TimeoutMinutes": 60},
                "LoggingConfiguration": {"ImageLogGroupName": "/moe/bake", "PipelineLogGroupName": "/moe/bake"},
                "Status": "ENABLED",
                "Tags": {"Name": "pipeline"},
            },
        ),
    }
