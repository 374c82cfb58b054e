"""The embedded AWS for these tests: one per session, bootstrapped, with the network, data and cluster stacks deployed."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.local import cdk, readback, server
from infra.node import use_pinned_node

from . import resources
from .assembly import synthesize
from .resources import Resources

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv-emulator" / "bin" / "python"

SETTLE_SECONDS = 120.0  # far more than any stack takes here; only a stack that hangs meets it

use_pinned_node(os.environ)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running embedded AWS with what tests do to it."""

    server: server.Server
    directory: Path
    environment: Mapping[str, str]
    session: boto3.Session

    def client(self, service: str) -> Any:
        return self.session.client(service, endpoint_url=self.server.url)

    def cdk(self, arguments: tuple[str, ...]) -> cdk.CdkRun:
        log = self.directory / f"cdk-{len(list(self.directory.glob('cdk-*.log')))}.log"
        return cdk.run(arguments, project_root=ROOT, environment=self.environment, log=log)

    def read_back(self, assembly: Path) -> readback.Report:
        return readback.read_back(assembly, self.session, self.server.url)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server.url}{path}", data=data, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            return json.loads(reply.read())

    def clear_transcript(self) -> None:
        self.request("DELETE", "/_moerl/transcript")

    def operations(self, logical_id: str | None = None) -> list[str]:
        """'service:operation' of each recorded call, of one resource where one is named."""
        entries = self.request("GET", "/_moerl/transcript")
        return [
            f"{entry['service']}:{entry['operation']}"
            for entry in entries
            if logical_id in (None, entry["logical_id"]) and "error" not in entry
        ]

    def stack(
        self, name: str, made: Resources, outputs: Mapping[str, Any] | None = None, *, update: bool = False
    ) -> str:
        """Create or update a stack through the API and wait; returns its final status."""
        body = {"Resources": made, "Outputs": {key: {"Value": value} for key, value in (outputs or {}).items()}}
        cloudformation = self.client("cloudformation")
        call = cloudformation.update_stack if update else cloudformation.create_stack
        call(StackName=name, TemplateBody=json.dumps(body), Capabilities=["CAPABILITY_NAMED_IAM"])
        return self.wait(name)

    def wait(self, name: str) -> str:
        cloudformation = self.client("cloudformation")
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            found = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
            if not found["StackStatus"].endswith("_IN_PROGRESS"):
                return str(found["StackStatus"])
        raise AssertionError(f"{name} did not settle")

    def wait_gone(self, name: str) -> None:
        """Wait until a deletion is over, so that the name is free again."""
        cloudformation = self.client("cloudformation")
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            try:
                cloudformation.describe_stacks(StackName=name)
            except ClientError:
                return
        raise AssertionError(f"{name} is still there")

    def reasons(self, name: str) -> str:
        """Why resources of a stack failed."""
        events = self.client("cloudformation").describe_stack_events(StackName=name)["StackEvents"]
        failed = [one for one in events if one["ResourceStatus"].endswith("FAILED")]
        return "\n".join(one.get("ResourceStatusReason", "") for one in failed)

    def physical_id(self, stack: str, logical_id: str) -> str:
        reply = self.client("cloudformation").describe_stack_resource(StackName=stack, LogicalResourceId=logical_id)
        return str(reply["StackResourceDetail"]["PhysicalResourceId"])


Start = Callable[[], Embedded]


@pytest.fixture(scope="session")
def start_embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts an empty embedded AWS; all of them end with the session."""
    if not PYTHON.exists():
        pytest.fail(f"no emulator environment at {PYTHON.parent.parent}: run `make install`")
    started = []

    def start() -> Embedded:
        directory = tmp_path_factory.mktemp("embedded")
        running = server.start(directory, python=PYTHON, project_root=ROOT)
        started.append(directory)
        base = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
        environment = server.client_environment(running, node=cdk.node_binary(), base=base)
        return Embedded(running, directory, environment, readback.session(environment))

    yield start
    for directory in started:
        server.stop(directory)


@pytest.fixture(scope="session")
def aws(start_embedded: Start) -> Embedded:
    """An embedded AWS with the stacks of `resources` deployed through the API, without bootstrap."""
    embedded = start_embedded()
    for name, made in resources.all_stacks().items():
        body = {"Resources": made, "Outputs": _exports(name)}
        embedded.client("cloudformation").create_stack(
            StackName=name, TemplateBody=json.dumps(body), Capabilities=["CAPABILITY_NAMED_IAM"]
        )
        assert embedded.wait(name) == "CREATE_COMPLETE", embedded.reasons(name)
    embedded.clear_transcript()
    return embedded


def _exports(stack: str) -> dict[str, Any]:
    exports = resources.EXPORTS.get(stack, {})
    return {name.replace("-", "x"): {"Value": value, "Export": {"Name": name}} for name, value in exports.items()}


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cloud assembly of the stacks as first deployed."""
    return synthesize(resources.all_stacks(), tmp_path_factory.mktemp("assembly") / "cdk.out")
