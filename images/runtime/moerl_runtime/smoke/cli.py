"""`smoke`: a local engine, a trainer and a rollout worker around a tiny model, and the same model on GPUs."""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from moerl_runtime import plan
from moerl_runtime.arguments import output, port, url, whole
from moerl_runtime.faults import InputFault
from moerl_runtime.smoke import job, task
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.stop import on_stop

ENGINE_EPILOG = """exit codes: 0 after SIGTERM and the last request, 1 crashed as SGLang would (the reason is on stderr), 2 wrong
input, 137 after SIGTERM where 0.5.17 is reproduced, which kills itself.

examples:
  python -m moerl_runtime smoke engine --listen 127.0.0.1:30000 --step-seconds 0.02
  python -m moerl_runtime smoke engine --listen 127.0.0.1:30000 --model torch --weights /models/base
"""

GPU_EPILOG = """exit codes: 0 done (and in agreement), 1 losses or gradients differ by more than the tolerance, 2 wrong input.

examples:
  python -m moerl_runtime smoke gpu --dispatcher gloo --ranks 2 --out gloo.json
  python -m moerl_runtime smoke gpu --dispatcher deep_ep --ranks 2 --out deep_ep.json --against gloo.json
"""

TRAINER_EPILOG = """exit codes: 0 the last step is committed, 1 it failed, 2 wrong input; others as of `trainer`.

examples:
  python -m moerl_runtime smoke trainer
  python -m moerl_runtime smoke trainer --run smoke-1 --holder me --scratch /tmp/smoke-1 --steps 40
"""
ROLLOUT_EPILOG = """exit codes: those of `agent lead`.

examples:
  python -m moerl_runtime smoke rollout --pool rollout
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "smoke",
        help="a tiny RL job through the real queue and buckets",
        description="A tiny mixture-of-experts model that learns a tiny task, through the same code as a real run.",
        epilog=f"{TRAINER_EPILOG}\n{ROLLOUT_EPILOG}",
    )
    parts = parser.add_subparsers(metavar="COMMAND", required=True)
    _register_engine(parts)
    _register_gpu(parts)
    _register_trainer(parts)
    _register_rollout(parts)


def _register_engine(parts: Any) -> None:
    parser = parts.add_parser(
        "engine",
        help="SGLang's HTTP surface over a script or the tiny model",
        description="A local engine that answers as SGLang does, traps included; for tests and the smoke job.",
        epilog=ENGINE_EPILOG,
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", choices=("scripted", "torch"), default="scripted", help="what makes the tokens")
    parser.add_argument("--weights", type=Path, help="directory of the base model; made where it is not there (torch)")
    parser.add_argument("--seed", type=int, default=0, help="of what is sampled (torch)")
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
    for name in ("tp", "ep", "dp"):
        parser.add_argument(f"--{name}-size", type=int, help="what /server_info says (default: 1)")
    parser.add_argument("--moe-a2a-backend", help="what /server_info says (default: none)")
    parser.add_argument("--running-requests-max", type=int)
    parser.add_argument("--queued-requests-max", type=int, help="503 beyond it (default: none)")
    parser.set_defaults(handler=_engine)


def _register_trainer(parts: Any) -> None:
    parser = parts.add_parser(
        "trainer",
        help="a tiny run, from restore to the last commit",
        description="Trains the tiny model on two ranks with samples from the task queue.",
        epilog=TRAINER_EPILOG,
    )
    plan.add_argument(parser)
    parser.add_argument("--run", help="name of the run (default: smoke- and HOSTNAME)")
    parser.add_argument("--holder", help="who takes the lease; a start that repeats it takes over at once")
    parser.add_argument("--scratch", type=Path, help="directory of this run (default: a new one)")
    parser.add_argument("--listen", default="127.0.0.1:9090", metavar="HOST:PORT", help="metrics")
    parser.add_argument("--steps", type=whole(1), default=job.STEPS, help=f"(default: {job.STEPS})")
    parser.add_argument("--step-log", type=Path, metavar="FILE", help="one JSON line a step")
    parser.set_defaults(handler=_trainer)


def _trainer(arguments: argparse.Namespace) -> int:
    from moerl_runtime.smoke import trainer

    variables, document = arguments.variables, plan.load(arguments.plan)
    host = variables.get("HOSTNAME") or socket.gethostname()
    run = arguments.run or f"{job.RUN_PREFIX}{host}"
    if not run.startswith(job.RUN_PREFIX):
        raise InputFault("--run", run, "could be a real run", f"Begin it with {job.RUN_PREFIX}.")
    scratch = arguments.scratch or Path(tempfile.mkdtemp(prefix=job.RUN_PREFIX))
    woken, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        woken.set()

    on_stop(stop)
    return trainer.run(
        trainer.Job(
            plan=document,
            run=run,
            holder=arguments.holder or host,
            scratch=scratch,
            listen=arguments.listen,
            steps=arguments.steps,
            step_log=arguments.step_log or scratch / "steps.jsonl",
            region=document["region"].text,
            variables=variables,
        ),
        clock=time.monotonic,
        unix_clock=time.time,
        woken=woken,
        stopped=stopped,
    )


def _register_rollout(parts: Any) -> None:
    parser = parts.add_parser(
        "rollout",
        help="the local engine with the tiny model, and the agent beside it",
        description="One rollout worker of the smoke job, until a notice, SIGTERM, or the end of the smoke run.",
        epilog=ROLLOUT_EPILOG,
    )
    plan.add_argument(parser)
    parser.add_argument("--pool", required=True, help="rollout pool of the plan")
    parser.add_argument("--models", type=Path, help="directory of models and versions (default: a new one)")
    parser.add_argument("--listen", default="127.0.0.1:8090", metavar="HOST:PORT", help="the agent's probes")
    parser.add_argument("--engine-listen", default="127.0.0.1:30000", metavar="HOST:PORT")
    parser.add_argument("--metrics-port", type=port, default=9090)
    parser.add_argument("--imds", type=url, metavar="URL", help="instance metadata (default: EC2's own)")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="of every forward step, beside the model's own")
    parser.add_argument("--seed", type=int, default=0, help="of what is sampled")
    parser.set_defaults(handler=_rollout)


def _rollout(arguments: argparse.Namespace) -> int:
    from moerl_runtime.smoke import rollout

    document = plan.load(arguments.plan)
    stopped = threading.Event()
    on_stop(stopped.set)
    return rollout.run(
        rollout.Worker(
            plan=document,
            pool=arguments.pool,
            models=arguments.models or Path(tempfile.mkdtemp(prefix=job.RUN_PREFIX)),
            listen=arguments.listen,
            engine_listen=arguments.engine_listen,
            metrics_port=arguments.metrics_port,
            imds=arguments.imds,
            region=document["region"].text,
            step_seconds=arguments.step_seconds,
            seed=arguments.seed,
        ),
        wait=stopped.wait,
    )


def _register_gpu(parts: Any) -> None:
    parser = parts.add_parser(
        "gpu",
        help="the same training steps over gloo, NCCL and DeepEP",
        description="Trains the tiny model on fixed data, one process a rank on this machine; writes losses and gradients.",
        epilog=GPU_EPILOG,
    )
    parser.add_argument("--dispatcher", choices=("alone", "gloo", "nccl", "deep_ep"), required=True)
    parser.add_argument("--ranks", type=whole(1), default=2)
    parser.add_argument("--steps", type=whole(1), default=20, help="supervised steps (default: 20)")
    parser.add_argument(
        "--grpo-steps", type=whole(1), default=8, help="GRPO steps (default: 8; differences grow with them)"
    )
    parser.add_argument(
        "--out", type=output, required=True, metavar="FILE", help="losses and sketches of gradients as JSON"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="another run's file, which this run must agree with"
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
        allowed, worst = gpu.tolerances(found, against), gpu.differences(found, against)
        agrees = all(difference <= allowed[name] for name, difference in worst.items())
        found |= {"against": against["dispatcher"], "tolerances": dict(allowed), "differences": worst, "agrees": agrees}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for line in gpu.lines(found):
        print(f"{found['dispatcher']} on {found['ranks']} ranks, {line}")
    if against is not None:
        shown = ", ".join(f"{name} {difference:.2g} of {allowed[name]:g}" for name, difference in worst.items())
        print(f"largest relative differences to {against['dispatcher']}, of what is allowed: {shown}")
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
        if arguments.weights is None:
            raise InputFault("--weights", None, "is missing", "Name the directory of the base model.")
        from moerl_runtime.smoke import base
        from moerl_runtime.smoke.torch_stepper import TorchStepper

        base.make(arguments.weights)
        stepper = TorchStepper(arguments.weights, seed=arguments.seed)
        given |= {"model_path": str(arguments.weights), "context_length": task.CONTEXT}
    return engine_process.run(stepper, EngineSettings(**given), listen=arguments.listen)
