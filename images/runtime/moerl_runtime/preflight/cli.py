"""`preflight node`, `preflight gpu` and `preflight fabric`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from moerl_runtime import plan as plans
from moerl_runtime.arguments import output, whole
from moerl_runtime.bench import planned
from moerl_runtime.bench.settings import INDEX_VARIABLE
from moerl_runtime.faults import InputFault
from moerl_runtime.plan import Node
from moerl_runtime.preflight import fabric, identity, peers
from moerl_runtime.preflight.check import FAILED, Check, causes, details, document, exit_code, failed, skipped
from moerl_runtime.preflight.collect import collect, run_program
from moerl_runtime.preflight.expected import Expected, expected
from moerl_runtime.preflight.gpu_parts import gpu_checks
from moerl_runtime.preflight.judge import between_nodes, judge

ADDRESS_VARIABLE = "POD_IP"

EPILOG = """exit codes: 0 passed (warnings do not fail), 1 a check failed, 2 wrong input.

One line per check: what was found, and where it is wrong what is needed and how to get there; what programs printed that
failed is in full on stderr. The last line on stdout is the verdict as one JSON document; `cause` is a stable word for programs.

examples:
  preflight node --pool trainer
  preflight node --pool rollout --json /tmp/verdict.json
  preflight node --pool rollout --service preflight-rollout.rl.svc:29500 --nodes 2
  preflight gpu --pool rollout --ranks 2
  preflight fabric --pool trainer --service trainer-0a1b2c3d-fabric.rl.svc:29500 --nodes 16
  preflight fabric --pool rollout --rendezvous 127.0.0.1:29500 --nodes 1 --backend gloo --ranks 2 --tokens 16
