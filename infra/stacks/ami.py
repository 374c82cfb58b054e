"""Ami: an Image Builder pipeline that bakes an AMI for GPU pools, for environments that ask for it (`images.bake_ami`).

When it is worth having: the stock EKS image's EFA driver is older than GPU-direct EFA needs, or nodes shall not build gdrdrv
themselves. An EFA driver cannot be replaced under user data, since it is loaded by then.

It has no schedule: an AMI is a release, and whoever starts the pipeline decides about one.

    aws imagebuilder start-image-pipeline-execution --image-pipeline-arn <output AmiPipelineArn>
    aws ssm get-parameter --name <output AmiParameterName> --query Parameter.Value --output text

The id then goes into the file, `pools.NAME.ami: {id: ami-..., baked: true}`, and not straight from the parameter into launch
templates: a bake would roll nodes at some later deploy, and no review would have shown it.

Built on a CPU instance, against every open driver that the parent image keeps: one before release 20260917, two since, of
which a node's first boot chooses one. Not proven: that the modules load, which shows on a node, where preflight reads it.
Bake one AMI for each generation of instances, as EKS advises, and never update its packages in place.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_imagebuilder as imagebuilder
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config.bake_plan import BakePlan
from infra.config.plan import Plan
from infra.constructs.acknowledge import acknowledge
from infra.constructs.ami_components import components, content_version
from infra.constructs.security_group import ANYWHERE, HTTPS
from infra.constructs.stack import PlanStack
from infra.stacks.network import NetworkStack

BUILDER_TYPES = ["m7i.4xlarge", "m6i.4xlarge"]
ROOT_DEVICE, ROOT_GIB = "/dev/xvda", 60
LOG_RETENTION = logs.RetentionDays.THREE_MONTHS
BUILDER_POLICIES = ("EC2InstanceProfileForImageBuilder", "AmazonSSMManagedInstanceCore")


class AmiStack(PlanStack):
    """Components, recipe, builder, distribution and pipeline. The AMIs that come out belong to no stack."""

    def __init__(self, scope: Construct, plan: Plan, bake: BakePlan, *, network: NetworkStack) -> None:
        super().__init__(scope, "ami", plan, description="Bakes an AMI for GPU pools")
        name = plan.names.ami_pipeline
        recipe = self._recipe(bake, self._components(bake))
        log = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"/aws/imagebuilder/{name}",
            retention=LOG_RETENTION,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        pipeline = imagebuilder.CfnImagePipeline
        self.pipeline = pipeline(
            self,
            "Pipeline",
            name=name,
            description=f"AL2023 NVIDIA {bake.parent_release} with EFA driver {bake.efa_driver} and gdrcopy {bake.gdrcopy}",
            image_recipe_arn=recipe.attr_arn,
            infrastructure_configuration_arn=self._builder(network).attr_arn,
            distribution_configuration_arn=self._distribution(bake).attr_arn,
            logging_configuration=pipeline.PipelineLoggingConfigurationProperty(
                image_log_group_name=log.log_group_name, pipeline_log_group_name=log.log_group_name
            ),
            image_tests_configuration=pipeline.ImageTestsConfigurationProperty(
                image_tests_enabled=True, timeout_minutes=60
            ),
            status="ENABLED",
        )
        cdk.CfnOutput(self, "AmiPipelineArn", value=self.pipeline.attr_arn)
        cdk.CfnOutput(self, "AmiParameterName", value=plan.names.ami_parameter)

    def _components(self, bake: BakePlan) -> list[imagebuilder.CfnComponent]:
        return [
            imagebuilder.CfnComponent(
                self,
                f"Component-{component.name}",
                name=f"{self.plan.names.ami_pipeline}-{component.name}",
                version=component.version,
                platform="Linux",
                supported_os_versions=["Amazon Linux 2023"],
                description=component.description,
                data=component.data,
            )
            for component in components(bake)
        ]

    def _recipe(self, bake: BakePlan, made: list[imagebuilder.CfnComponent]) -> imagebuilder.CfnImageRecipe:
        recipe = imagebuilder.CfnImageRecipe
        parent = f"ssm:{bake.parent_parameter}"
        return recipe(
            self,
            "Recipe",
            name=self.plan.names.ami_pipeline,
            version=content_version(parent, str(ROOT_GIB), *(component.version for component in components(bake))),
            parent_image=parent,
            components=[recipe.ComponentConfigurationProperty(component_arn=component.attr_arn) for component in made],
            block_device_mappings=[
                recipe.InstanceBlockDeviceMappingProperty(
                    device_name=ROOT_DEVICE,
                    ebs=recipe.EbsInstanceBlockDeviceSpecificationProperty(
                        volume_size=ROOT_GIB, volume_type="gp3", encrypted=True, delete_on_termination=True
                    ),
                )
            ],
        )

    def _builder(self, network: NetworkStack) -> imagebuilder.CfnInfrastructureConfiguration:
        """A CPU instance in a private subnet, reached through Session Manager's agent alone."""
        plan = self.plan
        role = iam.Role(
            self,
            "BuilderRole",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            description=f"{plan.name}: bakes an AMI",
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in BUILDER_POLICIES],
        )
        for name in BUILDER_POLICIES:
            acknowledge(
                role,
                f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{name}]",
                "Image Builder documents this policy for builders; it reads components and writes Image Builder's logs",
            )
        profile = iam.CfnInstanceProfile(self, "BuilderProfile", roles=[role.role_name])
        group = ec2.CfnSecurityGroup(
            self,
            "BuilderSecurityGroup",
            vpc_id=network.vpc.ref,
            group_description="Builders of AMIs",
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, cidr_ip=ANYWHERE, description="Packages, AWS"
                )
            ],
            tags=[cdk.CfnTag(key="Name", value=plan.names.ami_pipeline)],
        )
        builder = imagebuilder.CfnInfrastructureConfiguration
        return builder(
            self,
            "Builder",
            name=plan.names.ami_pipeline,
            instance_profile_name=profile.ref,
            instance_types=BUILDER_TYPES,
            subnet_id=network.private_subnets[plan.network.zones[0]].ref,
            security_group_ids=[group.attr_group_id],
            instance_metadata_options=builder.InstanceMetadataOptionsProperty(
                http_tokens="required", http_put_response_hop_limit=1
            ),
            terminate_instance_on_failure=True,
        )

    def _distribution(self, bake: BakePlan) -> imagebuilder.CfnDistributionConfiguration:
        """To this account and region, shared with nobody; the id goes to a parameter."""
        plan, distribution = self.plan, imagebuilder.CfnDistributionConfiguration
        return distribution(
            self,
            "Distribution",
            name=plan.names.ami_pipeline,
            distributions=[
                distribution.DistributionProperty(
                    region=plan.region,
                    ami_distribution_configuration={
                        "Name": f"{plan.names.ami_pipeline}-{{{{ imagebuilder:buildDate }}}}",
                        "Description": f"EKS {bake.parent_release}, EFA driver {bake.efa_driver}, gdrcopy {bake.gdrcopy}",
                        "AmiTags": {"moerl:environment": plan.name, "moerl:parent": bake.parent_release},
                    },
                    ssm_parameter_configurations=[
                        distribution.SsmParameterConfigurationProperty(
                            parameter_name=plan.names.ami_parameter, data_type="aws:ec2:image"
                        )
                    ],
                )
            ],
        )
