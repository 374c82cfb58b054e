"""`moerl`, the command line: reads the environment, the clock and AWS on behalf of everything below.

Exit codes: 0 done, 1 AWS or a tool failed, 2 wrong input (nothing was written), 3 a bounded wait ran out,
4 this AWS cannot do it (the embedded one runs no build), 130 Ctrl-C.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import boto3
import typer
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)
from rich.console import Console
from rich.text import Text

from infra.catalog import CATALOG, Software
from infra.config.faults import EnvironmentFault, Finding, addressed, count
from infra.config.forms import ACCOUNT, REGION
from infra.config.image_arguments import ImageArguments, image_arguments
from infra.config.loader import Loaded, load_named
from infra.config.outputs import load_outputs
from infra.config.pins import UNRESOLVED, pins_path
from infra.config.plan import Plan, build_plan
from infra.config.pool_plan import PoolPlan
from infra.node import pinned_node, use_pinned_node
from infra.operations import image as images
from infra.operations import lock as locking
from infra.operations import pool as pools
from infra.operations.apply import ApplyFault, apply_folder, archive
from infra.operations.registry import https_fetch
from infra.rendered_faults import rendered_faults
from infra.report import print_findings, print_plan

T = TypeVar("T")
IMAGE = re.compile(r"[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}")
ROOT = Path(__file__).resolve().parent.parent
OK, FAILED, WRONG_INPUT, TIMED_OUT, NOT_HERE = 0, 1, 2, 3, 4
NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, SSOError, TokenRetrievalError)
NOT_SIGNED_IN = {"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException"}
SIGN_IN = (
    "Write AWS_PROFILE=NAME before the command, NAME of a profile of this account, and run `aws sso login --profile NAME`"
    " first where it signs in through IAM Identity Center; a pipeline sets AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and"
    " AWS_SESSION_TOKEN."
)
OUTCOMES = {FAILED: "failed", WRONG_INPUT: "wrong input", NOT_HERE: "not built here"}

out, err = Console(), Console(stderr=True)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Mixture-of-Experts reinforcement learning on Amazon EKS, from one file.",
    epilog="ENV is a name under environments/ or a path. Exit codes: 0 done, 1 failed, 2 wrong input, 3 timed out,"
    " 4 not possible against this AWS.",
)
image_app = typer.Typer(no_args_is_help=True, help="The run's image: one for trainer and rollout.")
pool_app = typer.Typer(no_args_is_help=True, help="What CloudFormation must not own about a node pool.")
local_app = typer.Typer(no_args_is_help=True, help="The embedded AWS and the control plane on this machine.")
app.add_typer(image_app, name="image")
app.add_typer(pool_app, name="pool")
app.add_typer(local_app, name="local")

Env = Annotated[str, typer.Argument(metavar="ENV", help="A name under environments/ or a path to a YAML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
PinsOption = Annotated[
    Path | None,
    typer.Option("--pins", metavar="FILE", help="Lock file to use instead of ENV.lock.yaml.", readable=False),
]


def _version(asked: bool) -> None:
    if asked:
        print(f"moerl {version('moerl')}")
        raise typer.Exit(OK)


@app.callback()
def start(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options that need no command."""


@app.command(epilog="Example: moerl validate reference-p5en --json")
def validate(env: Env, pins: PinsOption = None, as_json: Json = False) -> None:
    """Check an environment file: every fault and warning at once, nothing written."""
    loaded = _load(env, pins, as_json=as_json)
    if as_json:
        _json({"path": loaded.path, "valid": True, "findings": [found.document() for found in loaded.warnings]})
        return
    print_findings(loaded.warnings, loaded.path, out)
    _say(out, "valid", "green", f"{loaded.path}, {count(len(loaded.warnings), 'warning')}")


