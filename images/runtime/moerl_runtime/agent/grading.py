"""Who grades an answer: a grader of this image, or an environment worker that runs one away from the GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import urllib3

from moerl_runtime.agent.work import GradingBusy
from moerl_runtime.graders import REMOTE, GradeError, grade
from moerl_runtime.protocol import TaskPayload
from moerl_runtime.workers.environment import SCORE_PATH

CONNECT_SECONDS, READ_SECONDS = 3.0, 60.0
"""A worker waits up to 10 s for a free process and gives a grade 30."""
BUSY = frozenset({429, 500, 502, 503})
"""Ask again: another worker may be free."""

Grade = Callable[[TaskPayload, str], tuple[float, dict[str, Any]]]


def grader(environment_urls: Sequence[str]) -> Grade:
    """`environment_urls`: where the environment workers listen; none where the run has none."""
    http = urllib3.PoolManager(
        maxsize=64, retries=False, timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
    )

    def graded(payload: TaskPayload, response: str) -> tuple[float, dict[str, Any]]:
        if not payload.grader.startswith(REMOTE):
            return grade(
                payload.grader,
                prompt=payload.prompt,
                response=response,
                label=payload.label,
                metadata=payload.metadata,
            )
        if not environment_urls:
            raise GradeError(f"grader {payload.grader}: this environment has no pool of environment workers")
        # One address stands for all workers of a pool; groups are spread over several pools.
        url = environment_urls[payload.group % len(environment_urls)]
        return _ask(http, url + SCORE_PATH, payload, response)

    return graded


def _ask(http: urllib3.PoolManager, url: str, payload: TaskPayload, response: str) -> tuple[float, dict[str, Any]]:
    body = {
        "grader": payload.grader.removeprefix(REMOTE),
        "prompt": payload.prompt,
        "response": response,
        "label": payload.label,
        "metadata": dict(payload.metadata),
    }
    try:
        found = http.request("POST", url, body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    except urllib3.exceptions.HTTPError as error:
        raise GradingBusy(f"{url}: {type(error).__name__}") from error
    if found.status in BUSY:
        raise GradingBusy(f"{url}: HTTP {found.status}")
    try:
        told = json.loads(found.data)
        if found.status != 200:
            raise GradeError(f"grader {payload.grader}: HTTP {found.status}: {str(told['error'])[:500]}")
        reward, metadata = float(told["reward"]), dict(told["metadata"])
    except (ValueError, KeyError, TypeError) as error:
        raise GradeError(f"grader {payload.grader}: HTTP {found.status} without a reward: {error}") from error
    if not isfinite(reward):
        raise GradeError(f"grader {payload.grader}: reward {reward} is no finite number")
    return reward, metadata
