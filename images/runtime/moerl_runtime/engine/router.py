"""A router's list of workers (sglang-router 0.3.2): register at the start, remove at the start of a drain.

By itself the router notices a lost worker only after minutes. A worker is removed by its id, which the list gives by URL.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import urllib3

SECONDS = 5.0
ACCEPTED = frozenset({200, 201, 202, 204})


class RouterFailed(Exception):
    """The router did not do it, or nobody answered."""


def register(router_url: str, worker_url: str) -> None:
    """Adds the worker; one that is listed already is left alone. Raises RouterFailed."""
    if not _ids(router_url, worker_url):
        _ask("POST", f"{router_url}/workers", {"url": worker_url})


def deregister(router_url: str, worker_url: str) -> None:
    """Removes every entry of that URL. Raises RouterFailed."""
    for identifier in _ids(router_url, worker_url):
        _ask("DELETE", f"{router_url}/workers/{quote(identifier, safe='')}")


def _ids(router_url: str, worker_url: str) -> list[str]:
    listed = _ask("GET", f"{router_url}/workers")
    try:
        workers = listed["workers"] if isinstance(listed, dict) else listed
        return [str(worker["id"]) for worker in workers if worker["url"].rstrip("/") == worker_url.rstrip("/")]
    except (KeyError, TypeError, AttributeError) as error:
        raise RouterFailed(f"{router_url}/workers: {type(error).__name__}: {error}") from error


def _ask(method: str, url: str, body: Any = None) -> Any:
    try:
        answer = urllib3.request(
            method,
            url,
            body=None if body is None else json.dumps(body).encode(),
            headers=None if body is None else {"Content-Type": "application/json"},
            timeout=urllib3.Timeout(connect=SECONDS, read=SECONDS),
            retries=False,
        )
    except urllib3.exceptions.HTTPError as error:
        raise RouterFailed(f"{method} {url}: {type(error).__name__}") from error
    if answer.status not in ACCEPTED:
        raise RouterFailed(f"{method} {url}: HTTP {answer.status}")
    try:
        return json.loads(answer.data) if answer.data else None
    except ValueError as error:
        raise RouterFailed(f"{method} {url}: no JSON in the answer") from error
