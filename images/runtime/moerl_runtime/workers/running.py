"""What both workers share: where they serve, and how they end."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable

from moerl_runtime import metrics, serve, stop
from moerl_runtime import plan as plans
from moerl_runtime.arguments import port
from moerl_runtime.metrics import Metrics
from moerl_runtime.serve import Answer, Handler, Request

METRICS_PORT = 9_090
LIVE_PATH, READY_PATH, METRICS_PATH = "/live", "/ready", "/metrics"
NOT_FOUND = Answer(status=404)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool", required=True, help="pool of the plan that this pod belongs to")
    plans.add_argument(parser)
    parser.add_argument("--listen", required=True, metavar="IP:PORT", help="the pod's own address")
    parser.add_argument(
        "--metrics-port", type=port, default=METRICS_PORT, help=f"for /metrics (default: {METRICS_PORT})"
    )


def until_stopped(
    arguments: argparse.Namespace, handler: Handler, exported: Metrics, *, on_stop: Callable[[], object]
) -> int:
    """Serves until SIGTERM or SIGINT, then calls `on_stop`, still serving, and returns.

    Raises InputFault for a pool that the plan does not have, RuntimeFault for an address that cannot be bound.
    """
    plans.pool(plans.load(arguments.plan), arguments.pool)
    stopped = threading.Event()
    stop.on_stop(stopped.set)
    host = arguments.listen.rpartition(":")[0]
    with (
        serve.serving(arguments.listen, handler) as url,
        serve.serving(f"{host}:{arguments.metrics_port}", exposition(exported)) as metrics_url,
    ):
        print(f"{arguments.pool}: serves {url}, metrics {metrics_url}{METRICS_PATH}", flush=True)
        stopped.wait()
        on_stop()
    return 0


def exposition(exported: Metrics) -> Handler:
    def answer(request: Request) -> Answer:
        if request.method != "GET" or request.path != METRICS_PATH:
            return NOT_FOUND
        return Answer(body=exported.exposition().encode(), content_type=metrics.CONTENT_TYPE)

    return answer
