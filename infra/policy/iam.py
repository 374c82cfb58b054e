"""Least privilege, as far as a template shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from infra.config.faults import Finding
from infra.config.plan import Plan
from infra.policy.stacks import Resource, Stack, as_list, resources

ANY_RESOURCE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(autoscaling|ec2):Describe[A-Za-z]+"), "EC2 and Auto Scaling describe calls take no resource"),
    (re.compile(r"ec2:GetInstanceTypesFromInstanceRequirements"), "a question about types, not about a resource"),
    (re.compile(r"ecr:GetAuthorizationToken"), "the token is the account's"),
)
"""Actions that may stand beside Resource "*", each with the reason (service authorization reference)."""
POD_SERVICE = "pods.eks.amazonaws.com"
POD_ACTIONS = frozenset({"sts:AssumeRole", "sts:TagSession"})
POD_CONDITIONS = (
    "aws:SourceAccount",
    "aws:SourceArn",
    "aws:RequestTag/kubernetes-namespace",
    "aws:RequestTag/kubernetes-service-account",
)


def identities(stack: Stack, plan: Plan) -> Iterator[Finding]:
    del plan
    node_roles = {role.logical_id for role in resources(stack, "AWS::IAM::Role") if _trusts(role, "ec2.amazonaws.com")}
    for resource in resources(stack, "AWS::IAM::Role", "AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for_nodes = resource.logical_id in node_roles or any(
            isinstance(role, Mapping) and role.get("Ref") in node_roles for role in resource.properties.get("Roles", ())
        )
        for path, statement in _statements(resource):
            yield from _grants(resource, path, statement)
            if for_nodes:
                yield from _node_data(resource, path, statement)
        for name in _managed(resource):
            if for_nodes and "S3" in name:
                yield _data_fault(resource, "ManagedPolicyArns", name)
            if name.endswith("/AdministratorAccess"):
                yield resource.finding(
                    "iam.administrator", "ManagedPolicyArns", name, "it grants everything", "Grant what is called."
                )
        if resource.type == "AWS::IAM::Role":
            yield from _pod_trust(resource)


def _statements(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    documents = {"PolicyDocument": resource.properties.get("PolicyDocument", {})}
    documents |= {
        f"Policies.{index}": policy.get("PolicyDocument", {})
        for index, policy in enumerate(resource.properties.get("Policies", ()))
    }
    for path, document in documents.items():
        for index, statement in enumerate(as_list(document.get("Statement"))):
            yield f"{path}.Statement.{index}", statement


def _grants(resource: Resource, path: str, statement: Mapping[str, Any]) -> Iterator[Finding]:
    if statement.get("Effect") != "Allow":
        return
    if "NotAction" in statement or "NotResource" in statement:
        yield resource.finding(
            "iam.inverse", path, sorted(statement), "it grants all that it does not name", "Name what is granted."
        )
    actions = [str(action) for action in as_list(statement.get("Action"))]
    wide = [action for action in actions if action == "*" or action.endswith(":*")]
    if wide:
        yield resource.finding(
            "iam.any-action", f"{path}.Action", wide, "it grants every action of a service", "Name the actions."
        )
    if "*" in as_list(statement.get("Resource")):
        unlisted = [action for action in actions if not any(known.fullmatch(action) for known, _ in ANY_RESOURCE)]
        if unlisted:
            yield resource.finding(
                "iam.any-resource",
                f"{path}.Resource",
                unlisted,
                "these actions take a resource, and here they reach all of the account",
                "Name the resources, or list the action with its reason in infra/policy/iam.py.",
            )


def _node_data(resource: Resource, path: str, statement: Mapping[str, Any]) -> Iterator[Finding]:
    if statement.get("Effect") == "Allow" and any(
        str(action).startswith("s3:") for action in as_list(statement.get("Action"))
    ):
        yield _data_fault(resource, f"{path}.Action", statement.get("Action"))


def _data_fault(resource: Resource, path: str, value: object) -> Finding:
    return resource.finding(
        "iam.node-data",
        path,
        value,
        "every pod of a node may become the node, so a broken pod identity would go unseen and reach all data",
        "Give the pod's own role the access.",
    )


def _managed(resource: Resource) -> Iterator[str]:
    """Managed policies, as far as their ARNs can be read: a join's literal parts are enough for the name."""
    for arn in resource.properties.get("ManagedPolicyArns", ()):
        if isinstance(arn, str):
            yield arn
        elif isinstance(arn, Mapping) and "Fn::Join" in arn:
            yield "".join(part for part in arn["Fn::Join"][1] if isinstance(part, str))


def _trust(role: Resource) -> list[Mapping[str, Any]]:
    return as_list(role.properties.get("AssumeRolePolicyDocument", {}).get("Statement"))


def _trusts(role: Resource, service: str) -> bool:
    return any(service in as_list(_principal(statement).get("Service")) for statement in _trust(role))


def _principal(statement: Mapping[str, Any]) -> Mapping[str, Any]:
    principal = statement.get("Principal", {})
    return principal if isinstance(principal, Mapping) else {"AWS": principal}


def _pod_trust(role: Resource) -> Iterator[Finding]:
    statements = [one for one in _trust(role) if POD_SERVICE in as_list(_principal(one).get("Service"))]
    if not statements:
        return
    path = "AssumeRolePolicyDocument"
    missing = POD_ACTIONS - {action for one in statements for action in as_list(one.get("Action"))}
    if missing:
        yield role.finding(
            "iam.pod-actions",
            path,
            sorted(POD_ACTIONS - missing),
            f"Pod Identity calls {' and '.join(sorted(missing))} too, and pods would get no credentials",
            "Allow both actions.",
        )
    for statement in statements:
        bound = {key for operator in statement.get("Condition", {}).values() for key in operator}
        absent = [key for key in POD_CONDITIONS if key not in bound]
        if absent:
            yield role.finding(
                "iam.pod-conditions",
                f"{path}.Condition",
                sorted(bound),
                f"without {', '.join(absent)} another cluster, namespace or service account can have the role",
                "Bind the trust to all four.",
            )
