"""How the processes of a run tell the head what they do: the rollout manager and rank 0 live on other nodes.

Best effort, from one thread: nothing in the trainer waits for a report, and a head that does not answer costs no step.
Values are totals of their process, so a report that arrives twice changes nothing.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import urllib3

from moerl_runtime.metrics import Metrics

log = logging.getLogger(__name__)

Phase = Literal["wait", "train", "save", "publish"]
Post = Callable[[str, dict[str, Any]], None]
"""(path, body). Raises urllib3.exceptions.HTTPError where it did not arrive."""
PERIOD_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
SERIES_PATH, PHASE_PATH, HISTORY_PATH = "/v1/series", "/v1/phase", "/v1/history"


class Reporter:
    """One process's series, and the phases that it sees begin."""

    def __init__(
        self,
        source: str,
        metrics: Metrics,
        post: Post,
        *,
        period_seconds: float = PERIOD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = metrics
        self._source, self._post, self._period_seconds, self._clock = source, post, period_seconds, clock
        self._posts: queue.SimpleQueue[tuple[str, dict[str, Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="report")
        self._thread.start()

    def phase(self, phase: Phase, step: int) -> None:
        """That phase of that step begins now."""
        self._posts.put((PHASE_PATH, {"phase": phase, "step": step}))

    def history(self, document: dict[str, Any]) -> None:
        """The latest batches, as `gates` writes them."""
        self._posts.put((HISTORY_PATH, document))

    def close(self) -> None:
        """Sends what is left."""
        self._posts.put(None)
        self._thread.join(timeout=2 * TIMEOUT_SECONDS)

    def _run(self) -> None:
        due = self._clock() + self._period_seconds
        while True:
            # Not only in a pause: steps that are shorter than the period would put the series off for ever.
            left = due - self._clock()
            if left <= 0:
                self._send(SERIES_PATH, self._series())
                due = self._clock() + self._period_seconds
                continue
            try:
                item = self._posts.get(timeout=left)
            except queue.Empty:
                continue
            if item is None:
                self._send(SERIES_PATH, self._series())
                return
            self._send(*item)

    def _series(self) -> dict[str, Any]:
        series = [[name, dict(labels), value] for name, labels, value in self.metrics.series()]
        return {"source": self._source, "series": series}

    def _send(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._post(path, body)
        except urllib3.exceptions.HTTPError as error:
            log.info("the head did not take a report: %s", error)


def poster(url: str) -> Post:
    """Posts to the head's control server."""
    pool = urllib3.PoolManager(timeout=TIMEOUT_SECONDS, retries=False)

    def post(path: str, body: dict[str, Any]) -> None:
        answer = pool.request("POST", url + path, body=json.dumps(body), headers={"Content-Type": "application/json"})
        if answer.status != 200:
            raise urllib3.exceptions.HTTPError(f"{path} answered {answer.status}")

    return post
