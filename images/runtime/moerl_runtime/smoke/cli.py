"""`smoke`: a local engine, a trainer and a rollout worker around a tiny model, and the same model on GPUs."""

from __future__ import annotations

import argparse
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


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "smoke",
        help="a tiny RL job through the real queue and buckets",
        description="A tiny mixture-of-experts model that learns a tiny task, through the same code as a real run.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(metavar="COMMAND", required=True)
    _register_engine(parts)


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
