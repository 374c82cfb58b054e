"""cdk-nag's AwsSolutions pack over the whole app. Needs the development dependencies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from infra.config.faults import Finding

REPORT = "validation-report.json"


def nag(app: cdk.App) -> tuple[Finding, ...]:
    """Findings that nobody has acknowledged; synthesizes the app.

    cdk-nag 3 is a validation plug-in: a finding makes synth raise, and the report in the assembly says which. The app
    needs an output folder of its own, or an older report would be read.
    """
    from cdk_nag import AwsSolutionsChecks

    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    try:
        app.synth()
    except RuntimeError:
        report = Path(app.outdir) / REPORT
        findings = tuple(_findings(json.loads(report.read_text(encoding="utf-8")))) if report.is_file() else ()
        if not findings:
            raise
        return findings
    return ()


def _findings(report: Mapping[str, Any]) -> Iterator[Finding]:
    for plugin in report["pluginReports"]:
        for violation in plugin["violations"]:
            for construct in violation["violatingConstructs"]:
                yield Finding(
                    rule=violation["ruleName"],
                    key=construct["constructPath"],
                    value=construct.get("constructFqn"),
                    why=violation["description"].rstrip("."),
                    fix="Mend it, or acknowledge it on its construct with the reason.",
                )
