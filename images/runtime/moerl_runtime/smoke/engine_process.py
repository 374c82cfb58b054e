"""The local engine as a process of its own: port closed, listening, ready, SIGTERM, end."""

from __future__ import annotations

import os
import signal
import sys
import time

from moerl_runtime.smoke.engine_http import serving
from moerl_runtime.smoke.engine_settings import EngineSettings
from moerl_runtime.smoke.stepper import Stepper
from moerl_runtime.stop import until_stopped

CRASHED = 1
KILLED_ITSELF = 128 + signal.SIGKILL
"""0.5.17 ends so after its drain."""


def run(stepper: Stepper, settings: EngineSettings, *, listen: str) -> int:
    """Serves until SIGTERM has come and no request is left. SIGTERM before the warm-up's end kills at once, as there."""
    time.sleep(settings.start_seconds)
    with serving(stepper, settings, clock=time.monotonic, listen=listen, on_crash=_crash) as (url, server):
        print(f"engine: {url}, as SGLang {settings.release}", flush=True)
        time.sleep(settings.warmup_seconds)
        until_stopped(signals=[signal.SIGTERM])
        server.terminating.set()
        server.drained()
    return 0 if settings.spans else KILLED_ITSELF


def _crash(why: str) -> None:
    print(f"engine: {why}; the process ends", file=sys.stderr, flush=True)
    os._exit(CRASHED)
