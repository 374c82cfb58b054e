"""Synthesize plain resource dictionaries into a cloud assembly with CDK, for the CLI to deploy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from .resources import ACCOUNT, EXPORTS, REGION, Resources


def synthesize(
    stacks: Mapping[str, Resources],
    directory: Path,
    *,
    exports: Mapping[str, Mapping[str, Any]] = EXPORTS,
    stack_tags: Mapping[str, str] | None = None,
) -> Path:
    """Write the assembly into `directory`, each stack depending on the one before it, and return the directory."""
    app = cdk.App(
        outdir=str(directory),
        analytics_reporting=False,
        builtin_cloud_formation_validation=False,
        context={"@aws-cdk/core:defaultCrossStackReferences": "strong"},
    )
    previous: cdk.Stack | None = None
    for name, resources in stacks.items():
        environment = cdk.Environment(account=ACCOUNT, region=REGION)
        stack = cdk.Stack(app, name, env=environment, tags=dict(stack_tags or {}))
        for logical_id, body in resources.items():
            _add(stack, logical_id, body)
        for export, value in exports.get(name, {}).items():
            cdk.CfnOutput(stack, export.replace("-", "x"), value=cdk.Token.as_string(value), export_name=export)
        if previous is not None:
            stack.add_stack_dependency(previous)
        previous = stack
    app.synth()
    return directory


def _add(stack: cdk.Stack, logical_id: str, body: Mapping[str, Any]) -> None:
    made = cdk.CfnResource(stack, logical_id, type=body["Type"], properties=body.get("Properties"))
    made.override_logical_id(logical_id)
    for attribute in ("DependsOn", "DeletionPolicy", "UpdateReplacePolicy", "Condition"):
        if attribute in body:
            made.add_override(attribute, body[attribute])