@app.command(name="plan", epilog="Example: moerl plan reference-p5en")
def show_plan(env: Env, pins: PinsOption = None, as_json: Json = False) -> None:
    """Show what an environment becomes and costs: pools, GPUs, EFA, engines, quotas, price, warnings."""
    plan = _plan(env, pins, as_json=as_json)
    if as_json:
        _json(plan.document())
    else:
        print_plan(plan, out, env=env)


@app.command(epilog="Example: moerl render reference-p5en --out dist/reference-p5en")
def render(
    env: Env,
    folder: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder to write; made when absent. What an earlier render wrote there and this one does not is removed;"
            " your own files stay.",
            file_okay=False,
        ),
    ],
    outputs: Annotated[
        Path | None,
        typer.Option("--outputs", metavar="FILE", help="What `cdk deploy --outputs-file FILE` wrote.", readable=False),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="REPOSITORY@sha256:DIGEST",
            help="The run's image; without it the workloads are left out.",
        ),
    ] = None,
    pins: PinsOption = None,
    as_json: Json = False,
) -> None:
    """Write DIR/plan.json, DIR/cloudformation/*.template.json and DIR/k8s; needs no AWS access and no clock."""
    plan = _plan(env, pins, as_json=as_json)
    known = _refusing(lambda: load_outputs(outputs, plan), as_json) if outputs else None
    use_pinned_node(os.environ)
    # jsii starts Node when aws_cdk is imported: seconds that no other command should pay.
    from infra.render import render as write

    def run() -> None:
        written = _refusing(lambda: write(plan, folder, image=_digest(image, env), outputs=known), as_json)
        if as_json:
            files = [str(file) for file in written.files]
            kept = [str(file) for file in written.kept]
            told = {"left_out": list(written.left_out), "unresolved": list(plan.unresolved), "kept": kept}
            _json({"files": files, **told})
            return
        print_findings(plan.warnings, env, err)
        for file in written.files:
            out.print(Text(str(file)), soft_wrap=True)
        for reason in written.left_out:
            _say(err, "left out", "yellow", reason)
        for file in written.kept:
            _say(err, "kept", "yellow", f"{file}: no render listed it, so it is taken for yours")
        if plan.unresolved:
            missing = addressed(f"{count(len(plan.unresolved), 'pin')}, shown as 'unresolved': run moerl lock ENV", env)
            _say(err, "unresolved", "yellow", missing)

    _attempt(run, as_json)


