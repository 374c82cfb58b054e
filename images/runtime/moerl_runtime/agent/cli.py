"""`agent lead`, `agent follow`, `agent await-drain`: the main container of a rollout pod, and its preStop hook."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from moerl_runtime import imds, serve, sqs, store
from moerl_runtime import plan as plans
from moerl_runtime.agent import effects as do
from moerl_runtime.agent import follow, group, settings, work
from moerl_runtime.agent.bring import Bringer
from moerl_runtime.agent.core import Core
from moerl_runtime.agent.exported import METRICS
from moerl_runtime.agent.grading import grader
from moerl_runtime.agent.loop import Loop
from moerl_runtime.arguments import digits, port, url
from moerl_runtime.engine.client import Engine, Refused, Unreachable
from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import CONTENT_TYPE, Metrics
from moerl_runtime.serve import Answer, Request
from moerl_runtime.workers.buffer_client import BufferClient, urls
from moerl_runtime.workers.running import METRICS_PATH, METRICS_PORT

ENGINE_METRICS_PATH = "/engine/metrics"
ANSWER_SECONDS_MAX = settings.LEASE_TOTAL_SECONDS
LOAD_SECONDS_MAX = 1_800.0
CONNECTIONS = 96
"""To S3 and SQS each: every thread of the loop that may call them at once."""
HOOK_SECONDS = 100.0

EPILOG = """exit codes: 0 drained in order (lead), stopped (follow), 1 it cannot serve and has given everything back, 2 wrong
input, 3 the drain's time ended before every task was given back: their leases run out by themselves.

