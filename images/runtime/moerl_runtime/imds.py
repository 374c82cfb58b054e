"""Instance metadata, version 2: the Spot notice and the rebalance recommendation.

Both are absent (404) until they are there. A token is good for six hours and is renewed when the service says 401; a node
whose metadata does not answer is watched on, since nothing else is lost with it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import urllib3

LINK_LOCAL = "http://169.254.169.254"
POLL_SECONDS = 2.0
"""A leader hears of a notice within 5 s, its own node's or a follower's: this leaves 3 s to answers and the report."""
TOKEN_SECONDS = 21_600
SECONDS = 2.0
SPOT_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"

Reason = Literal["spot", "rebalance"]


class MetadataFailed(Exception):
    """The service does not answer, or not as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    reason: Reason
    text: str
    """As the service wrote it."""


class Imds:
    """Holds the session token."""

    def __init__(self, url: str = LINK_LOCAL) -> None:
        self._url = url.rstrip("/")
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(connect=SECONDS, read=SECONDS))
        self._token: str | None = None

    def notice(self, *, rebalance: bool) -> Notice | None:
        """The Spot notice if there is one, else the recommendation if asked for. Raises MetadataFailed."""
        spot = self._get(SPOT_PATH)
        if spot is not None and _action(spot) in ("terminate", "stop", "hibernate"):
            return Notice(reason="spot", text=spot)
        recommended = self._get(REBALANCE_PATH) if rebalance else None
        return None if recommended is None else Notice(reason="rebalance", text=recommended)

    def _get(self, path: str) -> str | None:
        for _ in range(2):
            if self._token is None:
                self._token = self._new_token()
            answer = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status != 401:
                break
            self._token = None
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise MetadataFailed(f"{path}: HTTP {answer.status}")
        return answer.data.decode(errors="replace")

    def _new_token(self) -> str:
        answer = self._ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)})
        if answer.status != 200:
            raise MetadataFailed(f"token: HTTP {answer.status}")
        return answer.data.decode(errors="replace")

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        try:
            return self._http.request(method, f"{self._url}{path}", headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise MetadataFailed(f"{path}: {type(error).__name__}") from error


def watch(
    ask: Callable[[], Notice | None],
    *,
    noticed: Callable[[Notice], None],
    asked: Callable[[], None],
    failed: Callable[[MetadataFailed], None],
    stop: threading.Event,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Asks until a notice is there or `stop` is set. `asked` follows every answer or failure, `failed` the first in a row."""
    failing = False
    while True:
        try:
            notice = ask()
            failing = False
        except MetadataFailed as error:
            notice = None
            if not failing:
                failed(error)
            failing = True
        if notice is not None:
            noticed(notice)
        asked()
        if notice is not None or stop.wait(poll_seconds):
            return


def _action(text: str) -> str | None:
    """What a notice announces. One that cannot be read still is one: EC2 has no other reason to write it."""
    try:
        found = json.loads(text)["action"]
    except (ValueError, KeyError, TypeError):
        return "terminate"
    return str(found)