@app.command(epilog="Example: moerl apply reference-p5en --folder dist/reference-p5en/k8s")
def apply(
    env: Env,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Rendered manifests.", exists=True, file_okay=False)
    ],
    diff: Annotated[bool, typer.Option("--diff", help="Show what an apply would change, and change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Apply a folder of manifests through the build project inside the VPC, for clusters with a private endpoint."""
    plan = _plan(env, None, as_json=as_json)
    try:
        archive(folder)
    except ApplyFault as error:
        _stop(WRONG_INPUT, addressed(str(error), env), as_json)
    if _embedded():
        why = (
            "the embedded AWS has no container engine, so its builds apply nothing. Run this against an account, after"
            f" `npx cdk deploy access -c environment={env}`; a cluster on this machine takes `kubectl apply -f {folder}`."
        )
        _stop(NOT_HERE, why, as_json)

    def run() -> None:
        session = _session(plan)
        applied = apply_folder(
            folder,
            plan,
            s3=session.client("s3"),
            codebuild=session.client("codebuild"),
            logs=session.client("logs"),
            report=lambda line: err.print(line, highlight=False, markup=False, soft_wrap=True),
            wait=time.sleep,
            action="diff" if diff else "apply",
        )
        if as_json:
            _json(applied.document())
        else:
            _say(out, applied.status.lower(), "green", f"{len(applied.files)} files, build {applied.build}")

    _attempt(run, as_json)


@app.command(epilog="Example: moerl lock reference-p5en")
def lock(
    env: Env,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Lock file to write; ENV.lock.yaml when absent.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look up the pins that only AWS, registries and repositories know (AMI release, add-on builds, kubectl, images, charts,
    what the run's image is built from) and write the lock file."""
    # The old lock may be for another version; it is about to be replaced, so it must not stop this.
    loaded = _refusing(lambda: load_named(env, ROOT, pins=UNRESOLVED, further=rendered_faults), as_json)
    plan = _plan_of(loaded)

    def run() -> None:
        session = _session(plan)
        pins = locking.resolve(
            plan,
            CATALOG,
            eks=session.client("eks"),
            ssm=session.client("ssm"),
            s3=session.client("s3", region_name=locking.KUBECTL_BUCKET_REGION),
            ecr=session.client("ecr"),
            fetch=https_fetch,
            now=datetime.now(UTC).replace(microsecond=0),
            embedded=_embedded(),
            report=lambda line: err.print(line, highlight=False, markup=False, soft_wrap=True),
        )
        target = file or pins_path(Path(loaded.path))
        target.write_text(locking.lock_text(plan.name, pins), encoding="utf-8")
        if as_json:
            _json({"file": str(target), "pins": pins.model_dump(mode="json")})
        else:
            _say(out, "wrote", "green", str(target))

    _attempt(run, as_json)


@image_app.command(
    name="args",
    epilog="Example: moerl image args efa-gda --env reference-p5en --json\n\n"
    "Exit codes: 0 every argument has a value, 1 some are unresolved (they are named, with what resolves them), 2 wrong input.",
)
def image_args(
    stack: Annotated[str, typer.Argument(metavar="STACK", help=f"One of {', '.join(CATALOG.software)}.")],
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV", help="Build for the GPUs, the lock and the flags of this environment."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the build arguments of a stack's Dockerfile, as `NAME=VALUE` lines or as one JSON document."""
    arguments = _image_arguments(stack, env, as_json=as_json)
    if as_json:
        _json(arguments.document())
    else:
        for name, value in arguments.arguments.items():
            print(f"{name}={value}")
        for name, pin in arguments.unresolved.items():
            _say(err, "unresolved", "yellow", f"{name}, {pin.what}: {pin.command}")
    if arguments.unresolved:
        raise typer.Exit(FAILED)


@image_app.command(
    name="build",
    epilog="Example: moerl image build efa-gda --env reference-p5en\n\n"
    "Example: moerl image build baseline --env reference-p5en --no-wait --json\n\n"
    "Exit codes: 0 built, scanned and named (with --no-wait: started), 1 AWS refused or the build failed, 2 wrong input,"
    " nothing uploaded, 4 not built here: the embedded AWS has no container engine.",
)
def image_build(
    stack: Annotated[str, typer.Argument(metavar="STACK", help=f"One of {', '.join(CATALOG.software)}.")],
    env: Annotated[
        str, typer.Option("--env", metavar="ENV", help="Environment whose project builds it, for its GPUs and flags.")
    ],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the build, or leave it to itself.")] = True,
    anew: Annotated[
        bool, typer.Option("--anew", help="Take no layer from the last image: today's packages of Debian and PyPI.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build an image in the environment's build project, scan it, and print REPOSITORY@DIGEST. A source that was built
    before is scanned again and not built."""
    plan = _plan(env, None, as_json=as_json)
    _software(stack, as_json=as_json)
    if _embedded():
        why = (
            "the embedded AWS has no container engine, so its builds run nothing. Run this against an account, after"
            f" `npx cdk deploy access images -c environment={env}`."
        )
        _stop(NOT_HERE, why, as_json)
    arguments = _image_arguments(stack, env, as_json=as_json)
    try:
        made = images.source(ROOT, arguments, anew=datetime.now(UTC).date().isoformat() if anew else None)
    except images.SourceFault as error:
        _stop(WRONG_INPUT, addressed(str(error), env), as_json)

    def report(line: str) -> None:
        err.print(line, highlight=False, markup=False, soft_wrap=True)

    def run() -> None:
        session = _session(plan)
        images.upload(made, plan, s3=session.client("s3"), report=report)
        built = images.build(
            made,
            plan,
            codebuild=session.client("codebuild"),
            logs=session.client("logs"),
            ecr=session.client("ecr"),
            report=report,
            wait=time.sleep,
            to_its_end=wait,
        )
        if as_json:
            _json(built.document())
        elif built.image is None:
            _say(out, "started", "green", f"build {built.build}; then: moerl image digest {env} --stack {stack}")
        else:
            out.print(Text(built.image), soft_wrap=True)

    _attempt(run, as_json)


@image_app.command(
    name="digest",
    epilog="Example: moerl image digest reference-p5en\n\n"
    'Example: moerl render mine --out dist/mine --image "$(moerl image digest mine)"\n\n'
    "Exit codes: 0 printed, 1 no image passed its scan yet or AWS refused, 2 wrong input.",
)
def image_digest(
    env: Env,
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="STACK", help="Another stack than the environment's own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print REPOSITORY@DIGEST, in one line, of the newest image that was built for the environment and passed its scan."""
    plan = _plan(env, None, as_json=as_json)
    software = _software(stack, as_json=as_json) if stack else plan.software

    def run() -> None:
        found = images.current(plan, software, ssm=_session(plan).client("ssm"))
        if as_json:
            _json({"stack": software, "image": found})
        else:
            print(found)

    _attempt(run, as_json)


@pool_app.command(name="scale", epilog="Example: moerl pool scale p6-b200 trainer --nodes 8")
def pool_scale(
    env: Env,
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    nodes: Annotated[int, typer.Option(help="Desired number of nodes.", min=0)],
    timeout_minutes: Annotated[float, typer.Option(help="How long to wait for the nodes.", min=0)] = 20,
    as_json: Json = False,
) -> None:
    """Set a pool's desired size and wait; capacity errors are shown as they come."""
    plan = _plan(env, None, as_json=as_json)
    planned = _pool(plan, pool, as_json)

    def show(progress: pools.Progress) -> None:
        if not as_json:
            out.print(f"{progress.in_service} of {progress.wanted} nodes in service", highlight=False, soft_wrap=True)
            for problem in progress.problems:
                out.print(Text(f"  {problem}", "yellow"), soft_wrap=True)

    def run() -> None:
        session = _session(plan)
        result = pools.scale(
            plan,
            planned,
            nodes,
            eks=session.client("eks"),
            autoscaling=session.client("autoscaling"),
            timeout_seconds=timeout_minutes * 60,
            sleep=time.sleep,
            now=time.monotonic,
            report=show,
        )
        if as_json:
            last = result.last
            _json(
                {
                    "pool": result.pool,
                    "node_group": result.node_group,
                    "outcome": result.outcome,
                    "wanted": last.wanted,
                    "in_service": last.in_service,
                    "problems": list(last.problems),
                }
            )
        if result.outcome == "timed-out":
            if not as_json:
                _say(err, "timed out", "yellow", _unreached(result, timeout_minutes))
            raise typer.Exit(TIMED_OUT)

    _attempt(run, as_json)


def _unreached(result: pools.ScaleResult, minutes: float) -> str:
    last, group = result.last, result.node_group
    return (
        f"{last.in_service} of {last.wanted} nodes of {result.pool} in service after {minutes:g} minutes. The wish for"
        f" {last.wanted} stays set and AWS goes on trying: `moerl pool scale` with another size withdraws it. Why they do"
        f" not come is in the activity of the Auto Scaling group of node group {group}, and what failed in its health issues."
    )


@pool_app.command(name="tag", epilog="Example: moerl pool tag reference-p5en rollout")
def pool_tag(env: Env, pool: Annotated[str, typer.Argument(metavar="POOL")], as_json: Json = False) -> None:
    """Write the tags that the cluster autoscaler needs to scale a pool from zero, and the file's own tags."""
    plan = _plan(env, None, as_json=as_json)
    planned = _pool(plan, pool, as_json)

    def run() -> None:
        session = _session(plan)
        group, tags = pools.tag(plan, planned, eks=session.client("eks"), autoscaling=session.client("autoscaling"))
        if as_json:
            _json({"auto_scaling_group": group, "tags": tags})
            return
        out.print(Text(f"{group}:"), soft_wrap=True)
        for key, value in sorted(tags.items()):
            out.print(Text(f"  {key} = {value}"), soft_wrap=True)

    _attempt(run, as_json)


def _account(value: str) -> str:
    if not re.fullmatch(ACCOUNT.pattern, value):
        raise typer.BadParameter(f"{value!r} is no account id, which has 12 digits")
    return value


def _region(value: str) -> str:
    if not re.fullmatch(REGION.pattern, value):
        raise typer.BadParameter(f"{value!r} is no region of AWS, such as us-west-2")
    return value


@local_app.command(
    epilog="Example: moerl local up && eval $(moerl local status --export)\n\n"
    "Example: moerl local up --kubernetes --env starter-p5en"
)
def up(
    directory: Annotated[Path, typer.Option("--dir", help="Where its state and log are kept.")] = ROOT / ".cache/local",
    account: Annotated[
        str, typer.Option(help="Account id that it answers with, 12 digits.", callback=_account)
    ] = "123456789012",
    region: Annotated[str, typer.Option(help="Its region.", callback=_region)] = "us-west-2",
    kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="Start a real Kubernetes control plane instead, with the nodes of --env."),
    ] = False,
    env: Annotated[str, typer.Option("--env", help="Environment whose nodes are simulated.")] = "reference-p5en",
) -> None:
    """Start the embedded AWS, or a Kubernetes control plane, on free ports of 127.0.0.1."""
    from infra.local.processes import InUse, held

    try:
        with held(directory):
            if kubernetes:
                _kubernetes_up(directory.resolve() / "kubernetes", env)
            else:
                _emulator_up(directory, account, region)
    except (InUse, OSError) as error:
        _say(err, "not started", "red", str(error))
        raise typer.Exit(FAILED) from error


def _emulator_up(directory: Path, account: str, region: str) -> None:
    from infra.local import server

    python = ROOT / ".venv-emulator" / "bin" / "python"
    if not python.is_file():
        _say(err, "no emulator", "red", "run `make install` first, which gives it a virtual environment of its own")
        raise typer.Exit(FAILED)
    try:
        started = server.start(directory, python=python, project_root=ROOT, account=account, region=region)
    except server.EmulatorError as error:
        _say(err, "not started", "red", str(error))
        raise typer.Exit(FAILED) from error
    _say(out, "up", "green", f"{started.url} (account {started.account}, {started.region}), log {started.log}")
    out.print("eval $(moerl local status --export)", highlight=False)


@local_app.command(epilog="Example: moerl local status --json")
def status(
    directory: Annotated[Path, typer.Option("--dir", help="Where its state and log are kept.")] = ROOT / ".cache/local",
    export: Annotated[bool, typer.Option("--export", help="Print shell exports for the AWS and CDK CLIs.")] = False,
    as_json: Json = False,
) -> None:
    """Say what runs here, the embedded AWS or a control plane, and where. Exit 1 when nothing does."""
    from infra.local import server
    from infra.local.kubernetes import cluster
    from infra.local.kubernetes.processes import ProcessFault

    try:
        running, control_plane = server.status(directory), cluster.status(directory / "kubernetes")
    except (server.EmulatorError, ProcessFault, OSError) as error:
        _stop(FAILED, error, as_json)
    node = pinned_node()
    variables = server.client_environment(running, node=node) if running and node else {}
    if control_plane:
        variables = {**variables, "KUBECONFIG": str(control_plane.kubeconfig)}
    if as_json:
        document = {"running": running is not None, "url": running.url if running else None, "environment": variables}
        _json({**document, "kubernetes_url": control_plane.url if control_plane else None})
    elif running is None and control_plane is None:
        err.print("not running")
    elif export:
        for key, value in sorted(variables.items()):
            print(f"export {key}={shlex.quote(value)}")
    else:
        if running:
            _say(out, "up", "green", f"{running.url} (pid {running.pid})")
        if control_plane:
            _say(out, "up", "green", f"{control_plane.url}, KUBECONFIG={control_plane.kubeconfig}")
    if running is None and control_plane is None:
        raise typer.Exit(FAILED)


@local_app.command(epilog="Example: moerl local down")
def down(
    directory: Annotated[Path, typer.Option("--dir", help="Where its state and log are kept.")] = ROOT / ".cache/local",
) -> None:
    """Stop what `up` started, embedded AWS and control plane; what was deployed to them is gone."""
    from infra.local import server
    from infra.local.kubernetes import cluster
    from infra.local.kubernetes.processes import ProcessFault

    try:
        stopped = [cluster.stop(directory / "kubernetes"), server.stop(directory)]
    except (server.EmulatorError, ProcessFault, OSError) as error:
        _stop(FAILED, error, as_json=False)
    out.print("stopped" if any(stopped) else "nothing was running")


def _kubernetes_up(folder: Path, env: str) -> None:
    """The control plane with every node of the environment at its largest, its add-ons and controllers; it stays up."""
    from infra.local.pins import fixture_pins

    draft = _load(env, None, as_json=False)
    pins = fixture_pins(draft.environment.kubernetes.version)
    plan = build_plan(draft.environment, pins, draft.warnings)
    use_pinned_node(os.environ)
    from infra.local.kubernetes import cluster, fleet
    from infra.local.kubernetes.api import ApiFault
    from infra.local.kubernetes.processes import ProcessFault
    from infra.local.kubernetes.programs import ProgramsMissing
    from infra.local.kubernetes.programs import locate as locate_programs
    from infra.local.schemas import DEFINITIONS, local_schemas

    try:
        running = cluster.status(folder)
        if running is not None:
            raise ProcessFault(f"one runs here already: {running.url}")
        started, _, unknown = fleet.start(
            folder,
            locate_programs(os.environ),
            plan,
            local_schemas(os.environ),
            bound=False,
            progress=lambda step: err.print(f"starting {step}", highlight=False, markup=False, soft_wrap=True),
        )
    except (ProgramsMissing, ProcessFault, ApiFault, TimeoutError) as error:
        _say(err, "not started", "red", str(error))
        raise typer.Exit(FAILED) from error
    for kind in sorted(unknown):
        _say(err, "no definition", "yellow", f"{kind}: objects of that kind will be refused here")
    if unknown:
        _say(err, "hint", "yellow", DEFINITIONS)
    nodes = sum(pool.size.max for pool in plan.pools)
    _say(out, "up", "green", f"{started.url}, {nodes} simulated nodes of {plan.name}, logs {started.logs}")
    out.print(f"export KUBECONFIG={started.kubeconfig}", highlight=False, soft_wrap=True)


def _digest(image: str | None, env: str) -> str | None:
    """The image as it was given. Wrong input when it is not named by digest: a tag may be another image tomorrow."""
    if image is None or IMAGE.fullmatch(image):
        return image
    if image:
        why, fix = (
            "is not named by digest, and a tag may mean another image tomorrow",
            "Write REPOSITORY@sha256:DIGEST.",
        )
    else:
        why = addressed("is empty: `moerl image digest ENV` printed none", env)
        fix = "Build one with `moerl image build`, or leave the option out: the workloads are then left out too."
    finding = Finding(rule="render.image", key="--image", value=image, why=why, fix=fix)
    raise EnvironmentFault("command line", (finding,))


def _load(env: str, pins: Path | None, *, as_json: bool) -> Loaded:
    return _refusing(lambda: load_named(env, ROOT, lock=pins, further=rendered_faults), as_json)


def _plan(env: str, pins: Path | None, *, as_json: bool) -> Plan:
    return _plan_of(_load(env, pins, as_json=as_json))


def _plan_of(loaded: Loaded) -> Plan:
    return build_plan(loaded.environment, loaded.pins, loaded.warnings)


def _image_arguments(stack: str, env: str | None, *, as_json: bool) -> ImageArguments:
    """The arguments of a stack's image; of the environment's own stack with the flags that its renders pass."""
    software = _software(stack, as_json=as_json)
    of_stack = (CATALOG.software[software], CATALOG.image_sources[software])
    if env is None:
        return image_arguments(*of_stack)
    loaded = _load(env, None, as_json=as_json)
    plan = _plan_of(loaded)
    resolved = loaded.pins.build.get(software, {})
    archs = plan.workload.cuda_archs
    if plan.software != software:
        return image_arguments(*of_stack, archs=archs, resolved=resolved)
    from k8s.flags.rendered import engine_flag_names, trainer_flag_names

    return _refusing(
        lambda: image_arguments(
            *of_stack,
            archs=archs,
            resolved=resolved,
            trainer_flags=trainer_flag_names(plan),
            engine_flags=engine_flag_names(plan),
        ),
        as_json,
    )


def _software(stack: str, *, as_json: bool) -> Software:
    software = next((known for known in CATALOG.software if known == stack), None)
    if software is None:
        known = ", ".join(CATALOG.software)
        _stop(WRONG_INPUT, f"STACK = {stack!r}: no software stack has that name. Write one of {known}.", as_json)
    return software


def _pool(plan: Plan, name: str, as_json: bool) -> PoolPlan:
    try:
        return plan.pool(name)
    except KeyError as error:
        _stop(WRONG_INPUT, error.args[0], as_json)


def _refusing(read: Callable[[], T], as_json: bool) -> T:
    """Runs something that may meet a wrong file; then every finding is shown and the exit code is 2."""
    try:
        return read()
    except EnvironmentFault as fault:
        _refuse(fault.path, fault.findings, as_json)


def _refuse(path: str, findings: tuple[Finding, ...], as_json: bool) -> NoReturn:
    if as_json:
        _json({"path": path, "valid": False, "findings": [found.document() for found in findings]})
    else:
        print_findings(findings, path, err)
        number = sum(found.severity == "fault" for found in findings)
        _say(err, "refused", "red", f"{path}: {count(number, 'fault')}, nothing written")
    raise typer.Exit(WRONG_INPUT)


def _session(plan: Plan) -> Any:
    return boto3.Session(region_name=plan.region)


def _embedded() -> bool:
    return urlsplit(os.environ.get("AWS_ENDPOINT_URL", "")).hostname in {"127.0.0.1", "localhost", "::1"}


def _attempt(run: Callable[[], None], as_json: bool) -> None:
    """Runs something that needs AWS or the disk; what goes wrong there ends in one line and a stable exit code."""
    try:
        run()
    except pools.PoolError as error:
        _stop(WRONG_INPUT, error, as_json)
    except (BotoCoreError, ClientError) as error:
        _stop(FAILED, f"{error}. {SIGN_IN}" if _signed_out(error) else error, as_json)
    except (locking.LockError, ApplyFault, images.ImageFault, OSError) as error:
        _stop(FAILED, error, as_json)


def _signed_out(error: BotoCoreError | ClientError) -> bool:
    """Whether AWS was asked without credentials, or with ones that are over."""
    if isinstance(error, ClientError):
        return error.response.get("Error", {}).get("Code") in NOT_SIGNED_IN
    return isinstance(error, NO_CREDENTIALS)


def _stop(code: int, error: object, as_json: bool) -> NoReturn:
    word = OUTCOMES[code]
    if as_json:
        _json({"outcome": word, "error": str(error)})
    else:
        _say(err, word, "red", str(error))
    raise typer.Exit(code)


def _say(console: Console, word: str, style: str, rest: str) -> None:
    """One line that starts with a coloured word; the rest is printed as it is, brackets and colons included."""
    console.print(Text.assemble((word, style), " ", rest), soft_wrap=True)


def _json(document: object) -> None:
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    print()
