"""A CodeBuild project that builds the run's image, so that nobody needs Docker, 100 GiB of disk or a CUDA toolkit.

It runs outside the VPC: a build reads GitHub, PyPI, NVIDIA's and Docker's registries, which an environment without egress
cannot reach, and nodes pull from the environment's own repository alone. What a Dockerfile runs is other people's code
and can reach the credentials of the build, hence a role that can do little: push to and pull from one repository,
read and write one parameter for each software stack, read and write two prefixes of one bucket. The repository's key needs
no statement, since ECR uses it by a grant of its own.

Whoever may start a build chooses what the run executes (StartBuild takes another build specification), so grant
`codebuild:StartBuild` on the project accordingly.
"""

from __future__ import annotations

from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.catalog.software import SOFTWARE
from infra.config.names import image_parameter, repository_uri
from infra.config.plan import Plan
from infra.constructs.acknowledge import acknowledge
from infra.constructs.build_project import IMAGE, build_logs, build_role, environment_variables
from infra.constructs.image_script import CONTEXT_PREFIX, SBOM_PREFIX, buildspec
from infra.constructs.pod_identity import allow, bucket_arn

COMPUTE = "BUILD_GENERAL1_XLARGE"
"""36 vCPUs, 70 GiB, 256 GB of disk: the base images unpack to tens of GB, and syft reads a second copy. The next smaller
type has half the disk and 15 GiB, with which the compilers of DeepEP's kernels meet their end."""
TIMEOUT_MINUTES = 300
"""Compiling the kernels takes an hour or two on 36 cores; the push, the list of contents and the scan come on top."""
QUEUED_MINUTES = 480
"""The most that CodeBuild offers: one build waits for the other."""
SCAN_WAIT_SECONDS, SCAN_ATTEMPTS = 20, 180
PUSH_AND_PULL = (
    "ecr:BatchCheckLayerAvailability",
    # Docker asks whether the manifest is there before it pushes (ECR user guide, permissions for pushing an image).
    "ecr:BatchGetImage",
    "ecr:CompleteLayerUpload",
    "ecr:DescribeImageScanFindings",
    "ecr:DescribeImages",
    # Layers of the stack's last image that the next one has too.
    "ecr:GetDownloadUrlForLayer",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
)


def image_role(scope: Construct, plan: Plan) -> iam.Role:
    """Pushes to and pulls from one repository, keeps the digests' parameters, reads contexts, writes lists of contents."""
    names, secret = plan.names, plan.docker_hub_secret_arn
    bucket = bucket_arn(plan, names.apply_bucket)
    contexts, lists = f"{bucket}/{CONTEXT_PREFIX}*", f"{bucket}/{SBOM_PREFIX}*"
    in_account = f"{plan.region}:{plan.account}"
    parameters = [
        f"arn:{plan.partition}:ssm:{in_account}:parameter{image_parameter(names, stack)}" for stack in SOFTWARE
    ]
    role = build_role(
        scope,
        "ImageRole",
        plan,
        project_name=names.image_project,
        purpose="builds the run's image",
        statements=[
            allow(["ecr:GetAuthorizationToken"], ["*"]),
            allow(PUSH_AND_PULL, [f"arn:{plan.partition}:ecr:{in_account}:repository/{names.repository}"]),
            allow(["ssm:GetParameter", "ssm:PutParameter"], parameters),
            allow(["s3:GetObject"], [contexts]),
            allow(["s3:PutObject"], [lists]),
            *([allow(["secretsmanager:GetSecretValue"], [secret])] if secret else []),
        ],
    )
    for resource in (contexts, lists):
        acknowledge(
            role, f"AwsSolutions-IAM5[Resource::{resource}]", "objects are named after a digest, under one prefix"
        )
    acknowledge(role, "AwsSolutions-IAM5[Resource::*]", "ECR's login token is the account's and takes no resource")
    return role


def image_project(scope: Construct, plan: Plan, *, role: iam.Role) -> codebuild.CfnProject:
    """One build at a time: two of the same source would meet at the tag, which cannot be written twice."""
    project = codebuild.CfnProject
    made = project(
        scope,
        "ImageProject",
        name=plan.names.image_project,
        description=f"Builds and checks the image that runs of {plan.name} use",
        service_role=role.role_arn,
        source=project.SourceProperty(type="NO_SOURCE", build_spec=buildspec(tuple(SOFTWARE))),
        artifacts=project.ArtifactsProperty(type="NO_ARTIFACTS"),
        environment=project.EnvironmentProperty(
            type="LINUX_CONTAINER",
            compute_type=COMPUTE,
            image=IMAGE,
            privileged_mode=True,
            environment_variables=[*environment_variables(_variables(plan)), *_secrets(plan)],
        ),
        logs_config=build_logs(scope, "ImageLogs", project_name=plan.names.image_project),
        concurrent_build_limit=1,
        timeout_in_minutes=TIMEOUT_MINUTES,
        queued_timeout_in_minutes=QUEUED_MINUTES,
    )
    acknowledge(made, "AwsSolutions-CB3", "a Docker engine runs in the build, which takes a privileged container")
    acknowledge(made, "AwsSolutions-CB4", "the project writes no artifact that a key could encrypt")
    return made


def _secrets(plan: Plan) -> list[codebuild.CfnProject.EnvironmentVariableProperty]:
    """Fetched by CodeBuild when a build starts, and masked in its log. No Dockerfile sees them."""
    if plan.docker_hub_secret_arn is None:
        return []
    return [
        codebuild.CfnProject.EnvironmentVariableProperty(
            name=name, type="SECRETS_MANAGER", value=f"{plan.docker_hub_secret_arn}:{key}"
        )
        for name, key in (("DOCKER_HUB_TOKEN", "token"), ("DOCKER_HUB_USER", "username"))
    ]


def _variables(plan: Plan) -> dict[str, str]:
    """The script's input; `SOURCE_KEY` and `STACK` are set by whoever starts a build."""
    return {
        "ACCEPTED": " ".join(plan.accepted_vulnerabilities),
        "PARAMETERS": plan.names.image_parameters,
        "REPOSITORY": plan.names.repository,
        "REPOSITORY_URI": repository_uri(plan.region, plan.account, plan.names.repository),
        "SCAN_ATTEMPTS": str(SCAN_ATTEMPTS),
        "SCAN_WAIT_SECONDS": str(SCAN_WAIT_SECONDS),
        "SOURCE_BUCKET": plan.names.apply_bucket,
        "SOURCE_KEY": "",
        "STACK": "",
        "SYFT_IMAGE": plan.images["syft"],
    }
