"""`python -m moerl_runtime trainer`: the entrypoint of the RayJob."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from moerl_runtime import plan, store, train_script
from moerl_runtime.arguments import port
from moerl_runtime.faults import InputFault
from moerl_runtime.serve import serving
from moerl_runtime.stop import on_stop
from moerl_runtime.trainer import flags
from moerl_runtime.trainer.control import Control, scraper
from moerl_runtime.trainer.run import Around, Order, Process, run

EPILOG = """exit codes: 0 the last step is committed, 1 it failed, 2 wrong input, 3 another attempt is alive, 4 the lease was
lost, 5 the last step was not committed, 6 no step is left, 7 scratch and the committed checkpoint disagree, 8 the last step
is committed, and the last batches were garbage: all repeat, are cut off, or have no reward above the lowest of the run.

variables: MOERL_RUN names the run, MOERL_ATTEMPT this attempt's Ray cluster, POD_IP the address to serve metrics on;
MOERL_TRAIN_SCRIPT is the framework's train.py, which the image sets.

examples:
  python -m moerl_runtime trainer --config /etc/moerl-trainer --metrics-port 9090 --framework-metrics-port 9091
"""


def register(commands: _SubParsersAction[ArgumentParser]) -> None:
    parser = commands.add_parser(
        "trainer",
        help="starts the framework's train.py under the run's lease",
        description="Runs one attempt of a training run: lease, checkpoint, train.py, last commit.",
        epilog=EPILOG,
    )
    plan.add_argument(parser)
    parser.add_argument("--config", type=Path, required=True, metavar="DIR", help="holds flags.json of the run")
    parser.add_argument("--metrics-port", type=port, required=True, metavar="PORT", help="on POD_IP, for Prometheus")
    parser.add_argument(
        "--framework-metrics-port",
        type=port,
        required=True,
        metavar="PORT",
        help="where the framework exports its own, on this pod",
    )
    parser.set_defaults(handler=_run)


def _run(arguments: Namespace) -> int:
    variables = arguments.variables
    named = {name: variables.get(name, "") for name in ("MOERL_RUN", "MOERL_ATTEMPT", "POD_IP")}
    for name, written in named.items():
        if not written or "/" in written:
            raise InputFault(name, written, "is not set by the pod", "Start it from the rendered RayJob.")
    script = train_script.path(variables)
    document = plan.load(arguments.plan)
    region = document["region"].text
    woken, stopped = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        woken.set()

    def wait(seconds: float) -> bool:
        woken.wait(seconds)
        woken.clear()
        return stopped.is_set()

    on_stop(stop, signals=[signal.SIGTERM])
    control = Control(clock=time.monotonic, unix_clock=time.time, scrape=scraper(arguments.framework_metrics_port))
    listen = f"{named['POD_IP']}:{arguments.metrics_port}"
    with serving(listen, control.handle) as url, tempfile.TemporaryDirectory(prefix="moerl-") as work:
        order = Order(
            run=named["MOERL_RUN"],
            holder=named["MOERL_ATTEMPT"],
            flags=flags.load(arguments.config),
            plan=document,
            plan_path=arguments.plan,
            work=Path(work),
            control_url=url,
        )
        around = Around(
            s3=store.client(region),
            parameter=_parameters(boto3.client("ssm", region_name=region)),
            start=lambda given: _start(script, given, woken),
            wait=wait,
            clock=time.monotonic,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
        run(order, around, control)
    return 0


def _start(script: Path, given: Sequence[str], woken: threading.Event) -> Process:
    # In this process group: what ends the entrypoint ends train.py too.
    process = subprocess.Popen([sys.executable, str(script), *given], cwd=script.parent)  # noqa: S603 - argument list

    def follow() -> None:
        process.wait()
        woken.set()

    threading.Thread(target=follow, daemon=True, name="train.py").start()
    return process


def _parameters(ssm: Any) -> Any:
    def value(name: str) -> str | None:
        try:
            found: str = ssm.get_parameter(Name=name)["Parameter"]["Value"]
            return found
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "ParameterNotFound":
                return None
            raise

    return value
