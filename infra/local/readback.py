"""Prove that a deployed cloud assembly arrived: describe every resource and compare it with every property of its template.

A property that the service does not show is a failure unless `EXCEPTIONS` says why none can; so is a type without reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from . import compare, intrinsics
from .readers import READERS, Actual, NotThereError, Source

# (type, property path) that no API shows, and why. '' stands for the whole resource.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("AWS::CDK::Metadata", ""): "the CDK's usage metadata has no service behind it",
    (
        "AWS::ECR::Repository",
        "EmptyOnDelete",
    ): "an instruction to CloudFormation for the deletion; ECR never learns of it",
    ("AWS::EKS::Addon", "PreserveOnDelete"): "an instruction to CloudFormation for the deletion",
    ("AWS::EKS::Addon", "ResolveConflicts"): "an option of the create and update calls that EKS does not keep",
    (
        "AWS::EKS::Cluster",
        "BootstrapSelfManagedAddons",
    ): "an option of CreateCluster that DescribeCluster does not show",
    ("AWS::EKS::Nodegroup", "ForceUpdateEnabled"): "an option of UpdateNodegroupVersion that EKS does not keep",
    (
        "AWS::KMS::Key",
        "PendingWindowInDays",
    ): "an option of the deletion; KMS shows it only once the key is being deleted",
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One property that is not what the template asked for. property is '' when the resource itself cannot be read."""

    stack: str
    resource: str
    type: str
    property: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        where = f"{self.stack}/{self.resource} {self.type} {self.property}".rstrip()
        return f"{where}: expected {self.expected!r}, found {self.actual!r}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a read-back found.

    stacks, resources, values: how many were compared (values: single template values). exceptions_used: entries of EXCEPTIONS
    that a template needed; exceptions_unused: those that none did.
    """

    stacks: int
    resources: int
    values: int
    mismatches: tuple[Mismatch, ...]
    exceptions_used: tuple[tuple[str, str], ...]
    exceptions_unused: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        return not self.mismatches and self.resources > 0


@dataclass(frozen=True, slots=True)
class _Stack:
    name: str
    template: Mapping[str, Any]
    physical_ids: Mapping[str, str]
    parameters: Mapping[str, str]
    pseudo: Mapping[str, str]
    tags: frozenset[str]


@dataclass(slots=True)
class _Tally:
    resources: int = 0
    values: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    exceptions: set[tuple[str, str]] = field(default_factory=set)


def session(environment: Mapping[str, str]) -> boto3.Session:
    """A boto3 session with the credentials and region of `server.client_environment`."""
    return boto3.Session(
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_REGION"],
    )


def read_back(
    assembly: Path, session: boto3.Session, endpoint_url: str | None = None, *, stacks: Sequence[str] | None = None
) -> Report:
    """Compare every stack of a cloud assembly (or the named ones) with what is deployed.

    Raises botocore's ClientError when a stack is not deployed at all.
    """
    clients: dict[str, Any] = {}
    config = Config(proxies={}, retries={"max_attempts": 1}, read_timeout=20, s3={"addressing_style": "path"})

    def client(service: str) -> Any:
        if service not in clients:
            clients[service] = session.client(service, endpoint_url=endpoint_url, config=config)
        return clients[service]

    chosen = [one for one in _templates(assembly) if stacks is None or one[0] in stacks]
    deployed = [_load(client("cloudformation"), name, template) for name, template in chosen]
    account = client("sts").get_caller_identity()["Account"]
    owned = frozenset(physical for stack in deployed for physical in stack.physical_ids.values())
    source = Source(client=client, account=account, region=str(session.region_name), owned=owned)
    exports = {row["Name"]: row["Value"] for row in _pages(client("cloudformation"), "list_exports", "Exports")}
    tally = _Tally()
    for stack in deployed:
        _check_stack(stack, source, exports, tally)
    unused = tuple(sorted(EXCEPTIONS.keys() - tally.exceptions))
    used = tuple(sorted(tally.exceptions))
    return Report(len(deployed), tally.resources, tally.values, tuple(tally.mismatches), used, unused)


def _templates(assembly: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(stack name, template) of every stack, those of nested assemblies (stages) included."""
    artifacts = json.loads((assembly / "manifest.json").read_text())["artifacts"]
    for artifact_id, artifact in artifacts.items():
        properties = artifact.get("properties", {})
        if artifact["type"] == "aws:cloudformation:stack":
            template = json.loads((assembly / properties["templateFile"]).read_text())
            yield properties.get("stackName", artifact_id), template
        elif artifact["type"] == "cdk:cloud-assembly":
            yield from _templates(assembly / properties["directoryName"])


