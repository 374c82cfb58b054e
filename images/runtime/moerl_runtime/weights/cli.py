"""`python -m moerl_runtime weights`: prepare, fetch, list, prune."""

from __future__ import annotations

import json
import subprocess
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import boto3

from moerl_runtime import plan as run_plan
from moerl_runtime import store, train_script
from moerl_runtime.arguments import digits
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.plan import Node
from moerl_runtime.weights import cache, hub, models, pointer, prepare, publish, retain

EPILOG = """exit codes: 0 done, 1 it failed, 2 wrong input.

variables of prepare: JOB_COMPLETION_INDEX, this pod's number; MOERL_TRAIN_SCRIPT, the framework's train.py, beside which its
tools lie.

examples:
  python -m moerl_runtime weights fetch --pool rollout --below /models
  python -m moerl_runtime weights prepare --below /models --rendezvous prepare-0.prepare:29500 --nodes 1 -- --num-layers 48
  python -m moerl_runtime weights list --json
  python -m moerl_runtime weights prune --keep 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    s3: store.S3Client
    plan: Node
    bucket: str
    prefix: str


def register(commands: _SubParsersAction[ArgumentParser]) -> None:
    parser = commands.add_parser(
        "weights",
        help="prepare, fetch and list model weights",
        description="Base models and versions of the policy in the weights bucket.",
        epilog=EPILOG,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    fetching = _verb(verbs, "fetch", _fetch, "bring the base models that a pool needs to this node, once a node")
    fetching.add_argument("--pool", required=True, help="pool of the plan that this node belongs to")
    fetching.add_argument("--below", type=Path, required=True, metavar="DIR", help="the node's directory of models")
    preparing = _verb(verbs, "prepare", _prepare, "store the model and its forms; what is complete is left alone")
    preparing.add_argument("--below", type=Path, required=True, metavar="DIR", help="the node's directory of models")
    preparing.add_argument("--rendezvous", required=True, metavar="HOST:PORT", help="where the pods of the job meet")
    preparing.add_argument("--nodes", type=int, required=True, help="pods of the job")
    preparing.add_argument("shape", nargs="*", metavar="-- FLAG", help="the framework's flags of the model's shape")
    listing = _verb(verbs, "list", _list, "versions of the policy in the bucket")
    pruning = _verb(verbs, "prune", _prune, "remove versions that nothing needs")
    pruning.add_argument(
        "--keep", type=int, default=publish.KEEP_VERSIONS, help=f"newest versions to keep ({publish.KEEP_VERSIONS})"
    )
    for verb in (listing, pruning):
        verb.add_argument("--run", help="(default: the run that engines are pointed at)")
        verb.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _verb(
    verbs: _SubParsersAction[ArgumentParser], name: str, handler: Callable[[Namespace], int], text: str
) -> ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text, epilog=EPILOG)
    run_plan.add_argument(verb)
    verb.set_defaults(handler=handler)
    return verb


def _fetch(arguments: Namespace) -> int:
    place = _place(arguments)
    for name in models.needed(place.plan, arguments.pool):
        models.fetch(place.s3, place.bucket, name, below=arguments.below)
    cache.open_to_agents(arguments.below)
    return 0


def _prepare(arguments: Namespace) -> int:
    place = _place(arguments)
    run = place.plan["workload"]
    token_arn = run["hub_token_secret_arn"].value
    secrets = boto3.client("secretsmanager", region_name=place.plan["region"].text) if token_arn else None
    prepare.prepare(
        place.s3,
        prepare.Job(
            bucket=place.bucket,
            model=run["model"].text,
            source=run["files"]["source"].text,
            serving=run["files"]["serving"].text,
            reference=run["files"]["reference"].text,
            below=arguments.below,
            tools=train_script.path(arguments.variables).parent / "tools",
            index=_index(arguments),
            nodes=arguments.nodes,
            gpus=run_plan.pool(place.plan, run["trainer"]["pool"].text)["gpus_per_node"].number,
            rendezvous=arguments.rendezvous,
            shape=tuple(arguments.shape),
        ),
        hub=hub.HuggingFace(hub.token_of(secrets, token_arn)),
        run=run_tool,
    )
    return 0


def run_tool(command: Sequence[str]) -> None:
    """Runs one of the framework's tools. Raises RuntimeFault where it fails; what it says is in the log above."""
    print("prepare: " + " ".join(command), flush=True)
    ended = subprocess.run(command, check=False)  # noqa: S603 - a list, from the plan and the image
    if ended.returncode:
        raise RuntimeFault("prepare", command[1], f"ended with {ended.returncode}", "See what it wrote above.")


def _index(arguments: Namespace) -> int:
    written: str = arguments.variables.get("JOB_COMPLETION_INDEX", "")
    index = digits(written)
    if index is None or index >= arguments.nodes:
        raise InputFault(
            "JOB_COMPLETION_INDEX", written, f"is no pod of {arguments.nodes}", "Run it as an Indexed Job."
        )
    return index


def _list(arguments: Namespace) -> int:
    place = _place(arguments)
    run = _run(arguments, place)
    found = retain.list_stored(place.s3, place.bucket, place.prefix, run=run) if run else []
    if arguments.json:
        print(json.dumps({"run": run, "versions": [asdict(item) for item in found]}))
        return 0
    print(f"{'attempt':>7} {'version':>8} {'form':<10} {'base':>8} {'GiB':>9} {'files':>5}")
    for item in found:
        size = "" if item.size_bytes is None else f"{item.size_bytes / 2**30:.2f}"
        base = "" if item.base is None else str(item.base)
        marks = " current" * item.current + " loaded" * item.loaded
        print(f"{item.attempt:>7} {item.version:>8} {item.form:<10} {base:>8} {size:>9} {item.files:>5}{marks}")
    return 0


def _prune(arguments: Namespace) -> int:
    if arguments.keep < 1:
        raise InputFault("--keep", arguments.keep, "would remove what engines load", "Write 1 or more.")
    place = _place(arguments)
    run = _run(arguments, place)
    removed = retain.prune(place.s3, place.bucket, place.prefix, run=run, keep_versions=arguments.keep) if run else []
    if arguments.json:
        print(json.dumps({"run": run, "removed": removed}))
    else:
        print("\n".join([*removed, f"{len(removed)} forms removed"]))
    return 0


def _run(arguments: Namespace, place: Place) -> str | None:
    """The run that was asked for, or the one that engines are pointed at; None where there is none."""
    written: str | None = arguments.run
    if written:
        return written
    pointed = pointer.read_current(place.s3, place.bucket, place.prefix)
    return None if pointed is None else pointed.current.run


def _place(arguments: Namespace) -> Place:
    plan = run_plan.load(arguments.plan)
    return Place(
        s3=store.client(plan["region"].text),
        plan=plan,
        bucket=plan["names"]["weights_bucket"].text,
        prefix=plan["storage"]["weights_prefix"].text,
    )