"""


def register(commands: Any) -> None:
    preflight = commands.add_parser(
        "preflight",
        help="proves a node and this image before a job may use them",
        epilog=EPILOG,
    )
    parts = preflight.add_subparsers(metavar="PART", required=True)
    texts = {
        "node": "devices, drivers, image and variables of this node and pod, the GPU parts, and with --service the fabric",
        "gpu": "the GPU parts alone: a CUDA operation, and expert traffic between the GPUs of this node",
        "fabric": "nodes that work together: NCCL between all of them, and DeepEP where the pool's experts cross nodes",
    }
    handlers = {"node": _node, "gpu": _gpu, "fabric": _fabric}
    for name, text in texts.items():
        parser = parts.add_parser(name, help=text, description=text, epilog=EPILOG)
        plans.add_argument(parser)
        parser.add_argument("--pool", required=True, help="pool of the plan that this node belongs to")
        parser.add_argument("--json", type=output, metavar="FILE", help="write the verdict there as well")
        if name != "node":
            parser.add_argument("--ranks", type=whole(1), help="GPUs to use (default: the pod's by the plan)")
        if name != "gpu":
            _add_meeting(parser, alone=name == "node")
        if name == "fabric":
            parser.add_argument(
                "--backend", choices=("nccl", "gloo"), default="nccl", help="gloo runs the same on CPUs"
            )
            parser.add_argument("--tokens", type=whole(1), action="append", help="tokens per rank, may be repeated")
            parser.add_argument(
                "--largest-mib", type=whole(1), default=fabric.LARGEST_MIB, help="the broadcast (default: 1024)"
            )
            parser.add_argument(
                "--logs", type=Path, help="folder that keeps NCCL's logs (default: one that is removed)"
            )
        parser.set_defaults(handler=handlers[name])


def _add_meeting(parser: argparse.ArgumentParser, *, alone: bool) -> None:
    ways = parser.add_mutually_exclusive_group(required=not alone)
    ways.add_argument(
        "--service",
        metavar="NAME:PORT",
        help=f"headless Service of the nodes that work together; {ADDRESS_VARIABLE} says which address is this one's",
    )
    if not alone:
        ways.add_argument(
            "--rendezvous", metavar="HOST:PORT", help=f"the first node; {INDEX_VARIABLE} says which this one is"
        )
    parser.add_argument("--nodes", type=int, required=not alone, help="nodes that work together")


def _node(arguments: argparse.Namespace) -> int:
    variables: Mapping[str, str] = arguments.variables
    plan = plans.load(arguments.plan)
    wanted, region = expected(plan, arguments.pool, whole_node=INDEX_VARIABLE in variables), plan["region"].text
    if arguments.service:
        _service(arguments)  # Wrong input is said before minutes of checks.
    checks: list[Check] = list(judge(collect(Path("/"), run=run_program, variables=variables), wanted))
    checks.append(
        skipped(identity.NAME, "this pod has no role")
        if wanted.account is None
        else identity.check(wanted.account, variables, lambda: identity.caller(region))
    )
    _show(checks)
    if wanted.gpus:
        more = _gpu_checks(wanted, variables, None)
        _show(more)
        checks += more
    proven: str | None = None
    if arguments.service and failed(checks):
        checks.append(_told(arguments))
        _show(checks[-1:])
    elif arguments.service:
        links, proven = _links(arguments, plan, wanted)
        checks += links
    last = between_nodes(wanted, proven)
    _show([last])
    return _finish([*checks, last], wanted, arguments.json)


def _fabric(arguments: argparse.Namespace) -> int:
    plan = plans.load(arguments.plan)
    wanted = expected(plan, arguments.pool, whole_node=INDEX_VARIABLE in arguments.variables)
    checks, proven = _links(
        arguments,
        plan,
        wanted,
        on_cpu=arguments.backend == "gloo",
        ranks=arguments.ranks,
        tokens=arguments.tokens,
        largest_mib=arguments.largest_mib,
        logs=arguments.logs,
    )
    last = between_nodes(wanted, proven)
    _show([last])
    return _finish([*checks, last], wanted, arguments.json)


def _links(
    arguments: argparse.Namespace, plan: Node, wanted: Expected, *, logs: Path | None = None, **options: Any
) -> tuple[list[Check], str]:
    """(checks, what they have proven), shown as they come. `options` are those of `fabric.steps`."""
    place, checks = _place(arguments)
    _show(checks)
    steps = fabric.steps(plan, wanted, place, **options) if place else ()
    with tempfile.TemporaryDirectory(prefix="moerl-fabric-") as removed:
        for settings in steps:
            if failed(checks):
                found: Sequence[Check] = [skipped(fabric.TITLES[settings.kind], "what comes before it has failed")]
            else:
                folder = (logs or Path(removed)) / settings.kind
                folder.mkdir(parents=True, exist_ok=True)
                lines, found = fabric.run(
                    settings,
                    plan,
                    folder,
                    variables=arguments.variables,
                    clock=time.monotonic,
                    pause=threading.Event().wait,
                )
                for line in lines:
                    print(line, flush=True)
            _show(found)
            checks += found
    return checks, "" if failed(checks) else fabric.proven(steps)


def _place(arguments: argparse.Namespace) -> tuple[fabric.Place | None, list[Check]]:
    """Where this node stands among those that work together; None where they did not all come."""
    nodes: int = arguments.nodes
    if not arguments.service:
        host, port = planned.address(arguments.rendezvous)
        node = planned.node_index(arguments.variables, nodes)
        return fabric.Place(host=host, port=port, nodes=nodes, node=node), []
    _, port, own = _service(arguments)
    place, check = fabric.placed(_meet(arguments, sound=True), own, port, nodes)
    return place, [check]


def _told(arguments: argparse.Namespace) -> Check:
    """Tells the others, which would wait for this node, that it has failed. It waits for them as long as they would, and its own
    verdict stands whether they hear it or not."""
    try:
        meeting = _meet(arguments, sound=False)
    except OSError as error:
        return skipped(fabric.PEERS, f"this node has failed, and could not tell the others: {error}")
    heard = "has told the others" if meeting.unsound else "the others did not all come"
    return skipped(fabric.PEERS, f"this node has failed, and {heard}")


def _meet(arguments: argparse.Namespace, *, sound: bool) -> peers.Meeting:
    name, port, own = _service(arguments)
    print(f"waiting until {arguments.nodes} nodes behind {name} have come", flush=True)
    return peers.meet(
        own,
        nodes=arguments.nodes,
        port=port,
        resolve=peers.resolver(name, own),
        seconds=fabric.PEERS_SECONDS,
        clock=time.monotonic,
        pause=threading.Event().wait,
        sound=sound,
    )


def _service(arguments: argparse.Namespace) -> tuple[str, int, str]:
    """(name, port, this pod's address). Raises InputFault where one of them, or the number of nodes, is missing or none."""
    name, port = planned.address(arguments.service)
    if (arguments.nodes or 0) < 1:
        raise InputFault("--nodes", arguments.nodes, "is not a number of nodes", "Write 1 or more.")
    own = arguments.variables.get(ADDRESS_VARIABLE, "")
    try:
        return name, port, str(ip_address(own))
    except ValueError as error:
        raise InputFault(ADDRESS_VARIABLE, own, "is no address", "Start it as the rendered pods do.") from error


def _gpu(arguments: argparse.Namespace) -> int:
    variables: Mapping[str, str] = arguments.variables
    wanted = expected(plans.load(arguments.plan), arguments.pool, whole_node=INDEX_VARIABLE in variables)
    checks = _gpu_checks(wanted, variables, arguments.ranks)
    _show(checks)
    return _finish(checks, wanted, arguments.json)


def _gpu_checks(wanted: Expected, variables: Mapping[str, str], ranks: int | None) -> tuple[Check, ...]:
    return gpu_checks(
        wanted, run=run_program, variables=variables, clock=time.monotonic, pause=threading.Event().wait, ranks=ranks
    )


def _show(checks: Sequence[Check]) -> None:
    for check in checks:
        print(check.line(), flush=True)


def _finish(checks: Sequence[Check], wanted: Expected, file: Path | None) -> int:
    wrong = failed(checks)
    for text in details(checks):
        print(text, file=sys.stderr, flush=True)
    print(f"FAILED: {', '.join(check.name for check in wrong)}" if wrong else "passed")
    code = exit_code(checks)
    verdict = {
        "preflight": wanted.pool,
        "verdict": "failed" if code == FAILED else "passed",
        "causes": causes(checks),
        "checks": document(checks),
    }
    text = json.dumps(verdict, sort_keys=True)
    if file is not None:
        file.write_text(f"{text}\n", encoding="utf-8")
    print(text)
    return code
