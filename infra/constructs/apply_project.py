"""A CodeBuild project inside the VPC that applies rendered manifests: the way in to a private API endpoint.

Whoever may start a build administers the cluster (StartBuild takes another build specification), so grant
`codebuild:StartBuild` on the project as you would grant cluster-admin.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import CfnTag
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.acknowledge import acknowledge
from infra.constructs.apply_script import KUBECTL_PREFIX, PUBLIC_KUBECTL_BUCKET, RENDERED_PREFIX, buildspec
from infra.constructs.build_project import IMAGE, build_logs, build_role, environment_variables
from infra.constructs.pod_identity import allow, bucket_arn, cluster_arn
from infra.constructs.security_group import ANYWHERE, HTTPS

TIMEOUT_MINUTES = 30
DESCRIBE_NETWORK = (
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)


def apply_security_group(scope: Construct, plan: Plan, *, vpc_id: str) -> ec2.CfnSecurityGroup:
    """HTTPS out, to the API server, the endpoints and S3; nothing in."""
    group = ec2.CfnSecurityGroup
    return group(
        scope,
        "ApplySecurityGroup",
        vpc_id=vpc_id,
        group_description="Builds that apply manifests",
        security_group_egress=[
            group.EgressProperty(
                ip_protocol="tcp", from_port=HTTPS, to_port=HTTPS, cidr_ip=ANYWHERE, description="API server, AWS, S3"
            )
        ],
        tags=[CfnTag(key="Name", value=f"{plan.name}-apply")],
    )


def apply_role(scope: Construct, plan: Plan, *, subnet_ids: Sequence[str], security_group_id: str) -> iam.Role:
    """Reads one bucket, writes one log group, describes one cluster, attaches to the given subnets alone."""
    ec2_arn = f"arn:{plan.partition}:ec2:{plan.region}:{plan.account}"
    subnets = [f"{ec2_arn}:subnet/{subnet}" for subnet in subnet_ids]
    interfaces = f"{ec2_arn}:network-interface/*"
    bucket = bucket_arn(plan, plan.names.apply_bucket)
    readable = [f"{bucket}/{RENDERED_PREFIX}*"]
    if plan.network.egress == "none":
        readable.append(f"{bucket}/{KUBECTL_PREFIX}*")
    statements = [
        allow(["s3:GetObject"], readable),
        allow(["eks:DescribeCluster"], [cluster_arn(plan)]),
        allow(
            ["ec2:CreateNetworkInterface"],
            [interfaces, f"{ec2_arn}:security-group/{security_group_id}", *subnets],
        ),
        allow(["ec2:DeleteNetworkInterface"], [interfaces], ArnEquals={"ec2:Subnet": subnets}),
        allow(
            ["ec2:CreateNetworkInterfacePermission"],
            [interfaces],
            StringEquals={"ec2:AuthorizedService": "codebuild.amazonaws.com"},
            ArnEquals={"ec2:Subnet": subnets},
        ),
        allow(DESCRIBE_NETWORK, ["*"]),
    ]
    role = build_role(
        scope,
        "ApplyRole",
        plan,
        project_name=plan.names.apply_project,
        purpose="applies manifests",
        statements=statements,
    )
    for finding, reason in _accepted(readable, interfaces):
        acknowledge(role, finding, reason)
    return role


def apply_project(
    scope: Construct, plan: Plan, *, role: iam.Role, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str
) -> codebuild.CfnProject:
    """One build at a time, so that two people never apply across each other."""
    project = codebuild.CfnProject
    made = project(
        scope,
        "ApplyProject",
        name=plan.names.apply_project,
        description=f"Applies rendered manifests to cluster {plan.names.cluster}",
        service_role=role.role_arn,
        source=project.SourceProperty(type="NO_SOURCE", build_spec=buildspec()),
        artifacts=project.ArtifactsProperty(type="NO_ARTIFACTS"),
        environment=project.EnvironmentProperty(
            type="LINUX_CONTAINER",
            compute_type="BUILD_GENERAL1_SMALL",
            image=IMAGE,
            privileged_mode=False,
            environment_variables=environment_variables(_variables(plan)),
        ),
        vpc_config=project.VpcConfigProperty(
            vpc_id=vpc_id, subnets=list(subnet_ids), security_group_ids=[security_group_id]
        ),
        logs_config=build_logs(scope, "ApplyLogs", project_name=plan.names.apply_project),
        concurrent_build_limit=1,
        timeout_in_minutes=TIMEOUT_MINUTES,
        queued_timeout_in_minutes=TIMEOUT_MINUTES,
    )
    acknowledge(made, "AwsSolutions-CB4", "the project writes no artifact that a key could encrypt")
    return made


def _variables(plan: Plan) -> dict[str, str]:
    """The script's input; `SOURCE_KEY` and `ACTION` are set by whoever starts a build.

    Without a way out of the VPC the public bucket is out of reach from most regions, so kubectl is read from the apply
    bucket, where the operator puts it as with images.
    """
    public = plan.network.egress == "nat"
    key = plan.kubectl.key if plan.kubectl else ""
    return {
        "CLUSTER": plan.names.cluster,
        "SOURCE_BUCKET": plan.names.apply_bucket,
        "SOURCE_KEY": "",
        "ACTION": "apply",
        "KUBECTL_BUCKET": PUBLIC_KUBECTL_BUCKET if public else plan.names.apply_bucket,
        "KUBECTL_KEY": key if public or not key else f"{KUBECTL_PREFIX}{key}",
        "KUBECTL_SHA256": plan.kubectl.sha256 if plan.kubectl else "",
    }


def _accepted(readable: Sequence[str], interfaces: str) -> list[tuple[str, str]]:
    return [
        *(
            (f"AwsSolutions-IAM5[Resource::{resource}]", "archives are named after their digest, under one prefix")
            for resource in readable
        ),
        (
            f"AwsSolutions-IAM5[Resource::{interfaces}]",
            "CodeBuild makes a network interface for each build; conditions bind it to the private subnets",
        ),
        ("AwsSolutions-IAM5[Resource::*]", "EC2's Describe actions take no resource"),
    ]