examples:
  python -m moerl_runtime agent lead --pool rollout --listen 10.0.1.3:8090 --engine http://127.0.0.1:30000 --models /models
  python -m moerl_runtime agent follow --pool rollout --listen 10.0.1.4:8090 --engine http://127.0.0.1:30000 \\
      --models /models --leader engines-rollout-0.engines-rollout.rl:8090
  python -m moerl_runtime agent await-drain --port 8090
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "agent",
        help="rollout agent: leases tasks, drives the engine, drains on a notice",
        description="Leases tasks from the queue, has this pod's engine answer them, publishes every sample at once, and "
        "gives back what is unfinished when the node or the pod is about to go.",
        epilog=EPILOG,
    )
    parts = parser.add_subparsers(metavar="COMMAND", required=True)
    lead = parts.add_parser("lead", help="the pod that serves an engine's HTTP", epilog=EPILOG)
    _common(lead)
    lead.add_argument(
        "--router",
        type=url,
        metavar="URL",
        help="register the engine there; the trainer then drives it, not this agent",
    )
    lead.add_argument("--advertise", type=url, metavar="URL", help="the engine's URL for the router")
    lead.add_argument(
        "--poll-seconds",
        type=int,
        default=settings.POLL_SECONDS,
        help=f"of a long poll, 1 to {sqs.LONG_POLL_SECONDS} (default: {settings.POLL_SECONDS})",
    )
    lead.set_defaults(handler=_lead)
    follower = parts.add_parser("follow", help="another pod of the engine", epilog=EPILOG)
    _common(follower)
    follower.add_argument("--leader", required=True, metavar="HOST:PORT", help="the leader's agent")
    follower.set_defaults(handler=_follow)
    hook = parts.add_parser("await-drain", help="a follower's preStop hook", epilog=EPILOG)
    hook.add_argument("--port", type=port, required=True, help="of the leader's agent")
    hook.add_argument(
        "--seconds", type=float, default=HOOK_SECONDS, help=f"to wait at most (default: {HOOK_SECONDS:g})"
    )
    hook.set_defaults(handler=_await_drain)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool", required=True, help="rollout pool of the plan that this pod belongs to")
    parser.add_argument("--listen", required=True, metavar="IP:PORT", help="the pod's own address")
    parser.add_argument("--engine", required=True, type=url, metavar="URL", help="this pod's own engine")
    parser.add_argument("--models", required=True, type=Path, metavar="DIR", help="where models and versions lie")
    plans.add_argument(parser)
    parser.add_argument(
        "--metrics-port", type=port, default=METRICS_PORT, help=f"for /metrics (default: {METRICS_PORT})"
    )
    parser.add_argument(
        "--imds", type=url, default=imds.LINK_LOCAL, metavar="URL", help="instance metadata (default: EC2's own)"
    )
    parser.add_argument(
        "--rebalance", action="store_true", help="drain on a rebalance recommendation, not only on a Spot notice"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """What both kinds of pods are made of."""

    plan: plans.Node
    s3: store.S3Client
    sqs: sqs.SqsClient
    bucket: str
    weights_prefix: str
    base: Path
    bring: Bringer
    worker: str


def _pod(arguments: argparse.Namespace) -> _Pod:
    plan, variables = plans.load(arguments.plan), arguments.variables
    region = plan["region"].text
    s3 = store.client(region, connections=CONNECTIONS)
    bucket, weights_prefix = plan["names"]["weights_bucket"].text, plan["storage"]["weights_prefix"].text
    base = arguments.models / plan["workload"]["files"]["serving"].text
    worker = variables.get("HOSTNAME") or socket.gethostname()
    return _Pod(
        plan=plan,
        s3=s3,
        sqs=sqs.client(region, connections=CONNECTIONS),
        bucket=bucket,
        weights_prefix=weights_prefix,
        base=base,
        bring=Bringer(
            s3, bucket, weights_prefix=weights_prefix, models=arguments.models, base=base, worker=worker, log=_log
        ),
        worker=worker,
    )


def _lead(arguments: argparse.Namespace) -> NoReturn:
    if not 1 <= arguments.poll_seconds <= sqs.LONG_POLL_SECONDS:
        raise InputFault(
            "--poll-seconds", arguments.poll_seconds, "is no long poll", f"Write 1 to {sqs.LONG_POLL_SECONDS}."
        )
    if bool(arguments.router) != bool(arguments.advertise):
        raise InputFault("--router", arguments.router, "goes with --advertise", "Write both or neither.")
    pod = _pod(arguments)
    known = settings.read(
        pod.plan, arguments.pool, takes_tasks=not arguments.router, poll_seconds=arguments.poll_seconds
    )
    engine = _engine(arguments, requests_max=known.requests_max)
    queue = pod.plan["queue"]
    around = work.Around(
        engine=engine,
        s3=pod.s3,
        sqs=pod.sqs,
        bucket=pod.bucket,
        weights_prefix=pod.weights_prefix,
        queues=work.Queues(
            tasks=queue["task_url"].text, results=queue["result_url"].text, dead_letters=queue["dead_letter_url"].text
        ),
        lease_seconds=known.lease_seconds,
        failures_max=known.failures_max,
        worker=pod.worker,
        clock=time.monotonic,
        unix_seconds=time.time,
        fetch=pod.bring,
        mark_loading=pod.bring.mark_loading,
        grade=grader(urls(pod.plan, "environment")),
        buffer=BufferClient(urls(pod.plan)).put,
        router_url=arguments.router,
        advertised_url=arguments.advertise,
    )
    exported = Metrics(METRICS)
    core = Core(known, base=pod.base, touched=pod.bring.touched, metrics=exported, log=_log)
    loop = Loop(core, lambda effect: work.perform(effect, around), clock=time.monotonic)
    _on_stop(lambda: loop.tell(do.Stopped()))

    def answer(request: Request) -> Answer:
        return group.answer(
            request,
            group_size=known.group_size,
            tell=loop.tell,
            view=lambda: loop.view,
            idle_seconds=lambda: time.monotonic() - loop.turned_seconds,
        )

    with _serving(arguments, answer, exported, engine):
        _watch(
            arguments,
            noticed=lambda notice: loop.tell(do.Noticed(notice)),
            asked=lambda: loop.tell(do.Looked()),
            crashed=lambda reason: loop.tell(do.Crashed("imds", reason)),
        )
        code = loop.run()
    _leave(code)


def _follow(arguments: argparse.Namespace) -> NoReturn:
    pod, variables = _pod(arguments), arguments.variables
    engine = _engine(arguments, requests_max=1)
    leader_url = f"http://{arguments.leader}"

    class Leader:
        def report(self, what: group.Report) -> group.Told:
            return group.report(leader_url, what)

        def ask_to_drain(self, member: int) -> group.Told:
            return group.ask_to_drain(leader_url, member)

    def healthy() -> bool:
        try:
            return engine.healthy()
        except (Unreachable, Refused):
            return False

    follower = follow.Follower(
        member=_member(variables),
        leader=Leader(),
        healthy=healthy,
        fetch=pod.bring,
        clock=time.monotonic,
        log=_log,
    )
    _on_stop(lambda: follower.tell(follow.Stop()))
    exported = Metrics({})
    with _serving(arguments, lambda request: follow.answer(request, follower, time.monotonic), exported, engine):
        _watch(
            arguments,
            noticed=follower.tell,
            asked=lambda: None,
            crashed=lambda reason: follower.tell(follow.Crashed(f"imds: {reason}")),
        )
        code = follower.run()
    _leave(code)


def _await_drain(arguments: argparse.Namespace) -> int:
    variables = arguments.variables
    leader = variables.get("LWS_LEADER_ADDRESS")
    if not leader:
        raise InputFault("LWS_LEADER_ADDRESS", leader, "is not set", "Run it in a pod of a LeaderWorkerSet.")
    leader_url, member = f"http://{leader}:{arguments.port}", _member(variables)
    drained = follow.await_drain(
        lambda: group.ask_to_drain(leader_url, member),
        lambda: group.state(leader_url),
        seconds=arguments.seconds,
        clock=time.monotonic,
        wait=threading.Event().wait,
    )
    return 0 if drained else 1


def _engine(arguments: argparse.Namespace, *, requests_max: int) -> Engine:
    return Engine(
        arguments.engine,
        requests_max=requests_max,
        answer_seconds_max=ANSWER_SECONDS_MAX,
        load_seconds_max=LOAD_SECONDS_MAX,
    )


def _member(variables: Mapping[str, str]) -> int:
    written = variables.get("LWS_WORKER_INDEX", "")
    index = digits(written)
    if not index:
        raise InputFault(
            "LWS_WORKER_INDEX", written, "is no follower's number", "Run it in a pod of a LeaderWorkerSet."
        )
    return index


class _serving:
    """Probes and the group's routes on `--listen`, metrics on the port beside it."""

    def __init__(
        self, arguments: argparse.Namespace, answer: Callable[[Request], Answer], exported: Metrics, engine: Engine
    ) -> None:
        host = arguments.listen.rpartition(":")[0]
        self._servers = (
            serve.serving(arguments.listen, answer),
            serve.serving(f"{host}:{arguments.metrics_port}", lambda request: _metrics(request, exported, engine)),
        )

    def __enter__(self) -> None:
        listening = [server.__enter__() for server in self._servers]
        _log(f"listens on {listening[0]}, metrics on {listening[1]}{METRICS_PATH}")

    def __exit__(self, *error: object) -> None:
        """They listen to the last moment: the process ends with them, so nobody closes them."""


def _metrics(request: Request, exported: Metrics, engine: Engine) -> Answer:
    if request.method != "GET" or request.path not in (METRICS_PATH, ENGINE_METRICS_PATH):
        return Answer(status=404)
    if request.path == METRICS_PATH:
        return Answer(body=exported.exposition().encode(), content_type=CONTENT_TYPE)
    try:
        return Answer(body=engine.metrics(), content_type=CONTENT_TYPE)
    except (Unreachable, Refused):
        return Answer(status=503)


def _watch(
    arguments: argparse.Namespace,
    *,
    noticed: Callable[[imds.Notice], None],
    asked: Callable[[], None],
    crashed: Callable[[str], None],
) -> None:
    metadata = imds.Imds(arguments.imds)

    def watch() -> None:
        try:
            imds.watch(
                lambda: metadata.notice(rebalance=arguments.rebalance),
                noticed=noticed,
                asked=asked,
                failed=lambda error: _log(f"instance metadata: {error}"),
                stop=threading.Event(),
            )
        except Exception as error:  # the boundary of a thread: an agent that watches no more would miss its notice
            crashed(f"{type(error).__name__}: {error}")

    threading.Thread(target=watch, name="imds", daemon=True).start()


def _on_stop(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


def _log(line: str) -> None:
    print(f"agent: {line}", file=sys.stderr, flush=True)


def _leave(code: int) -> NoReturn:
    """Ends the process at once: an orderly exit would wait for threads of libraries whose calls may hang for long."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
