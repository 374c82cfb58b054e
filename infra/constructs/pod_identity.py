"""A role that one service account of one cluster can have, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.config.plan import Plan


def pod_role(
    scope: Construct,
    identifier: str,
    *,
    plan: Plan,
    namespace: str,
    service_account: str,
    statements: Sequence[iam.PolicyStatement] = (),
    managed_policies: Sequence[iam.IManagedPolicy] = (),
) -> iam.Role:
    """An IAM role for EKS Pod Identity.

    The trust carries both actions that Pod Identity performs (CDK's service principal alone leaves session tagging
    out) and is bound to this account, cluster, namespace and service account by the session tags that EKS sets.
    """
    principal = iam.ServicePrincipal(
        "pods.eks.amazonaws.com",
        conditions={
            "StringEquals": {
                "aws:SourceAccount": plan.account,
                "aws:RequestTag/kubernetes-namespace": namespace,
                "aws:RequestTag/kubernetes-service-account": service_account,
            },
            "ArnEquals": {"aws:SourceArn": cluster_arn(plan)},
        },
    ).with_session_tags()
    role = iam.Role(
        scope,
        identifier,
        assumed_by=principal,
        description=f"{plan.name}: {namespace}/{service_account}",
        managed_policies=list(managed_policies),
    )
    for statement in statements:
        role.add_to_policy(statement)
    return role


def association(
    scope: Construct, identifier: str, *, cluster_name: str, namespace: str, service_account: str, role: iam.Role
) -> eks.CfnPodIdentityAssociation:
    """Ties the role to the service account; add-ons that use it must depend on what this returns."""
    return eks.CfnPodIdentityAssociation(
        scope,
        identifier,
        cluster_name=cluster_name,
        namespace=namespace,
        service_account=service_account,
        role_arn=role.role_arn,
    )


def cluster_arn(plan: Plan) -> str:
    return f"arn:{plan.partition}:eks:{plan.region}:{plan.account}:cluster/{plan.names.cluster}"


def allow(actions: Sequence[str], resources: Sequence[str], **conditions: dict[str, object]) -> iam.PolicyStatement:
    """One allow statement; `conditions` are operators, for example `StringEquals={...}`."""
    return iam.PolicyStatement(actions=list(actions), resources=list(resources), conditions=conditions or None)


def queue_arn(plan: Plan, name: str) -> str:
    return f"arn:{plan.partition}:sqs:{plan.region}:{plan.account}:{name}"


def bucket_arn(plan: Plan, name: str) -> str:
    return f"arn:{plan.partition}:s3:::{name}"
