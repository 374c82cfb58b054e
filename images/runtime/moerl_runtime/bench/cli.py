"""`bench nccl` and `bench deepep`."""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moerl_runtime import plan as plans
from moerl_runtime.bench import nccl_log, report, traffic, verdict
from moerl_runtime.bench.launch import Outcome, run_ranks
from moerl_runtime.bench.settings import INDEX_VARIABLE, MIB, Backend, Case, Kind, Links, Settings, Shape
from moerl_runtime.bench.verdict import Floor
from moerl_runtime.faults import InputFault
from moerl_runtime.plan import Node
from moerl_runtime.preflight.check import FAILED, Check, causes, document, exit_code

SMS_BETWEEN_NODES = 12
"""As in the published numbers; DeepEP cannot derive it where it does not see EFA's rate."""
SECONDS = 1800.0
DEFAULT_TOKENS = (verdict.PREFILL_TOKENS, verdict.DECODE_TOKENS)

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = bench.add_subparsers(metavar="BENCH", required=True)
    texts = {
        "nccl": "all-reduce, all-to-all, send-receive between all pairs, and a broadcast as a weight refit has",
        "deepep": "dispatch and combine of DeepEP against plain NCCL, checked and timed",
    }
    for kind, text in texts.items():
        parser = kinds.add_parser(
            kind, help=text, description=text, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
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
        parser.add_argument("--ranks", type=int, help="processes on this node (default: the pool's GPUs)")
        parser.add_argument("--repeats", type=int, default=20, help="timed runs of each step (default: 20)")
        parser.add_argument("--logs", type=Path, help="folder that keeps NCCL's logs (default: one that is removed)")
        if kind == "nccl":
            parser.add_argument("--largest-mib", type=int, default=1024, help="largest message (default: 1024)")
        else:
            parser.add_argument(
                "--tokens",
                type=int,
                action="append",
                help=f"tokens per rank, may be repeated (default: {verdict.PREFILL_TOKENS} and {verdict.DECODE_TOKENS})",
            )
            parser.add_argument("--sms", type=int, help="multiprocessors for DeepEP's kernels; 0 lets it choose")
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
    if settings.node > 0:
        print(f"{report.verdict_lines(checks)[-1]}; the results of all nodes are in the log of the first one")
        return exit_code(checks)
    print("\n".join([*lines, *report.verdict_lines(checks)]))
    print(json.dumps(found, sort_keys=True))
    return exit_code(checks)


def conclusions(
    settings: Settings, plan: Node, outcome: Outcome
) -> tuple[list[str], dict[str, Any], tuple[Check, ...]]:
    """(table, document, checks) of what ranks brought."""
    if not outcome.ranks:
        check = Check(
            name="ranks",
            status="failed",
            found=outcome.failure,
            needed="every rank to finish",
            fix="NCCL's own log (--logs DIR) says more.",
            cause="ranks",
        )
        return [], _document(settings, (check,)), (check,)
    evidence = [nccl_log.Evidence(**_tuples(rank["evidence"])) for rank in outcome.ranks]
    checks: tuple[Check, ...] = ()
    if settings.backend != "gloo":
        wanted = None if plan["image"]["nccl"].value is None else plan["image"]["nccl"].text
        checks = verdict.one_nccl(outcome.ranks, wanted)
        checks += nccl_log.judge(
            evidence,
            nodes=settings.nodes,
            transport=settings.transport,
            device_side=settings.backend == "deep_ep",
            efa_devices=settings.links.efa_devices,
        )
    extra: dict[str, Any] = {
        "software": outcome.ranks[0]["software"],
        "evidence": [{"rank": rank["rank"], **rank["evidence"]} for rank in outcome.ranks],
    }
    if settings.kind == "nccl":
        found, judged = verdict.collectives(settings, outcome.ranks)
        return report.collective_lines(found), _document(settings, checks + judged) | extra | found, checks + judged
    results = verdict.results(settings, outcome.ranks)
    winners = verdict.winners(results)
    checks += verdict.correctness(settings, outcome.ranks)
    checks += verdict.floors(results, floors_of(plan, settings))
    extra |= {"cases": [asdict(result) for result in results], "winners": winners}
    return report.expert_lines(results, winners), _document(settings, checks) | extra, checks


def _document(settings: Settings, checks: tuple[Check, ...]) -> dict[str, Any]:
    return {
        "bench": settings.kind,
        "settings": asdict(settings),
        "ceiling": asdict(traffic.ceiling(settings.links, settings.nodes)),
        "checks": document(checks),
        "causes": causes(checks),
        "verdict": "failed" if exit_code(checks) == FAILED else "passed",
    }


def _tuples(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists where a dataclass has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in evidence.items()}


def settings_of(arguments: argparse.Namespace, plan: Node, variables: Mapping[str, str]) -> Settings:
    """Raises InputFault for what cannot run."""
    pool = plans.pool(plan, arguments.pool)
    host, port = address(arguments.rendezvous)
    node = _node(variables, arguments.nodes)
    backend: Backend = arguments.backend
    ranks = arguments.ranks or pool["gpus_per_node"].number
    if ranks < 1:
        raise InputFault(
            "--pool", arguments.pool, "has no GPUs", "Name a GPU pool, or give --ranks with --backend gloo."
        )
    kind: Kind = arguments.kind
    sms = getattr(arguments, "sms", None)
    return Settings(
        kind=kind,
        backend=backend,
        pool=arguments.pool,
        host=host,
        port=port,
        nodes=arguments.nodes,
        node=node,
        ranks_per_node=ranks,
        links=Links(
            gpus=max(1, pool["gpus_per_node"].number),
            efa_devices=pool["efa_per_node"].number,
            efa_gbps=pool["needs"]["efa_gbps"].number,
            nvlink_gb_per_second=pool["needs"]["nvlink_gb_per_second"].number,
        ),
        transport=pool["transport"].text,
        cases=() if kind == "nccl" else cases_of(plan, arguments.pool, arguments.tokens, ranks * arguments.nodes),
        num_sms=sms if sms is not None else (SMS_BETWEEN_NODES if arguments.nodes > 1 else 0),
        num_contexts=plan["image"]["deepep_contexts"].number if arguments.nodes > 1 else 0,
        largest_bytes=getattr(arguments, "largest_mib", 1) * MIB,
        repeats=arguments.repeats,
    )


def cases_of(plan: Node, pool: str, tokens: list[int] | None, ranks: int) -> tuple[Case, ...]:
    """The run's own MoE layer, and the shape of published numbers where the plan has floors for it."""
    shapes = {"model": _shape(plan["workload"]["shape"])}
    needs = _dispatch_needs(plan, pool)
    if needs is not None:
        shapes["published"] = _shape(needs["shape"])
    cases = []
    for name, shape in shapes.items():
        if shape.experts == 0:
            continue
        if shape.experts % ranks:
            raise InputFault(
                "--nodes",
                ranks,
                f"ranks do not divide the {shape.experts} experts of shape {name!r}",
                "Choose nodes and --ranks whose product divides them.",
            )
        cases += [Case(name=f"{name}-{count}", shape=shape, tokens=count) for count in tokens or DEFAULT_TOKENS]
    if not cases:
        raise InputFault(
            "workload.model", plan["workload"]["model"].text, "is dense", "There is no expert traffic to measure."
        )
    return tuple(cases)


def floors_of(plan: Node, settings: Settings) -> tuple[Floor, ...]:
    """Floors of the published shape; none where the group is not what the plan has them for."""
    needs = _dispatch_needs(plan, settings.pool)
    if needs is None or settings.nodes == 1:
        return ()
    return (
        Floor(
            case=f"published-{verdict.PREFILL_TOKENS}",
            logical_gb_per_second=float(needs["logical_gb_per_second"].value),
        ),
        Floor(case=f"published-{verdict.DECODE_TOKENS}", latency_us=float(needs["latency_us"].value)),
    )


def _dispatch_needs(plan: Node, pool: str) -> Node | None:
    for place, rollout in enumerate(plan["workload"]["rollouts"].value):
        if rollout["pool"] == pool and rollout["dispatch"] is not None:
            return plan["workload"]["rollouts"][place]["dispatch"]
    return None


def _shape(node: Node) -> Shape:
    return Shape(hidden=node["hidden"].number, experts=node["experts"].number, top_k=node["top_k"].number)


def address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair. Raises InputFault otherwise."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InputFault("address", text, "is not HOST:PORT", "Write for example 127.0.0.1:29500.")
    return host.strip("[]"), int(port)


def _node(variables: Mapping[str, str], nodes: int) -> int:
    if nodes < 1:
        raise InputFault("--nodes", nodes, "is not a number of nodes", "Write 1 or more.")
    text = variables.get(INDEX_VARIABLE, "0")
    if not text.isdigit() or int(text) >= nodes:
        raise InputFault(INDEX_VARIABLE, text, f"is not one of {nodes} nodes", "Start it as the rendered job does.")
    return int(text)
