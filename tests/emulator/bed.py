"""A test bed: one embedded AWS, the real CDK CLI, and the assemblies of edited environments."""

from __future__ import annotations

import json
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.config.plan import Plan
from infra.local import cdk, readback, server
from infra.stacks.names import toolkit_name
from infra.stacks.platform import build_app, build_platform
from tests.shipped import ROOT

EMULATOR_PYTHON = ROOT / ".venv-emulator" / "bin" / "python"


@dataclass(frozen=True)
class Bed:
    """A started server and a folder of its own."""

    running: server.Server
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        return server.client_environment(self.running, node=cdk.node_binary(), base=os.environ)

    def cli(self, *arguments: str, cwd: Path | None = None) -> cdk.CdkRun:
        return cdk.run(
            arguments,
            project_root=ROOT,
            environment=self.variables,
            log=self.folder / "cdk.log",
            cwd=cwd or self.folder,
        )

    def succeed(self, *arguments: str) -> cdk.CdkRun:
        done = self.cli(*arguments)
        assert done.returncode == 0, done.output[-4000:]
        return done

    def bootstrap(self, plan: Plan, assembly: Path) -> None:
        target = f"aws://{plan.account}/{plan.region}"
        toolkit = toolkit_name(plan.qualifier)
        self.succeed(*cdk.bootstrap(target, assembly=assembly, qualifier=plan.qualifier, toolkit=toolkit))

    def deploy(self, assembly: Path) -> cdk.CdkRun:
        return self.succeed(*cdk.deploy(assembly=assembly))

    def client(self, service: str) -> Any:
        session = readback.session(self.variables)
        return session.client(service, endpoint_url=self.running.url)

    def read_back(self, assembly: Path) -> readback.Report:
        return readback.read_back(assembly, readback.session(self.variables), self.running.url)

    def transcript(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(self.running.transcript_url, timeout=10) as reply:  # noqa: S310 - our own loopback
            entries: list[dict[str, Any]] = json.load(reply)
        return entries

    def forget(self) -> None:
        """Empties the transcript."""
        request = urllib.request.Request(self.running.transcript_url, method="DELETE")  # noqa: S310 - our own loopback
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310

    def operations(self) -> list[tuple[str, str]]:
        """(operation, logical id) of what CloudFormation caused since `forget`, in order."""
        return [
            (f"{entry['service']}:{entry['operation']}", entry["logical_id"])
            for entry in self.transcript()
            if entry["origin"] == "cloudformation"
        ]


def synthesize(plan: Plan, folder: Path) -> Path:
    """The plan's cloud assembly, built in this process: a second faster than through the CLI."""
    app = build_app(outdir=folder)
    build_platform(app, plan)
    app.synth()
    return folder
