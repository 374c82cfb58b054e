"""`bench nccl` and `bench deepep`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moerl_runtime import plan as plans
from moerl_runtime.arguments import whole
from moerl_runtime.bench import planned, report, verdict
from moerl_runtime.bench.conclusions import conclusions
from moerl_runtime.bench.launch import run_ranks
from moerl_runtime.bench.settings import INDEX_VARIABLE, MIB, Settings
from moerl_runtime.plan import Node
from moerl_runtime.preflight.check import details, exit_code

SECONDS = 1800.0

EPILOG = """exit codes: 0 passed, 1 a check failed or the ranks did, 2 wrong input. NCCL being faster than DeepEP is a
result, not a failure: it is printed, and in the document's `winners`.

The last line on stdout is one JSON document, on the first node.

examples:
  bench nccl   --pool trainer --rendezvous nccl-trainer-0.nccl-trainer.rl.svc:29500 --nodes 16
  bench deepep --pool rollout --rendezvous 127.0.0.1:29500 --nodes 1
  bench deepep --pool rollout --rendezvous 127.0.0.1:29500 --nodes 1 --backend gloo --ranks 2 --tokens 16
"""


def register(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="NCCL and DeepEP between nodes of a pool",
        epilog=EPILOG,
    )
    kinds = bench.add_subparsers(metavar="BENCH", required=True)
    texts = {
        "nccl": "all-reduce, all-to-all, send-receive between all pairs, and a broadcast as a weight refit has",
        "deepep": "dispatch and combine of DeepEP against plain NCCL, checked and timed",
    }
    for kind, text in texts.items():
        parser = kinds.add_parser(kind, help=text, description=text, epilog=EPILOG)
        plans.add_argument(parser)
        parser.add_argument("--pool", required=True, help="pool of the plan that this node belongs to")
        parser.add_argument("--rendezvous", required=True, metavar="HOST:PORT", help="where ranks meet: the first node")
        parser.add_argument("--nodes", type=int, required=True, help=f"nodes; {INDEX_VARIABLE} says which this one is")
        backends = ("nccl", "gloo") if kind == "nccl" else ("deep_ep", "nccl", "gloo")
        parser.add_argument(
            "--backend",
            choices=backends,
            default=backends[0],
            help=f"what carries the data (default: {backends[0]}); gloo runs the same code on CPUs",
        )
        parser.add_argument("--ranks", type=whole(1), help="processes on this node (default: the pool's GPUs)")
        parser.add_argument("--repeats", type=whole(1), default=20, help="timed runs of each step (default: 20)")
        parser.add_argument("--logs", type=Path, help="folder that keeps NCCL's logs (default: one that is removed)")
        if kind == "nccl":
            parser.add_argument("--largest-mib", type=whole(1), default=1024, help="largest message (default: 1024)")
        else:
            parser.add_argument(
                "--tokens",
                type=whole(1),
                action="append",
                help=f"tokens per rank, may be repeated (default: {verdict.PREFILL_TOKENS} and {verdict.DECODE_TOKENS})",
            )
            parser.add_argument("--sms", type=whole(0), help="multiprocessors for DeepEP's kernels; 0 lets it choose")
        parser.set_defaults(handler=_handle, kind=kind)


def _handle(arguments: argparse.Namespace) -> int:
    plan = plans.load(arguments.plan)
    variables: Mapping[str, str] = arguments.variables
    settings = settings_of(arguments, plan, variables)
    for line in report.ceiling_lines(settings):
        print(line, flush=True)
    if arguments.logs is not None:
        arguments.logs.mkdir(parents=True, exist_ok=True)
        return _run(settings, plan, arguments.logs, variables)
    with tempfile.TemporaryDirectory(prefix="moerl-bench-") as folder:
        return _run(settings, plan, Path(folder), variables)


def _run(settings: Settings, plan: Node, folder: Path, variables: Mapping[str, str]) -> int:
    outcome = run_ranks(
        settings,
        folder,
        variables=variables,
        seconds=SECONDS,
        clock=time.monotonic,
        pause=threading.Event().wait,
    )
    lines, found, checks = conclusions(settings, plan, outcome)
    for text in details(checks):
        print(text, file=sys.stderr, flush=True)
    if settings.node > 0:
        print(f"{report.verdict_lines(checks)[-1]}; the results of all nodes are in the log of the first one")
        return exit_code(checks)
    print("\n".join([*lines, *report.verdict_lines(checks)]))
    print(json.dumps(found, sort_keys=True))
    return exit_code(checks)


def settings_of(arguments: argparse.Namespace, plan: Node, variables: Mapping[str, str]) -> Settings:
    """Raises InputFault for what cannot run."""
    host, port = planned.address(arguments.rendezvous)
    node, kind = planned.node_index(variables, arguments.nodes), arguments.kind
    settings = planned.settings(
        plan,
        arguments.pool,
        kind=kind,
        backend=arguments.backend,
        host=host,
        port=port,
        nodes=arguments.nodes,
        node=node,
        ranks=arguments.ranks,
        sms=getattr(arguments, "sms", None),
    )
    return replace(
        settings,
        cases=() if kind == "nccl" else planned.cases_of(plan, arguments.pool, arguments.tokens, settings.ranks),
        largest_bytes=getattr(arguments, "largest_mib", 1) * MIB,
        repeats=arguments.repeats,
    )
