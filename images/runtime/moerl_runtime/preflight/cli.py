"""`preflight node` and `preflight gpu`."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moerl_runtime import plan as plans
from moerl_runtime.bench.settings import INDEX_VARIABLE
from moerl_runtime.preflight import identity
from moerl_runtime.preflight.check import FAILED, Check, causes, document, exit_code, failed, skipped
from moerl_runtime.preflight.collect import collect, run_program
from moerl_runtime.preflight.expected import Expected, expected
from moerl_runtime.preflight.gpu_parts import gpu_checks
from moerl_runtime.preflight.judge import between_nodes, judge

EPILOG = """exit codes: 0 passed (warnings do not fail), 1 a check failed, 2 wrong input.

One line per check: what was found, and where it is wrong what is needed and how to get there. The last line on stdout is
the verdict as one JSON document; `cause` is a stable word for programs.

examples:
  preflight node --pool trainer
  preflight node --pool rollout --json /tmp/verdict.json
  preflight gpu --pool rollout --ranks 2
"""


def register(commands: Any) -> None:
    preflight = commands.add_parser(
        "preflight",
        help="proves a node and this image before a job may use them",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = preflight.add_subparsers(metavar="PART", required=True)
    texts = {
        "node": "devices, drivers, image and variables of this node and pod, then the GPU parts",
        "gpu": "the GPU parts alone: a CUDA operation, and expert traffic between the GPUs of this node",
    }
    for name, text in texts.items():
        parser = parts.add_parser(
            name, help=text, description=text, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        plans.add_argument(parser)
        parser.add_argument("--pool", required=True, help="pool of the plan that this node belongs to")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdict there as well")
        if name == "gpu":
            parser.add_argument("--ranks", type=int, help="GPUs to use (default: the pod's by the plan)")
        parser.set_defaults(handler=_node if name == "node" else _gpu)


def _node(arguments: argparse.Namespace) -> int:
    variables: Mapping[str, str] = arguments.variables
    plan = plans.load(arguments.plan)
    wanted, region = expected(plan, arguments.pool, whole_node=INDEX_VARIABLE in variables), plan["region"].text
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
    last = between_nodes(wanted)
    _show([last])
    return _finish([*checks, last], wanted, arguments.json)


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
