"""`smoke`: a local engine, a trainer and a rollout worker around a tiny model, and the same model on GPUs."""

from __future__ import annotations

import argparse
import json
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from moerl_runtime.faults import InputFault
from moerl_runtime.smoke.engine_settings import EngineSettings

ENGINE_EPILOG = """exit codes: 0 after SIGTERM and the last request, 1 crashed as SGLang would (the reason is on stderr), 2 wrong
input, 137 after SIGTERM where 0.5.17 is reproduced, which kills itself.

examples:
  python -m moerl_runtime smoke engine --listen 127.0.0.1:30000 --step-seconds 0.02
  python -m moerl_runtime smoke engine --listen 127.0.0.1:30000 --model torch --weights /models/base
"""

GPU_EPILOG = """exit codes: 0 done (and in agreement), 1 the losses differ by more than the tolerance, 2 wrong input.

examples:
  python -m moerl_runtime smoke gpu --dispatcher gloo --ranks 2 --out gloo.json
  python -m moerl_runtime smoke gpu --dispatcher deep_ep --ranks 2 --out deep_ep.json --against gloo.json
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "smoke",
        help="a tiny RL job through the real queue and buckets",
        description="A tiny mixture-of-experts model that learns a tiny task, through the same code as a real run.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(metavar="COMMAND", required=True)
    _register_engine(parts)
    _register_gpu(parts)


def _register_engine(parts: Any) -> None:
    parser = parts.add_parser(
        "engine",
        help="SGLang's HTTP surface over a script or the tiny model",
        description="A local engine that answers as SGLang does, traps included; for tests and the smoke job.",
        epilog=ENGINE_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", choices=("scripted", "torch"), default="scripted", help="what makes the tokens")
    parser.add_argument("--weights", type=Path, help="directory of the base model (torch)")
    parser.add_argument("--answer-tokens", type=int, help="length of scripted answers (default: the prompt's)")
    parser.add_argument("--release", choices=("0.5.17", "0.5.19"), default="0.5.19", help="SGLang's, where they differ")
    for name, text in (
        ("start", "until the port opens"),
        ("warmup", "from the open port to health 200"),
        ("load", "of every weight update"),
        ("step", "of every forward step"),
        ("health-probe", "/health answers no sooner (default: 1)"),
        ("sigterm-tick", "between looks for remaining requests after SIGTERM (default: 5)"),
    ):
        parser.add_argument(f"--{name}-seconds", type=float, help=f"seconds: {text}")
    parser.add_argument("--running-requests-max", type=int)
    parser.add_argument("--queued-requests-max", type=int, help="503 beyond it (default: none)")
    parser.set_defaults(handler=_engine)


def _register_gpu(parts: Any) -> None:
    parser = parts.add_parser(
        "gpu",
        help="the same training steps over gloo, NCCL and DeepEP",
        description="Trains the tiny model on fixed data, one process a rank on this machine, and writes the losses.",
        epilog=GPU_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dispatcher", choices=("alone", "gloo", "nccl", "deep_ep"), required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="supervised steps (default: 20)")
    parser.add_argument("--grpo-steps", type=int, default=8, help="GRPO steps (default: 8; differences grow with them)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="losses as JSON")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="another run's losses, which these must agree with"
    )
    parser.set_defaults(handler=_gpu)


def _gpu(arguments: argparse.Namespace) -> int:
    from moerl_runtime.smoke import gpu

    against = None
    if arguments.against is not None:
        try:
            against = json.loads(arguments.against.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputFault(
                "--against", str(arguments.against), f"cannot be read: {error}", "Name a file of --out."
            ) from error
    comparison = gpu.Comparison(
        dispatcher=arguments.dispatcher,
        ranks=arguments.ranks,
        supervised_steps=arguments.steps,
        grpo_steps=arguments.grpo_steps,
    )
    found = gpu.run(comparison)
    agrees = True
    if against is not None:
        allowed, worst = gpu.tolerance(found, against), gpu.differences(found, against)
        agrees = all(difference <= allowed for difference in worst.values())
        found |= {"against": against["dispatcher"], "tolerance": allowed, "differences": worst, "agrees": agrees}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for line in gpu.lines(found):
        print(f"{found['dispatcher']} on {found['ranks']} ranks, {line}")
    if against is not None:
        shown = ", ".join(f"{half} {difference:.2g}" for half, difference in found["differences"].items())
        print(f"largest relative difference to {against['dispatcher']}: {shown}; allowed {found['tolerance']:g}")
    return 0 if agrees else 1


def _engine(arguments: argparse.Namespace) -> int:
    from moerl_runtime.smoke import engine_process
    from moerl_runtime.smoke.stepper import ScriptedStepper, Stepper, echo

    names = EngineSettings.__dataclass_fields__
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    stepper: Stepper
    if arguments.model == "scripted":
        stepper = ScriptedStepper(echo(arguments.answer_tokens))
        given |= {"model_path": str(arguments.weights or "scripted")}
    else:
        raise InputFault("--model", "torch", "has no weights", "Give --weights.")
    return engine_process.run(stepper, EngineSettings(**given), listen=arguments.listen)