def _pages(client: Any, operation: str, result: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    for page in client.get_paginator(operation).paginate(**parameters):
        yield from page[result]


def _load(cloudformation: Any, name: str, template: Mapping[str, Any]) -> _Stack:
    stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    rows = _pages(cloudformation, "list_stack_resources", "StackResourceSummaries", StackName=name)
    _, _, _, region, account, _ = stack["StackId"].split(":", 5)
    return _Stack(
        name=name,
        template=template,
        physical_ids={row["LogicalResourceId"]: row["PhysicalResourceId"] for row in rows},
        parameters={
            row["ParameterKey"]: row.get("ResolvedValue", row["ParameterValue"]) for row in stack.get("Parameters", [])
        },
        pseudo={
            "AWS::AccountId": account,
            "AWS::Partition": stack["StackId"].split(":")[1],
            "AWS::Region": region,
            "AWS::StackId": stack["StackId"],
            "AWS::StackName": name,
            "AWS::URLSuffix": "amazonaws.com",
        },
        tags=frozenset(tag["Key"] for tag in stack.get("Tags", [])),
    )


def _check_stack(stack: _Stack, source: Source, exports: Mapping[str, str], tally: _Tally) -> None:
    read: dict[str, Actual] = {}

    def actual(logical_id: str) -> Actual:
        if logical_id not in read:
            body = stack.template["Resources"][logical_id]
            reader = READERS.get(body["Type"])
            if reader is None:
                raise NotThereError(f"no reader for {body['Type']} (infra/local/readers)")
            if logical_id not in stack.physical_ids:
                raise NotThereError("the stack has no such resource")
            properties = intrinsics.resolve(body.get("Properties", {}), scope)
            read[logical_id] = reader(source, stack.physical_ids[logical_id], properties)
        return read[logical_id]

    def attribute(logical_id: str, name: str) -> Any:
        value: Any = actual(logical_id).attributes
        for part in name.split(".") if name not in value else [name]:
            if not isinstance(value, Mapping) or part not in value:
                raise intrinsics.UnresolvedError(f"{logical_id} shows no attribute {name}")
            value = value[part]
        return value

    def stack_output(stack_name: str, output: str) -> str:
        reply = source.client("cloudformation").describe_stacks(StackName=stack_name)
        for row in reply["Stacks"][0].get("Outputs", []):
            if row["OutputKey"] == output:
                return str(row["OutputValue"])
        raise intrinsics.UnresolvedError(f"stack {stack_name} has no output {output}")

    scope = intrinsics.Scope(
        template=stack.template,
        physical_ids=stack.physical_ids,
        attribute=attribute,
        parameters=stack.parameters,
        pseudo=stack.pseudo,
        exports=exports,
        stack_output=stack_output,
    )
    for logical_id, body in stack.template["Resources"].items():
        if "Condition" in body and not intrinsics.condition(body["Condition"], scope):
            continue
        if (body["Type"], "") in EXCEPTIONS:
            tally.exceptions.add((body["Type"], ""))
            continue
        tally.resources += 1
        try:
            expected = intrinsics.resolve(body.get("Properties", {}), scope)
            found = actual(logical_id).properties
        except (ClientError, BotoCoreError, LookupError, intrinsics.UnresolvedError) as error:
            tally.mismatches.append(Mismatch(stack.name, logical_id, body["Type"], "", "readable", str(error)))
            continue
        _check_resource(stack, logical_id, expected, found, tally)


def _check_resource(
    stack: _Stack, logical_id: str, expected: Mapping[str, Any], found: Mapping[str, Any], tally: _Tally
) -> None:
    kind = stack.template["Resources"][logical_id]["Type"]
    for name, value in expected.items():
        if (kind, name) in EXCEPTIONS:
            tally.exceptions.add((kind, name))
            continue
        shown = found.get(name, compare.MISSING)
        if name in _TAG_PROPERTIES:
            shown = _without_stack_tags(shown, value, stack.tags)
        result = compare.compare(value, shown, name)
        tally.values += result.checked
        for one in result.differences:
            tally.mismatches.append(Mismatch(stack.name, logical_id, kind, one.path, one.expected, one.actual))


_TAG_PROPERTIES = frozenset({"ResourceTags", "Tags"})


def _without_stack_tags(shown: Any, expected: Any, stack_tags: frozenset[str]) -> Any:
    """Tags without those that CloudFormation passed down from the stack and that this resource's own property does not set."""
    if isinstance(shown, Mapping):
        return {key: item for key, item in shown.items() if key in expected or key not in stack_tags}
    if not isinstance(shown, list) or not isinstance(expected, list):
        return shown
    own = {tag["Key"] for tag in expected}
    return [tag for tag in shown if tag["Key"] in own or tag["Key"] not in stack_tags]
