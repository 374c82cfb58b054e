"""Clients of the buffer workers: the agent puts a finished sample there, the trainer gets it. S3 stays the truth.

A buffer saves the trainer a GET per sample from S3, and nothing else: every failure here is a miss. Hence short timeouts, no
retries, and a worker that failed is left alone for a while, so that a lost node costs one timeout and not one per sample.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import urllib3

from moerl_runtime.plan import Node

SAMPLES_PATH = "/v1/samples/"
CONNECT_SECONDS, READ_SECONDS = 0.5, 2.0
REST_SECONDS = 10.0
"""How long a worker that did not answer is not asked."""
CONNECTIONS = 16
HTTP_OK, HTTP_INSUFFICIENT_STORAGE = 200, 507


def host_of(group: int, ordinals: int) -> int:
    """Ordinal of the buffer worker that has a group's samples, of `ordinals` workers. The same in every process."""
    digest = blake2b(group.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % ordinals


def urls(plan: Node, role: str = "buffer") -> list[str]:
    """URLs of the workers of a role, as plan.json has them; none where the environment has no such pool."""
    workers = plan["workload"]["cpu_workers"]
    found = [workers[position] for position in range(len(workers.value))]
    return [url for worker in found if worker["role"].text == role for url in worker["urls"].value]


class BufferClient:
    """The buffers of a run by their URLs, one per ordinal. Thread-safe. With no URLs every call is a miss."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        rest_seconds: float = REST_SECONDS,
    ) -> None:
        self._urls, self._clock, self._rest_seconds = tuple(urls), clock, rest_seconds
        self._http = urllib3.PoolManager(
            maxsize=CONNECTIONS,
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
        )
        self._lock = threading.Lock()
        self._resting: dict[int, float] = {}

    def put(self, group: int, key: str, body: bytes) -> bool:
        """Offers a stored sample. False where its worker did not take it, which is no loss."""
        answer = self._ask("PUT", group, key, body)
        return answer is not None and answer.status == HTTP_OK

    def get(self, group: int, key: str) -> bytes | None:
        """The sample, or None where it has to be read from S3."""
        answer = self._ask("GET", group, key, None)
        return bytes(answer.data) if answer is not None and answer.status == HTTP_OK else None

    def _ask(self, method: str, group: int, key: str, body: bytes | None) -> Any:
        if not self._urls:
            return None
        ordinal = host_of(group, len(self._urls))
        with self._lock:
            if self._clock() < self._resting.get(ordinal, float("-inf")):
                return None
        try:
            return self._http.request(method, f"{self._urls[ordinal]}{SAMPLES_PATH}{key}", body=body)
        except urllib3.exceptions.HTTPError:
            with self._lock:
                self._resting[ordinal] = self._clock() + self._rest_seconds
            return None
